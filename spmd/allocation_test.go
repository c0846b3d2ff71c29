package spmd_test

import (
	"errors"
	"path/filepath"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/spmdtest"
)

func TestNoAllocation(t *testing.T) { noAllocation(t) }

// The notes of each call allocate nothing either.
func TestNoAllocationSummary(t *testing.T) {
	t.Setenv("SPMDTEST_SUMMARY", "on")
	noAllocation(t)
}

func TestNoAllocationTrace(t *testing.T) {
	t.Setenv("SPMDTEST_TRACE", filepath.Join(t.TempDir(), "t.json"))
	noAllocation(t)
}

func noAllocation(t *testing.T) {
	t.Helper()
	spmdtest.RunUnwatched(t, []int{2}, func(t *testing.T, w *spmd.World) {
		if !w.OnHost() && w.Collectives() != "nccl" {
			t.Skipf("%s: calls wait in a list until their streams have come to them", w.Collectives())
		}
		dst, src, half := alloc[float32](t, w, 6), alloc[float32](t, w, 6), alloc[spmd.BF16](t, w, 3)
		s := stream(t, w, "s")
		calls := append(everyCall(3), calling{coll.Group, func(c spmd.Comm, dst, src floats, _ int) error {
			return c.Group(func() error {
				return errors.Join(spmd.Send(c, src, 1-w.Rank()), spmd.Recv(c, dst, 1-w.Rank()),
					spmd.AllReduce(c, half, half, spmd.Avg))
			})
		}})
		for _, call := range calls {
			do := func(c spmd.Comm) { must(t, call.do(c, dst, src, 0)) }
			if got := testkit.Allocations(50, func() { do(w.Comm()) }); got != 0 {
				t.Errorf("%v allocates %v times", call.kind, got)
			}
			on := w.Comm().On(s)
			if got := testkit.Allocations(50, func() {
				for range 8 {
					do(on)
				}
				must(t, s.Synchronize())
			}); got != 0 {
				t.Errorf("%v on a stream allocates %v times", call.kind, got)
			}
		}
	})
}
