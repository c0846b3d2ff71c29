package spmd_test

import (
	"path/filepath"
	"slices"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
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
		n := w.Size()
		one, all := alloc[float32](t, w, 3), alloc[float32](t, w, 3*n)
		all2, half := alloc[float32](t, w, 3*n), alloc[spmd.BF16](t, w, 3)
		counts := slices.Repeat([]int{3}, n)
		s := stream(t, w, "s")
		peer := n - 1 - w.Rank()
		for _, tc := range []struct {
			name string
			call func(c spmd.Comm) error
		}{
			{"AllReduce", func(c spmd.Comm) error { return spmd.AllReduce(c, one, one, spmd.Sum) }},
			{"AllReduce of bfloat16", func(c spmd.Comm) error { return spmd.AllReduce(c, half, half, spmd.Avg) }},
			{"Reduce", func(c spmd.Comm) error { return spmd.Reduce(c, one, one, spmd.Sum, 0) }},
			{"Broadcast", func(c spmd.Comm) error { return spmd.Broadcast(c, one, 0) }},
			{"AllGather", func(c spmd.Comm) error { return spmd.AllGather(c, all, one) }},
			{"ReduceScatter", func(c spmd.Comm) error { return spmd.ReduceScatter(c, one, all, spmd.Max) }},
			{"AllToAll", func(c spmd.Comm) error { return spmd.AllToAll(c, all2, all) }},
			{"Gather", func(c spmd.Comm) error { return spmd.Gather(c, all, one, 0) }},
			{"Scatter", func(c spmd.Comm) error { return spmd.Scatter(c, one, all, 0) }},
			{"AllGatherV", func(c spmd.Comm) error { return spmd.AllGatherV(c, all, one, counts) }},
			{"ReduceScatterV", func(c spmd.Comm) error { return spmd.ReduceScatterV(c, one, all, counts, spmd.Sum) }},
			{"GatherV", func(c spmd.Comm) error { return spmd.GatherV(c, all, one, counts, 0) }},
			{"ScatterV", func(c spmd.Comm) error { return spmd.ScatterV(c, one, all, counts, 0) }},
			{"AllToAllV", func(c spmd.Comm) error { return spmd.AllToAllV(c, all2, all, counts, counts) }},
			{"SendRecv", func(c spmd.Comm) error { return spmd.SendRecv(c, all.Slice(0, 3), peer, one, peer) }},
			{"Scan", func(c spmd.Comm) error { return spmd.Scan(c, one, one, spmd.Max) }},
			{"Barrier", spmd.Barrier},
			{"Group", func(c spmd.Comm) error {
				return c.Group(func() error {
					if err := spmd.Send(c, one, peer); err != nil {
						return err
					}
					return spmd.Recv(c, all.Slice(0, 3), peer)
				})
			}},
		} {
			if got := testkit.Allocations(func() {
				if err := tc.call(w.Comm()); err != nil {
					t.Error(err)
				}
			}); got != 0 {
				t.Errorf("%s allocates %v times", tc.name, got)
			}
			on := w.Comm().On(s)
			if got := testkit.Allocations(func() {
				for range 8 {
					if err := tc.call(on); err != nil {
						t.Error(err)
					}
				}
				if err := s.Synchronize(); err != nil {
					t.Error(err)
				}
			}); got != 0 {
				t.Errorf("%s on a stream allocates %v times", tc.name, got)
			}
		}
	})
}
