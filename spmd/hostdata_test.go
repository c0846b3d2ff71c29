package spmd_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/spmdtest"
)

// TestHostData: numbers, slices and values of the host, beside work on the device that has not run.
func TestHostData(t *testing.T) { everyWay(t, hostData) }

func hostData(t *testing.T, w *spmd.World) {
	reduceNumbers(t, w, plain[int8]())
	reduceNumbers(t, w, plain[uint8]())
	reduceNumbers(t, w, plain[int32]())
	reduceNumbers(t, w, plain[uint32]())
	reduceNumbers(t, w, plain[int64]())
	reduceNumbers(t, w, plain[uint64]())
	reduceNumbers(t, w, plain[float32]())
	reduceNumbers(t, w, plain[float64]())
	reduceNumbers(t, w, half())
	reduceNumbers(t, w, brain())

	ranks, me := w.Size(), w.Rank()
	total, err := hostdata.AllReduce(w.Comm(), me-1, spmd.Sum)
	must(t, err)
	if want := ranks*(ranks-1)/2 - ranks; total != want {
		t.Errorf("the sum of ints is %d, want %d", total, want)
	}
	most, err := hostdata.AllReduce(w.Comm(), uint(math.MaxUint)-uint(me), spmd.Max)
	must(t, err)
	if most != math.MaxUint {
		t.Errorf("the greatest of uints is %d", most)
	}
	for root := range ranks {
		got, err := hostdata.Broadcast(w.Comm(), 1e300*float64(me+1), root)
		must(t, err)
		if got != 1e300*float64(root+1) {
			t.Errorf("from rank %d came %v", root, got)
		}
	}
	all, err := hostdata.AllGather(w.Comm(), int32(-me))
	must(t, err)
	for r, x := range all {
		if len(all) != ranks || int(x) != -r {
			t.Errorf("gathered %v", all)
		}
	}
	for have := range 1 << ranks { // the set of ranks that say yes
		got, err := hostdata.Any(w.Comm(), have>>me&1 != 0)
		must(t, err)
		if got != (have != 0) {
			t.Errorf("Any of the ranks %b is %v", have, got)
		}
	}
	hostSlices(t, w)
	hostMoves(t, w)
	hostBits(t, w)
	hostLocations(t, w)
	hostValues(t, w)
}

// reduceNumbers compares reductions of a type, of one number and of slices, with float64.
func reduceNumbers[T spmd.Elem](t *testing.T, w *spmd.World, num number[T]) {
	t.Helper()
	ranks, me := w.Size(), w.Rank()
	combine := func(op spmd.Op, a, b float64) float64 {
		switch op {
		case spmd.Prod:
			return a * b
		case spmd.Min:
			return min(a, b)
		case spmd.Max:
			return max(a, b)
		}
		return a + b
	}
	for _, op := range []spmd.Op{spmd.Sum, spmd.Prod, spmd.Min, spmd.Max} {
		x, err := hostdata.AllReduce(w.Comm(), num.of(input(op, me, 0)), op)
		must(t, err)
		want := input(op, 0, 0)
		for r := 1; r < ranks; r++ {
			want = combine(op, want, input(op, r, 0))
		}
		if num.to(x) != want {
			t.Errorf("%v of %T: %v, want %v", op, x, num.to(x), want)
		}
		for _, n := range []int{0, 1, 300, 1100} { // in one message, and longer
			for have := range 1 << ranks { // the set of ranks that have something
				dst, src := make([]T, n), make([]T, n)
				for i := range src {
					src[i], dst[i] = num.of(input(op, me, i)), num.of(3)
				}
				mine := have>>me&1 != 0
				if !mine {
					src = nil
				}
				any, err := hostdata.AllReduceIf(w.Comm(), mine, dst, src, op)
				must(t, err)
				if any != (have != 0) {
					t.Fatalf("%v of %d %T of the ranks %b: any is %v", op, n, x, have, any)
				}
				for i := range dst {
					want, first := 3.0, true
					for r := range ranks {
						switch {
						case have>>r&1 == 0:
						case first:
							want, first = input(op, r, i), false
						default:
							want = combine(op, want, input(op, r, i))
						}
					}
					if num.to(dst[i]) != want {
						t.Fatalf("%v of %d %T of the ranks %b: [%d] is %v, want %v", op, n, x, have, i,
							num.to(dst[i]), want)
					}
				}
			}
		}
	}
}

func hostSlices(t *testing.T, w *spmd.World) {
	ranks, me := w.Size(), w.Rank()
	for _, n := range []int{0, 1, 100_000} {
		src, dst := make([]float64, n), make([]float64, n)
		for i := range src {
			src[i] = float64(i * (me + 1))
		}
		check := func(what string, got []float64, factor int) {
			for i, x := range got {
				if x != float64(i*factor) {
					t.Fatalf("%s of %d: [%d] is %v, want %d", what, n, i, x, i*factor)
				}
			}
		}
		must(t, hostdata.AllReduceSlice(w.Comm(), dst, src, spmd.Sum))
		check("AllReduceSlice", dst, ranks*(ranks+1)/2)
		check("src", src, me+1)
		root := ranks - 1
		to := dst
		if me != root {
			to = nil
		}
		clear(dst)
		must(t, hostdata.ReduceSlice(w.Comm(), to, src, spmd.Max, root))
		if me == root {
			check("ReduceSlice", dst, ranks)
		}
		must(t, hostdata.AllReduceSlice(w.Comm(), src, src, spmd.Max))
		check("AllReduceSlice in place", src, ranks)
	}
}

// shape is an interface; gob knows none of its types.
type shape interface{ Name() string }

// Settings has fields of several kinds.
type Settings struct {
	Text  string
	Sizes map[string][]int
	Next  *Settings
}

// Name implements shape.
func (s Settings) Name() string { return s.Text }

type closed struct{ x int }

func hostValues(t *testing.T, w *spmd.World) {
	ranks, me := w.Size(), w.Rank()
	made := func(rank int) Settings {
		return Settings{Text: strings.Repeat("x", 10_000*rank), Sizes: map[string][]int{"rank": {rank, -rank}},
			Next: &Settings{Text: "last"}}
	}
	same := func(a, b Settings) bool {
		return a.Text == b.Text && fmt.Sprint(a.Sizes) == fmt.Sprint(b.Sizes) && a.Next != nil &&
			a.Next.Text == b.Next.Text
	}
	for root := range ranks {
		got, err := hostdata.Broadcast(w.Comm(), made(me), root)
		must(t, err)
		if !same(got, made(root)) {
			t.Errorf("from rank %d came %.200v", root, got)
		}
	}
	all, err := hostdata.AllGather(w.Comm(), made(me))
	must(t, err)
	if len(all) != ranks {
		t.Fatalf("%d values of %d ranks", len(all), ranks)
	}
	for r := range all {
		if !same(all[r], made(r)) {
			t.Errorf("rank %d gave %.200v", r, all[r])
		}
	}
	empty, err := hostdata.Broadcast(w.Comm(), []string{}, 0)
	must(t, err)
	if len(empty) != 0 {
		t.Errorf("of no strings came %v", empty)
	}
	zero := 0
	type pointers struct{ Zero, Nil *int }
	if got, err := hostdata.Broadcast(w.Comm(), pointers{Zero: &zero}, 0); err != nil ||
		got.Zero == nil || *got.Zero != 0 || got.Nil != nil {
		t.Errorf("of a pointer to 0 and none came %v, %v", got, err)
	}
	if got, err := hostdata.Broadcast[*int](w.Comm(), nil, 0); err != nil || got != nil {
		t.Errorf("of a nil pointer came %v, %v", got, err)
	}
	// A value that cannot be carried fails alike on every rank, whoever has it, and nobody is left
	// waiting.
	last := ranks - 1
	_, one := hostdata.Broadcast(w.Comm(), func() {}, last)
	_, two := hostdata.Broadcast(w.Comm(), closed{me}, last)
	_, three := hostdata.Broadcast[shape](w.Comm(), made(0), last) // not registered
	var four error
	if me == last {
		_, four = hostdata.AllGather(w.Comm(), math.NaN)
	} else {
		_, four = hostdata.AllGather(w.Comm(), func(float64) float64 { return 0 })
	}
	for i, err := range []error{one, two, three} {
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("hostdata.Broadcast: rank %d: ", last)) ||
			!strings.Contains(err.Error(), "hostdata_test.go:") {
			t.Errorf("value %d: %v", i, err)
		}
	}
	if four == nil || !strings.Contains(four.Error(), "hostdata.AllGather: rank 0: a value of type func(") {
		t.Error(four)
	}
}

// TestRounds: the example's ranks have work for 3, 2, 1, 3 ... rounds.
func TestRounds(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 4}, func(t *testing.T, w *spmd.World) {
		got, err := addRounds(w, []float64{3, 4, 5}[w.Rank()%3:])
		must(t, err)
		if want := map[int][]float64{1: {9, 25}, 2: {9, 25, 25},
			4: {9 + 25 + 9, 25, 25 + 25}}[w.Size()]; !slices.Equal(got, want) {
			t.Errorf("%d ranks: %v, want %v", w.Size(), got, want)
		}
	})
}

// TestHostDataRefused: a bad call is refused before anything is sent.
func TestHostDataRefused(t *testing.T) {
	spmdtest.Run(t, []int{1, 2}, func(t *testing.T, w *spmd.World) {
		c, x := w.Comm(), []int32{1, 2, 3}
		_, zero := hostdata.AllReduce(spmd.Comm{}, 1, spmd.Sum)
		_, op := hostdata.AllReduce(c, 1, 77)
		_, _, location := hostdata.MinLoc(spmd.Comm{}, 1)
		buffer := alloc[int32](t, w, 1)
		_, root := hostdata.Broadcast(c, 1, 9)
		_, object := hostdata.Broadcast(c, 1, -1)
		_, long := hostdata.AllReduceIf(c, true, x, x[:2], spmd.Sum)
		_, avg := hostdata.AllReduceIf(c, true, x, x, spmd.Avg)
		s := stream(t, w, "s")
		_, captured := s.Capture(func() error { _, err := hostdata.Any(c, true); return err })
		_, value := s.Capture(func() error { _, err := hostdata.AllGather(c, 1); return err })
		for _, tc := range []struct {
			err  error
			want string
		}{
			{zero, "hostdata.AllReduce: the zero Comm"},
			{op, "hostdata.AllReduce: no such operation: elem.Op(77) of int64"},
			{root, "hostdata.Broadcast: rank 9 is not in the communicator of"},
			{object, "hostdata.Broadcast: rank -1 is not in the communicator of"},
			{long, "dst has 3 elements, src 2"},
			{avg, "avg is no operation of it"},
			{captured, "hostdata.Any blocks, and stands in the middle of a capture"},
			{value, "hostdata.AllGather blocks, and stands in the middle of a capture"},
			{hostdata.AllReduceSlice(c, x[:2], x, spmd.Sum), "AllReduceSlice: dst has 2 elements, src 3"},
			{hostdata.AllReduceSlice(c, x[:2], x[1:], spmd.Sum), "dst of 2 elements and src of 2 overlap"},
			{hostdata.ReduceSlice(c, nil, x, spmd.Sum, -1), "rank -1 is not in the communicator"},
			{hostdata.AllReduceSlice(c, []float32{1}, []float32{1}, hostdata.And),
				"AllReduceSlice: no such operation: and of float32"},
			{hostdata.AllReduceSlice(c, []spmd.F8E4M3{1}, []spmd.F8E4M3{1}, spmd.Sum),
				"no such operation: sum of float8_e4m3"},
			{spmd.AllReduce(c, buffer, buffer, hostdata.Xor), "AllReduce: no such operation of buffers: xor"},
			{hostdata.AllGatherSlice(c, x[:0], x), "AllGatherSlice: dst has 0 elements, src 3 on each of"},
			{hostdata.GatherSlice(c, x, x[:0], c.Rank()), "GatherSlice: dst has 3 elements, src 0 on each of"},
			{hostdata.ScatterSlice(c, x, x[:2], c.Rank()), "ScatterSlice: src has 2 elements, dst 3 on each of"},
			{hostdata.ScatterSlice(c, x, nil, 7), "rank 7 is not in the communicator"},
			{hostdata.BroadcastSlice(spmd.Comm{}, x, 0), "BroadcastSlice: the zero Comm"},
			{hostdata.AllGatherSlice(spmd.Comm{}, x, nil), "AllGatherSlice: the zero Comm"},
			{location, "MinLoc: the zero Comm"},
		} {
			if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) ||
				!strings.Contains(tc.err.Error(), "hostdata_test.go:") {
				t.Errorf("%v, want %q", tc.err, tc.want)
			}
		}
	})
}

// TestHostDataOrder: the host's calls and those that streams make later keep one order on all
// ranks.
func TestHostDataOrder(t *testing.T) {
	spmdtest.Run(t, []int{3}, func(t *testing.T, w *spmd.World) {
		s := stream(t, w, "s")
		x := alloc[int64](t, w, 1000)
		must(t, x.SetAll(1))
		for i := range 50 {
			must(t, spmd.AllReduce(w.Comm().On(s), x, x, spmd.Max))
			got, err := hostdata.AllReduce(w.Comm(), i*w.Rank(), spmd.Max)
			must(t, err)
			if got != 2*i {
				t.Fatalf("%d, want %d", got, 2*i)
			}
		}
		must(t, errors.Join(s.Synchronize(), s.Close()))
	})
}

// TestHostDataAllocatesNothing is for the calls of a program in each step.
func TestHostDataAllocatesNothing(t *testing.T) {
	spmdtest.RunUnwatched(t, []int{2}, func(t *testing.T, w *spmd.World) {
		x := make([]float64, 100)
		for _, tc := range []struct {
			name string
			call func() error
		}{
			{"AllReduce", func() error { _, err := hostdata.AllReduce(w.Comm(), 1, spmd.Sum); return err }},
			{"Broadcast", func() error { _, err := hostdata.Broadcast(w.Comm(), 1.5, 0); return err }},
			{"Any", func() error { _, err := hostdata.Any(w.Comm(), true); return err }},
			{"AllReduceSlice", func() error { return hostdata.AllReduceSlice(w.Comm(), x, x, spmd.Max) }},
			{"AllGatherSlice", func() error {
				return hostdata.AllGatherSlice(w.Comm(), x, x[50*w.Rank():50*w.Rank()+50])
			}},
			{"MinLoc", func() error { _, _, err := hostdata.MinLoc(w.Comm(), 1.5); return err }},
			{"AllReduceIf", func() error {
				_, err := hostdata.AllReduceIf(w.Comm(), true, x, x, spmd.Max)
				return err
			}},
		} {
			if got := testkit.Allocations(50, func() { must(t, tc.call()) }); got != 0 {
				t.Errorf("%s allocates %v times", tc.name, got)
			}
		}
	})
}

// TestHostDataMismatch: --check compares calls on host memory as it does others.
func TestHostDataMismatch(t *testing.T) {
	spmdtest.HostOnly(t, "the host compares")
	t.Parallel()
	status, out := run(t, 2, "different numbers", nil, "--check=on")
	if status == 0 || !slices.ContainsFunc(strings.Split(out, "\n"), func(l string) bool {
		return strings.Contains(l, "the ranks called different collectives") &&
			strings.Contains(l, "AllReduce of 1 int64, sum") && strings.Contains(l, "AllReduce of 1 float64, max")
	}) {
		t.Errorf("status %d\n%s", status, out)
	}
}

// differentNumbers makes the last rank reduce something else.
func differentNumbers(w *spmd.World) error {
	if w.Rank() == w.Size()-1 {
		_, err := hostdata.AllReduce(w.Comm(), 1.0, spmd.Max)
		return err
	}
	_, err := hostdata.AllReduce(w.Comm(), 1, spmd.Sum)
	return err
}
