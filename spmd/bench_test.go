package spmd_test

import (
	"context"
	"testing"

	"lockstep/cudampi/commtest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// The cost of a call beside MPI's part of it, in a world of one. Run with go test -run ^$ -bench .
// -benchmem ./spmd
func BenchmarkCollective(b *testing.B) {
	w, err := spmd.Open(spmdtest.Config())
	spmdtest.Must(b, err)
	x, err := spmd.Alloc[float32](w, 2)
	spmdtest.Must(b, err)
	y, err := spmd.Alloc[float32](w, 2)
	spmdtest.Must(b, err)
	s, err := w.NewStream("bench")
	spmdtest.Must(b, err)
	for _, call := range everyCall(2) {
		b.Run(call.kind.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				spmdtest.Must(b, call.do(w.Comm(), y, x, 0))
			}
		})
	}
	enqueue := func(name string, call func() error) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				spmdtest.Must(b, call())
				if n%1000 == 999 { // or the queue grows without end
					b.StopTimer()
					spmdtest.Must(b, s.Synchronize())
					b.StartTimer()
				}
			}
		})
	}
	enqueue("EnqueueAllReduce", func() error { return spmd.AllReduce(w.Comm().On(s), y, x, spmd.Sum) })
	enqueue("EnqueueKernel", func() error { return nop.Launch(s, spmd.Cover1D(1, 1), x.Arg(), y.Arg(), spmd.I32(3)) })
	spmdtest.Must(b, w.Close())
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
	spmdtest.Must(b, err)
}
