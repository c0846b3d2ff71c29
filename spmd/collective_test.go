package spmd_test

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/parallel"
	"lockstep/spmd/spmdtest"
)

var everyRanks = []int{1, 2, 3, 4}

func TestCollectives(t *testing.T) {
	testkit.More(t, 2*len(everyRanks)*len(modes)*10*2/3, "types by modes and numbers of ranks of collectives")
	everyWay(t, func(t *testing.T, w *spmd.World) {
		for k, m := range modesOf(w) {
			each(w.Size()+k,
				func() { every(t, w, m, plain[int8](), 0) },
				func() { every(t, w, m, plain[uint8](), 0) },
				func() { every(t, w, m, plain[int32](), 0) },
				func() { every(t, w, m, plain[uint32](), 0) },
				func() { every(t, w, m, plain[int64](), 0) },
				func() { every(t, w, m, plain[uint64](), 0) },
				func() { every(t, w, m, plain[float32](), 23) },
				func() { every(t, w, m, plain[float64](), 52) },
				func() { every(t, w, m, half(), 10) },
				func() { every(t, w, m, brain(), 7) },
			)
		}
	})
}

// every runs all collectives over one element type; bits is its precision, 0 for
// an integer.
func every[T spmd.Elem](t *testing.T, w *spmd.World, m mode, num number[T], bits int) {
	rank, size := w.Rank(), w.Size()
	// give fills a buffer with f and returns it; it lives as long as the test.
	give := func(n int, f func(i int) float64) spmd.Buffer[T] {
		b := alloc[T](t, w, n)
		h := make([]T, n)
		for i := range h {
			h[i] = num.of(f(i))
		}
		must(t, b.CopyFrom(h))
		return b
	}
	poison := func(n int) spmd.Buffer[T] { return give(n, func(int) float64 { return 101 }) }
	check := func(what string, op spmd.Op, b spmd.Buffer[T], want func(i int) float64) {
		t.Helper()
		h := make([]T, b.Len())
		must(t, b.CopyTo(h))
		for i, x := range h {
			if got := num.to(x); !near(got, want(i), op, bits) {
				t.Fatalf("%s, %s of %T, rank %d of %d, %d elements: [%d] = %v, want %v", m.name, what, x,
					rank, size, b.Len(), i, got, want(i))
			}
		}
		must(t, b.Free())
	}
	mine := func(op spmd.Op) func(int) float64 { return func(i int) float64 { return input(op, rank, i) } }
	ops, lengths, moved := []spmd.Op{spmd.Sum, spmd.Prod, spmd.Min, spmd.Max, spmd.Avg},
		[]int{0, 1, 2, 1<<10 + 1}, []int{0, 1, 3, 1<<9 + 1}
	if os.Getenv(doublesEnv) != "" && !testkit.AllCases() { // each call there takes as long as a hundred on the host
		ops, lengths, moved = []spmd.Op{spmd.Sum, spmd.Avg}, []int{1<<10 + 1}, []int{1<<9 + 1}
	}
	for _, op := range ops {
		for _, n := range lengths {
			want := func(i int) float64 { return reduced(op, size, i, bits == 0) }
			src, dst, inPlace := give(n, mine(op)), poison(n), give(n, mine(op))
			m.run(t, w, func(c spmd.Comm) error { return spmd.AllReduce(c, dst, src, op) })
			m.run(t, w, func(c spmd.Comm) error { return spmd.AllReduce(c, inPlace, inPlace, op) })
			check("AllReduce", op, dst, want)
			check("AllReduce in place", op, inPlace, want)
			check("AllReduce's src", op, src, mine(op))

			root := (n + int(op)) % size
			src, dst = give(n, mine(op)), poison(n)
			m.run(t, w, func(c spmd.Comm) error { return spmd.Reduce(c, dst, src, op, root) })
			if rank == root {
				check("Reduce", op, dst, want)
			} else {
				check("Reduce elsewhere", op, dst, func(int) float64 { return 101 })
			}

			src, dst = give(n*size, mine(op)), poison(n)
			m.run(t, w, func(c spmd.Comm) error { return spmd.ReduceScatter(c, dst, src, op) })
			check("ReduceScatter", op, dst, func(i int) float64 { return want(rank*n + i) })
			m.run(t, w, func(c spmd.Comm) error {
				return spmd.ReduceScatter(c, src.Slice(rank*n, (rank+1)*n), src, op)
			})
			part := give(n, mine(op))
			s := stream(t, w, "copy")
			must(t, spmd.Copy(s, part, src.Slice(rank*n, (rank+1)*n)))
			must(t, s.Close())
			check("ReduceScatter in place", op, part, func(i int) float64 { return want(rank*n + i) })

			if op != spmd.Avg {
				for i, name := range []string{"Scan", "ExScan"} {
					scan, ranks := spmd.Scan[T], rank+1-i // of so many ranks
					want := func(i int) float64 { return reduced(op, ranks, i, bits == 0) }
					if name == "ExScan" {
						scan = spmd.ExScan[T]
					}
					src, dst, inPlace := give(n, mine(op)), poison(n), give(n, mine(op))
					m.run(t, w, func(c spmd.Comm) error { return scan(c, dst, src, op) })
					m.run(t, w, func(c spmd.Comm) error { return scan(c, inPlace, inPlace, op) })
					if ranks == 0 {
						check(name+" on rank 0", op, dst, func(int) float64 { return 101 })
						check(name+" in place on rank 0", op, inPlace, mine(op))
						continue
					}
					check(name, op, dst, want)
					check(name+" in place", op, inPlace, want)
					check(name+"'s src", op, src, mine(op))
				}
			}

			counts := parts(n, size)
			src, dst = give(sumOf(counts), mine(op)), poison(counts[rank])
			m.run(t, w, func(c spmd.Comm) error { return spmd.ReduceScatterV(c, dst, src, counts, op) })
			check("ReduceScatterV", op, dst, func(i int) float64 { return want(sumOf(counts[:rank]) + i) })
		}
	}
	// tag is element i of rank r's data, different for all pairs that are tested.
	tag := func(r, i int) float64 { return float64((r*31 + i*7) % 97) }
	own := func(i int) float64 { return tag(rank, i) }
	for _, n := range moved {
		root := n % size
		b := poison(n)
		if rank == root {
			b = give(n, own)
		}
		m.run(t, w, func(c spmd.Comm) error { return spmd.Broadcast(c, b, root) })
		check("Broadcast", spmd.Sum, b, func(i int) float64 { return tag(root, i) })

		all := func(i int) float64 { return tag(i/max(n, 1), i%max(n, 1)) }
		src, dst := give(n, own), poison(n*size)
		m.run(t, w, func(c spmd.Comm) error { return spmd.AllGather(c, dst, src) })
		check("AllGather", spmd.Sum, dst, all)
		dst = poison(n * size)
		values := make([]T, n)
		must(t, src.CopyTo(values))
		must(t, dst.Slice(rank*n, (rank+1)*n).CopyFrom(values))
		m.run(t, w, func(c spmd.Comm) error { return spmd.AllGather(c, dst, dst.Slice(rank*n, (rank+1)*n)) })
		check("AllGather in place", spmd.Sum, dst, all)

		dst = poison(n * size)
		m.run(t, w, func(c spmd.Comm) error { return spmd.Gather(c, dst, src, root) })
		if rank == root {
			check("Gather", spmd.Sum, dst, all)
		}
		part := poison(n)
		whole := give(n*size, func(i int) float64 { return tag(root, i) })
		m.run(t, w, func(c spmd.Comm) error { return spmd.Scatter(c, part, whole, root) })
		check("Scatter", spmd.Sum, part, func(i int) float64 { return tag(root, rank*n+i) })

		// To rank r go n elements numbered from r*n; from it come those numbered rank*n.
		exchanged := func(i int) float64 { return tag(i/max(n, 1), rank*n+i%max(n, 1)) }
		src, dst = give(n*size, own), poison(n*size)
		m.run(t, w, func(c spmd.Comm) error { return spmd.AllToAll(c, dst, src) })
		check("AllToAll", spmd.Sum, dst, exchanged)
		m.run(t, w, func(c spmd.Comm) error { return spmd.AllToAll(c, src, src) })
		check("AllToAll in place", spmd.Sum, src, exchanged)

		counts := parts(n, size)
		at := func(i int) (r, j int) { // element i of the packed parts is element j of rank r's
			for r = 0; i >= counts[r]; r++ {
				i -= counts[r]
			}
			return r, i
		}
		packed := func(i int) float64 { r, j := at(i); return tag(r, j) }
		src, dst = give(counts[rank], own), poison(sumOf(counts))
		m.run(t, w, func(c spmd.Comm) error { return spmd.AllGatherV(c, dst, src, counts) })
		check("AllGatherV", spmd.Sum, dst, packed)
		dst = poison(sumOf(counts))
		m.run(t, w, func(c spmd.Comm) error { return spmd.GatherV(c, dst, src, counts, root) })
		if rank == root {
			check("GatherV", spmd.Sum, dst, packed)
		}
		part, whole = poison(counts[rank]), give(sumOf(counts), func(i int) float64 { return tag(root, i) })
		m.run(t, w, func(c spmd.Comm) error { return spmd.ScatterV(c, part, whole, counts, root) })
		check("ScatterV", spmd.Sum, part, func(i int) float64 { return tag(root, sumOf(counts[:rank])+i) })

		// Rank a sends (a+b)%3*n elements to rank b.
		pair := func(a, b int) int { return (a + b) % 3 * n }
		out, in := make([]int, size), make([]int, size)
		for r := range size {
			out[r], in[r] = pair(rank, r), pair(r, rank)
		}
		src, dst = give(sumOf(out), own), poison(sumOf(in))
		m.run(t, w, func(c spmd.Comm) error { return spmd.AllToAllV(c, dst, src, in, out) })
		check("AllToAllV", spmd.Sum, dst, func(i int) float64 {
			r := 0
			for ; i >= in[r]; r++ {
				i -= in[r]
			}
			before := 0
			for b := range rank {
				before += pair(r, b)
			}
			return tag(r, before+i)
		})

		right, left := (rank+1)%size, (rank+size-1)%size
		src, dst = give(n, own), poison(n)
		m.run(t, w, func(c spmd.Comm) error { return spmd.SendRecv(c, dst, left, src, right) })
		check("SendRecv", spmd.Sum, dst, func(i int) float64 { return tag(left, i) })
		if m.name == "group" { // all send first: only a group does not wait for ever
			dst = poison(n)
			m.run(t, w, func(c spmd.Comm) error {
				if err := spmd.Send(c, src, right); err != nil {
					return err
				}
				return spmd.Recv(c, dst, left)
			})
			check("Send and Recv", spmd.Sum, dst, func(i int) float64 { return tag(left, i) })
		} else if size > 1 && rank < 2 {
			dst = poison(n)
			m.run(t, w, func(c spmd.Comm) error {
				if rank == 0 {
					return spmd.Send(c, src, 1)
				}
				return spmd.Recv(c, dst, 0)
			})
			if rank == 1 {
				check("Send to Recv", spmd.Sum, dst, func(i int) float64 { return tag(0, i) })
			}
		}
	}
	m.run(t, w, spmd.Barrier)
}

func TestSplitAndMesh(t *testing.T) {
	everyKind(t, everyRanks, func(t *testing.T, w *spmd.World) {
		rank, size := w.Rank(), w.Size()
		// Odd and even ranks apart, in reverse order, by numbers of more than 32 bits.
		c, err := w.Comm().Split(rank%2<<40, -rank<<40)
		must(t, err)
		members := 0
		for r := rank % 2; r < size; r += 2 {
			members++
		}
		if c.Size() != members || c.Rank() != members-1-rank/2 {
			t.Fatalf("rank %d of %d: Split gave rank %d of %d", rank, size, c.Rank(), c.Size())
		}
		x := alloc[int64](t, w, 1)
		x.Set(0, int64(rank))
		must(t, spmd.AllReduce(c, x, x, spmd.Sum))
		want := int64(0)
		for r := rank % 2; r < size; r += 2 {
			want += int64(r)
		}
		if x.At(0) != want {
			t.Fatalf("sum over the part is %d, want %d", x.At(0), want)
		}
		must(t, c.Close())
		must(t, c.Close())
		testkit.Refused(t, spmd.AllReduce(c, x, x, spmd.Sum), "closed")

		only := -1
		if rank == 0 {
			only = 0
		}
		c, err = w.Comm().Split(only, 0)
		must(t, err)
		if rank == 0 {
			must(t, spmd.Barrier(c))
		} else if err := spmd.Barrier(c); err == nil || !strings.Contains(err.Error(), "not in the communicator") {
			t.Fatalf("Barrier outside: %v", err)
		}

		m, err := parallel.NewMesh(w, parallel.Axis{Name: "data", Size: parallel.Fit},
			parallel.Axis{Name: "model", Size: 2 - size%2})
		must(t, err)
		model := 2 - size%2
		if m.Comm("model").Size() != model || m.Coord("model") != rank%model || m.Comm("data").Size() != size/model ||
			m.Coord("data") != rank/model {
			t.Fatalf("rank %d: data %d of %d, model %d of %d", rank, m.Coord("data"),
				m.Comm("data").Size(), m.Coord("model"), m.Comm("model").Size())
		}
		x.Set(0, int64(rank))
		must(t, spmd.AllReduce(m.Comm("data"), x, x, spmd.Max))
		if want := int64((size/model-1)*model + rank%model); x.At(0) != want {
			t.Fatalf("greatest rank of the column is %d, want %d", x.At(0), want)
		}
		for _, tc := range []struct {
			want string
			axes []parallel.Axis
		}{
			{"do not multiply to", nil},
			{fmt.Sprintf("[data %d] do not multiply to the %d ranks", size+1, size),
				[]parallel.Axis{{Name: "data", Size: size + 1}}},
			{"do not multiply to", []parallel.Axis{{Name: "data", Size: size}, {Name: "model", Size: 2}}},
			{"do not multiply to", []parallel.Axis{{Name: "data", Size: parallel.Fit},
				{Name: "model", Size: size + 1}}},
			{"do not multiply to", []parallel.Axis{{Name: "a", Size: 1 << 32}, {Name: "b", Size: 1 << 32}}},
			{`axis "data" of 0 ranks`, []parallel.Axis{{Name: "data"}}},
			{`axis "data" of -2 ranks`, []parallel.Axis{{Name: "data", Size: -2}}},
			{`two axes are named "data"`, []parallel.Axis{{Name: "data", Size: parallel.Fit}, {Name: "data", Size: 1}}},
		} {
			if _, err := parallel.NewMesh(w, tc.axes...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("axes %v: %v, want %q", tc.axes, err, tc.want)
			}
		}
		if w.Nodes() != 1 || w.Node() != 0 || w.LocalRank() != rank || w.LocalSize() != size {
			t.Fatalf("node %d of %d, local rank %d of %d", w.Node(), w.Nodes(), w.LocalRank(), w.LocalSize())
		}
	})
}

// TestRefused is the table of calls that must not reach MPI: each error names both numbers and this
// file.
func TestRefused(t *testing.T) {
	mpirun.Job(t)
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		other, err := spmd.Open(spmdtest.Config())
		must(t, err)
		c, n := w.Comm(), w.Size()
		a3, a4, a12 := alloc[float32](t, w, 3), alloc[float32](t, w, 4), alloc[float32](t, w, 4*n)
		a8 := alloc[float32](t, w, 4*n+4)
		freed, foreign := alloc[float32](t, w, 4), alloc[float32](t, other, 4)
		must(t, freed.Free())
		must(t, freed.Free())
		s, captured := stream(t, w, "s"), stream(t, w, "captured")
		var none spmd.Buffer[float32]
		counts := slices.Repeat([]int{4}, n)
		for _, tc := range []struct {
			name string
			call func(c spmd.Comm) error
			want []string
		}{
			{"AllReduce of unequal lengths", func(c spmd.Comm) error { return spmd.AllReduce(c, a3, a4, spmd.Sum) },
				[]string{"dst has 3", "src 4"}},
			{"AllReduce with no such op", func(c spmd.Comm) error { return spmd.AllReduce(c, a4, a4, 17) },
				[]string{"17"}},
			{"Reduce of unequal lengths", func(c spmd.Comm) error {
				return spmd.Reduce(c, a3, a4, spmd.Sum, c.Rank())
			}, []string{"dst has 3", "src 4"}},
			{"Reduce to no such root", func(c spmd.Comm) error { return spmd.Reduce(c, a4, a4, spmd.Sum, n) },
				[]string{fmt.Sprintf("%d is not in the communicator of %d", n, n)}},
			{"Broadcast from a negative root", func(c spmd.Comm) error { return spmd.Broadcast(c, a4, -1) },
				[]string{"-1", fmt.Sprintf("of %d", n)}},
			{"AllGather", func(c spmd.Comm) error { return spmd.AllGather(c, a3, a4) }, []string{"dst has 3", "src 4"}},
			{"ReduceScatter", func(c spmd.Comm) error { return spmd.ReduceScatter(c, a4, a3, spmd.Sum) },
				[]string{"src has 3", "dst 4"}},
			{"Gather", func(c spmd.Comm) error { return spmd.Gather(c, a3, a4, c.Rank()) },
				[]string{"dst has 3", "src 4"}},
			{"Scatter", func(c spmd.Comm) error { return spmd.Scatter(c, a4, a3, c.Rank()) },
				[]string{"src has 3", "dst 4"}},
			{"AllToAll", func(c spmd.Comm) error { return spmd.AllToAll(c, a4, a3) }, []string{"dst has 4", "src 3"}},
			{"AllGatherV with too few counts", func(c spmd.Comm) error { return spmd.AllGatherV(c, a4, a4, nil) },
				[]string{"0 counts", fmt.Sprintf("%d ranks", n)}},
			{"AllGatherV whose counts do not add up",
				func(c spmd.Comm) error { return spmd.AllGatherV(c, a3, a4, counts) },
				[]string{"dst has 3", fmt.Sprintf("add up to %d", 4*n)}},
			{"GatherV whose counts wrap", func(c spmd.Comm) error {
				return spmd.GatherV(c, none, none, slices.Repeat([]int{math.MaxInt}, n), n-1)
			}, []string{"add up to more than any memory holds"}},
			{"ScatterV whose counts wrap", func(c spmd.Comm) error {
				return spmd.ScatterV(c, none, none, slices.Repeat([]int{math.MaxInt}, n), n-1)
			}, []string{"add up to more than any memory holds"}},
			{"AllToAllV whose counts wrap", func(c spmd.Comm) error {
				many := slices.Repeat([]int{math.MaxInt}, n)
				return spmd.AllToAllV(c, none, none, many, many)
			}, []string{"add up to more than any memory holds"}},
			{"AllGatherV with another own part",
				func(c spmd.Comm) error { return spmd.AllGatherV(c, a12, a3, counts) }, []string{"src has 3", "is 4"}},
			{"Send to no such rank", func(c spmd.Comm) error { return spmd.Send(c, a4, 99) },
				[]string{"99", fmt.Sprintf("of %d", n)}},
			{"SendRecv from no such rank", func(c spmd.Comm) error { return spmd.SendRecv(c, a3, 98, a4, 0) },
				[]string{"98"}},
			{"SendRecv onto itself", func(c spmd.Comm) error { return spmd.SendRecv(c, a4, 0, a4, 0) },
				[]string{"overlap"}},
			{"AllReduce of overlapping parts",
				func(c spmd.Comm) error { return spmd.AllReduce(c, a4.Slice(0, 3), a4.Slice(1, 4), spmd.Sum) },
				[]string{"overlap"}},
			{"AllGather from what is no rank's part",
				func(c spmd.Comm) error { return spmd.AllGather(c, a8.Slice(0, 4*n), a8.Slice(2, 6)) },
				[]string{"overlap"}},
			{"AllToAllV in place", func(c spmd.Comm) error { return spmd.AllToAllV(c, a12, a12, counts, counts) },
				[]string{"overlap"}},
			{"a freed buffer", func(c spmd.Comm) error { return spmd.AllReduce(c, freed, freed, spmd.Sum) },
				[]string{"16 bytes", "freed at spmd/collective_test.go:"}},
			{"another world's buffer", func(c spmd.Comm) error { return spmd.AllReduce(c, a4, foreign, spmd.Sum) },
				[]string{"16 bytes", "another world"}},
			{"a Copy of unequal lengths", func(spmd.Comm) error { return spmd.Copy(s, a3, a4) },
				[]string{"dst has 3", "src 4"}},
			{"a Fill of a freed buffer", func(spmd.Comm) error { return spmd.Fill(s, freed, 1) }, []string{"freed at"}},
			{"CopyFrom of another length", func(spmd.Comm) error { return a4.CopyFrom(make([]float32, 5)) },
				[]string{"4", "5"}},
			{"CopyTo of a freed buffer", func(spmd.Comm) error { return freed.CopyTo(make([]float32, 4)) },
				[]string{"freed at"}},
			{"Free of a part", func(spmd.Comm) error { return a4.Slice(0, 2).Free() }, []string{"[0:2]"}},
			{"a collective of the zero Comm", func(spmd.Comm) error { return spmd.Barrier(spmd.Comm{}) },
				[]string{"zero Comm"}},
		} {
			for _, how := range []struct {
				name string
				err  error
			}{
				{"blocking", tc.call(c)},
				{"on a stream", tc.call(c.On(s))},
				{"captured", func() error {
					_, err := captured.Capture(func() error { return tc.call(c.On(captured)) })
					return err
				}()},
			} {
				if how.err == nil {
					t.Errorf("%s, %s: accepted", tc.name, how.name)
					continue
				}
				for _, want := range append(tc.want, "spmd/collective_test.go:") {
					if !strings.Contains(how.err.Error(), want) {
						t.Errorf("%s, %s: %q does not say %q", tc.name, how.name, how.err, want)
					}
				}
			}
		}
		if _, err := spmd.Alloc[float64](w, -1); err == nil {
			t.Error("Alloc of -1 elements was accepted")
		}
		if _, err := spmd.Alloc[float64](w, math.MaxInt/4); err == nil {
			t.Error("Alloc of more bytes than there are addresses was accepted")
		}
		if n > 1 {
			if _, err := spmd.AllocSymmetric[float32](w, 4+w.Rank()); err == nil ||
				!strings.Contains(err.Error(), fmt.Sprintf("from 4 to %d", 3+n)) {
				t.Errorf("AllocSymmetric of unequal lengths: %v", err)
			}
		}
		if err := spmd.AllReduce(c, none, none, spmd.Sum); err != nil {
			t.Errorf("AllReduce of nothing: %v", err)
		}
		must(t, other.Close())
	})
}
