package spmd_test

import (
	"context"
	"testing"

	"lockstep/internal/commtest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// The cost of a call beside MPI's part of it, in a world of one. Run with go test -run ^$ -bench .
// -benchmem ./spmd
func BenchmarkCollective(b *testing.B) {
	w, err := spmd.Open(spmdtest.Config())
	if err != nil {
		b.Fatal(err)
	}
	x, err := spmd.Alloc[float32](w, 2)
	if err != nil {
		b.Fatal(err)
	}
	y, err := spmd.Alloc[float32](w, 2)
	if err != nil {
		b.Fatal(err)
	}
	s, err := w.NewStream("bench")
	if err != nil {
		b.Fatal(err)
	}
	counts := []int{2}
	for _, bc := range []struct {
		name string
		call func(c spmd.Comm) error
	}{
		{"AllReduce", func(c spmd.Comm) error { return spmd.AllReduce(c, y, x, spmd.Sum) }},
		{"Reduce", func(c spmd.Comm) error { return spmd.Reduce(c, y, x, spmd.Sum, 0) }},
		{"Broadcast", func(c spmd.Comm) error { return spmd.Broadcast(c, x, 0) }},
		{"AllGather", func(c spmd.Comm) error { return spmd.AllGather(c, y, x) }},
		{"ReduceScatter", func(c spmd.Comm) error { return spmd.ReduceScatter(c, y, x, spmd.Sum) }},
		{"AllToAll", func(c spmd.Comm) error { return spmd.AllToAll(c, y, x) }},
		{"Gather", func(c spmd.Comm) error { return spmd.Gather(c, y, x, 0) }},
		{"Scatter", func(c spmd.Comm) error { return spmd.Scatter(c, y, x, 0) }},
		{"AllGatherV", func(c spmd.Comm) error { return spmd.AllGatherV(c, y, x, counts) }},
		{"ReduceScatterV", func(c spmd.Comm) error { return spmd.ReduceScatterV(c, y, x, counts, spmd.Sum) }},
		{"GatherV", func(c spmd.Comm) error { return spmd.GatherV(c, y, x, counts, 0) }},
		{"ScatterV", func(c spmd.Comm) error { return spmd.ScatterV(c, y, x, counts, 0) }},
		{"AllToAllV", func(c spmd.Comm) error { return spmd.AllToAllV(c, y, x, counts, counts) }},
		{"SendRecv", func(c spmd.Comm) error { return spmd.SendRecv(c, y, 0, x, 0) }},
		{"Barrier", spmd.Barrier},
	} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := bc.call(w.Comm()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	enqueue := func(name string, call func() error) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				if err := call(); err != nil {
					b.Fatal(err)
				}
				if n%1000 == 999 { // or the queue grows without end
					b.StopTimer()
					if err := s.Synchronize(); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
			}
		})
	}
	enqueue("EnqueueAllReduce", func() error { return spmd.AllReduce(w.Comm().On(s), y, x, spmd.Sum) })
	enqueue("EnqueueKernel", func() error { return nop.Launch(s, spmd.Cover1D(1, 1), x.Arg(), y.Arg(), spmd.I32(3)) })
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
}

// An all-reduce of 8 B between ranks that are goroutines of one process.
func BenchmarkLocal(b *testing.B) {
	err := spmd.Local(b.Context(), spmdtest.Config(), 2, func(_ context.Context, w *spmd.World) error {
		x, err := spmd.Alloc[float32](w, 2)
		if err != nil {
			return err
		}
		return commtest.Turns(b, w.Rank(), func() error { return spmd.AllReduce(w.Comm(), x, x, spmd.Max) })
	})
	if err != nil {
		b.Fatal(err)
	}
}
