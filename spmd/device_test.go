package spmd_test

import (
	"bytes"
	"fmt"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/managed"
	"lockstep/spmd/parallel"
	"lockstep/spmd/spmdtest"
)

// TestManyReplays leaves everything open: the world closes graphs before the communicators whose
// collectives they hold, or NCCL would wait for ever.
func TestManyReplays(t *testing.T) {
	spmdtest.Run(t, everyRanks, func(t *testing.T, w *spmd.World) {
		const replays = 1000
		main, side := stream(t, w, "main"), stream(t, w, "side")
		sum, all := alloc[int64](t, w, 3), alloc[int64](t, w, 1)
		must(t, sum.SetAll(0))
		part, err := w.Comm().Split(w.Rank()%2, w.Rank())
		must(t, err)
		g, err := main.Capture(func() error {
			if err := side.After(main); err != nil {
				return err
			}
			if err := spmd.Fill(main, all, 1); err != nil {
				return err
			}
			if err := spmd.AllReduce(w.Comm().On(main), all, all, spmd.Sum); err != nil {
				return err
			}
			if err := spmd.Broadcast(part.On(side), sum.Slice(0, 2), part.Size()-1); err != nil {
				return err
			}
			return main.After(side)
		})
		must(t, err)
		if w.Rank() >= w.Size()-2 { // the last ranks of both parts
			must(t, sum.CopyFrom([]int64{int64(w.Rank()), 7, 0}))
		}
		for range replays {
			must(t, g.Launch(main))
		}
		must(t, main.Synchronize())
		if all.At(0) != int64(w.Size()) {
			t.Errorf("sum over the ranks is %d, want %d", all.At(0), w.Size())
		}
		last := w.Size() - 1
		if last%2 != w.Rank()%2 {
			last--
		}
		if sum.At(0) != int64(last) || sum.At(1) != 7 {
			t.Errorf("rank %d got %d, %d from the last rank of its part, want %d, 7", w.Rank(), sum.At(0),
				sum.At(1), last)
		}
	})
}

// TestGraphsBesideCalls launches two graphs with collectives of one communicator and calls
// collectives of it on three streams that nothing else orders. NCCL does not order them if spmd
// says that it need not.
func TestGraphsBesideCalls(t *testing.T) {
	spmdtest.Run(t, everyRanks, func(t *testing.T, w *spmd.World) {
		const n, rounds = 100_000, 50
		type lane struct {
			s      *spmd.Stream
			x, sum spmd.Buffer[float32]
		}
		lanes := make([]lane, 3)
		work := func(l *lane) error { // sum += the ranks' numbers from 1, added up
			if err := spmd.Fill(l.s, l.x, float32(w.Rank()+1)); err != nil {
				return err
			}
			if err := spmd.AllReduce(w.Comm().On(l.s), l.x, l.x, spmd.Sum); err != nil {
				return err
			}
			return addTo.Launch(l.s, spmd.Cover1D(n, 256), l.sum.Arg(), l.x.Arg(), spmd.F32(1), spmd.I32(n))
		}
		graphs := make([]*spmd.Graph, 2)
		for i := range lanes {
			l := &lanes[i]
			*l = lane{stream(t, w, "lane"), alloc[float32](t, w, n), fill(t, w, n, 0)}
			if i < len(graphs) {
				var err error
				graphs[i], err = l.s.Capture(func() error { return work(l) })
				must(t, err)
			}
		}
		for range rounds {
			must(t, graphs[0].Launch(lanes[0].s))
			must(t, work(&lanes[2]))
			must(t, graphs[1].Launch(lanes[1].s))
			must(t, work(&lanes[2]))
		}
		for i, want := range []int{rounds, rounds, 2 * rounds} {
			must(t, lanes[i].s.Synchronize())
			got := make([]float32, n)
			must(t, lanes[i].sum.CopyTo(got))
			want *= w.Size() * (w.Size() + 1) / 2
			for j, v := range got {
				if v != float32(want) {
					t.Fatalf("lane %d: [%d] = %v, want %d", i, j, v, want)
				}
			}
		}
	})
}

// TestCommunicatorsSideBySide has three communicators at work on three streams at
// the same time, each needing every other rank.
func TestCommunicatorsSideBySide(t *testing.T) {
	everyWay(t, func(t *testing.T, w *spmd.World) {
		const n, rounds = 100_000, 30
		rank, size := w.Rank(), w.Size()
		halves, err := w.Comm().Split(rank%2, rank)
		must(t, err)
		turned, err := w.Comm().Split(0, -rank)
		must(t, err)
		comms := []spmd.Comm{w.Comm(), halves, turned}
		var bufs []spmd.Buffer[float64]
		var streams []*spmd.Stream
		for i := range comms {
			bufs = append(bufs, alloc[float64](t, w, n))
			must(t, bufs[i].SetAll(1))
			streams = append(streams, stream(t, w, "stream"))
			comms[i] = comms[i].On(streams[i])
		}
		for range rounds {
			for i, c := range comms {
				must(t, spmd.AllReduce(c, bufs[i], bufs[i], spmd.Max))
				must(t, spmd.AllReduce(c, bufs[i], bufs[i], spmd.Avg))
			}
		}
		for i, c := range comms {
			must(t, spmd.AllReduce(c, bufs[i], bufs[i], spmd.Sum))
		}
		for i, c := range comms {
			got := make([]float64, n)
			must(t, streams[i].Synchronize())
			must(t, bufs[i].CopyTo(got))
			want := float64(c.Size())
			for j, x := range got {
				if x < want*(1-1e-12) || x > want*(1+1e-12) {
					t.Fatalf("communicator %d of %d ranks: [%d] = %v, want %v", i, size, j, x, want)
				}
			}
		}
	})
}

// same compares two buffers, a part at a time.
func same(x, y spmd.Buffer[uint8]) error {
	const chunk = 1 << 26
	a, b := make([]uint8, chunk), make([]uint8, chunk)
	for at := 0; at < x.Len(); at += chunk {
		n := min(chunk, x.Len()-at)
		if err := x.Slice(at, at+n).CopyTo(a[:n]); err != nil {
			return err
		}
		if err := y.Slice(at, at+n).CopyTo(b[:n]); err != nil {
			return err
		}
		if !bytes.Equal(a[:n], b[:n]) {
			return fmt.Errorf("the buffers differ between %d and %d", at, at+n)
		}
	}
	return nil
}

// TestBeyond2GiB moves more elements, and more bytes, than 32 bits can count. On
// the host cudampi's tests do so.
func TestBeyond2GiB(t *testing.T) {
	if spmdtest.Device() == "host" {
		t.Skip("on a GPU only: the host's memory is too small for it")
	}
	spmdtest.Run(t, everyRanks, func(t *testing.T, w *spmd.World) {
		const n = 1<<31 + 5
		rank, size := w.Rank(), w.Size()
		s := stream(t, w, "s")
		on := w.Comm().On(s)
		x, y := alloc[uint8](t, w, n), alloc[uint8](t, w, n)
		ends := []int{0, 1, 1<<31 - 1, 1 << 31, n - 1}
		check := func(what string, b spmd.Buffer[uint8], at func(i int) uint8) {
			t.Helper()
			must(t, s.Synchronize())
			for _, i := range ends {
				if got := b.At(i); got != at(i) {
					t.Fatalf("%s: [%d] = %d, want %d", what, i, got, at(i))
				}
			}
		}
		tag := func(r, i int) uint8 { return uint8(3*r + i%7) }
		give := func(b spmd.Buffer[uint8]) {
			must(t, b.SetAll(uint8(rank+1)))
			for _, i := range ends {
				b.Set(i, tag(rank, i))
			}
		}
		sum := func(i int) uint8 {
			v := uint8(0)
			for r := range size {
				v += tag(r, i)
			}
			return v
		}
		give(x)
		must(t, spmd.AllReduce(on, y, x, spmd.Sum))
		check("AllReduce", y, sum)
		must(t, parallel.CheckSame(w.Comm(), "the sum", y)) // all of it, on all ranks
		must(t, x.SetAll(uint8(size*(size+1)/2)))
		for _, i := range ends {
			x.Set(i, sum(i))
		}
		must(t, same(x, y))
		give(x)
		must(t, spmd.Broadcast(on, x, size-1))
		check("Broadcast", x, func(i int) uint8 { return tag(size-1, i) })
		give(x)
		must(t, spmd.SendRecv(on, y, (rank+size-1)%size, x, (rank+1)%size))
		check("SendRecv", y, func(i int) uint8 { return tag((rank+size-1)%size, i) })
		part := n / size
		must(t, spmd.AllGather(on, y.Slice(0, part*size), x.Slice(n-part, n)))
		must(t, s.Synchronize())
		for r := range size { // the last element of each rank's part
			if got := y.At((r+1)*part - 1); got != tag(r, n-1) {
				t.Fatalf("AllGather: the end of rank %d's part is %d, want %d", r, got, tag(r, n-1))
			}
		}
		must(t, spmd.ReduceScatter(on, y.Slice(0, part), x.Slice(n-part*size, n), spmd.Max))
		must(t, s.Synchronize())
		want := uint8(size)
		if rank == size-1 {
			want = tag(size-1, n-1)
		}
		if got := y.At(part - 1); got != want {
			t.Fatalf("ReduceScatter: the end of the part is %d, want %d", got, want)
		}
	})
}

// TestKindsOfMemory puts collectives, fills and copies on every kind of memory.
func TestKindsOfMemory(t *testing.T) {
	spmdtest.Run(t, everyRanks, func(t *testing.T, w *spmd.World) {
		s := stream(t, w, "s")
		for _, kind := range []struct {
			name  string
			alloc func(*spmd.World, int) (spmd.Buffer[int64], error)
			host  bool
		}{
			{"device", spmd.Alloc[int64], false},
			{"symmetric", spmd.AllocSymmetric[int64], false},
			{"pinned", spmd.AllocPinned[int64], true},
			{"managed", managed.Alloc[int64], true},
		} {
			for round := range 2 { // the second on memory that was freed
				for _, n := range []int{0, 1, 1001, 1<<20 + 1} {
					x, err := kind.alloc(w, n)
					must(t, err)
					z := alloc[int64](t, w, n)
					must(t, x.SetAll(-1))
					must(t, spmd.Fill(s, x, int64(w.Rank()+round)))
					must(t, spmd.AllReduce(w.Comm().On(s), x, x, spmd.Sum))
					must(t, spmd.Copy(s, z, x))
					must(t, s.Synchronize())
					want := int64(w.Size()*(w.Size()-1)/2 + w.Size()*round)
					got := make([]int64, n)
					if must(t, z.CopyTo(got)); kind.host {
						copy(got[n/2:], x.Host()[n/2:])
					}
					for i, v := range got {
						if v != want {
							t.Fatalf("%s memory of %d, round %d: [%d] = %d, want %d", kind.name, n, round, i, v, want)
						}
					}
					must(t, x.Free())
					must(t, z.Free())
				}
			}
		}
	})
}
