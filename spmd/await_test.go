package spmd_test

import (
	"errors"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// TestAwait: results are there when Await returns, also results that are the mark of missing ones,
// in calls and in a graph, and in memory that is not the host's.
func TestAwait(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3}, func(t *testing.T, w *spmd.World) {
		s := stream(t, w, "s")
		pinned, err := spmd.AllocPinned[uint32](w, 3)
		must(t, err)
		plain, err := spmd.Alloc[uint32](w, 3)
		must(t, err)
		sum := func() error { return spmd.AllReduce(w.Comm().On(s), pinned, plain, spmd.Sum) }
		g, err := s.Capture(sum)
		must(t, err)
		for i := range 300 {
			v := uint32(i)
			if i%100 == 50 {
				v = 0x7ff7a55a / uint32(w.Size()) // the sum of one rank, and of 2, is the mark
			}
			must(t, spmd.Fill(s, plain, v))
			step := sum
			if i%2 == 0 {
				step = func() error { return g.Launch(s) }
			}
			must(t, spmd.Await(s, pinned, step))
			for k, got := range pinned.Host() {
				if want := v * uint32(w.Size()); got != want {
					t.Fatalf("round %d: [%d] is %#x, want %#x", i, k, got, want)
				}
			}
		}
		must(t, spmd.Await(s, plain, func() error { return spmd.Fill(s, plain, 7) }))
		out := make([]uint32, 3)
		must(t, plain.CopyTo(out))
		if out[0] != 7 || out[2] != 7 {
			t.Errorf("Await of memory of the device: %v", out)
		}
		failure := errors.New("no work")
		if err := spmd.Await(s, pinned, func() error { return failure }); !errors.Is(err, failure) {
			t.Errorf("%v, want the error of what enqueues", err)
		}
		if _, err := s.Capture(func() error { return spmd.Await(s, pinned, sum) }); err == nil {
			t.Error("a wait may be captured")
		}
		must(t, g.Close())
		must(t, s.Synchronize())
		must(t, pinned.Free())
		if err := spmd.Await(s, pinned, sum); err == nil {
			t.Error("memory that was freed is awaited")
		}
	})
}
