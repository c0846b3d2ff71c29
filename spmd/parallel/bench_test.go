package parallel_test

import (
	"context"
	"errors"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/parallel"
	"lockstep/spmd/spmdtest"
	"lockstep/spmd/telemetry"
)

// BenchmarkKernels times the kernels on the parameters of GPT-2 124M, on the host on fewer:
//
//	SPMDTEST_DEVICE=cuda go test ./spmd/parallel -run '^$' -bench Kernels
func BenchmarkKernels(b *testing.B) {
	if err := spmd.Local(b.Context(), spmdtest.Config(), 1, func(_ context.Context, w *spmd.World) error {
		n := 124 << 20
		if w.OnHost() {
			n = 1 << 20
		}
		x, norm := spmdtest.Alloc[float32](b, w, n), spmdtest.Alloc[float32](b, w, 1)
		spmdtest.Must(b, x.SetAll(1e-3))
		s := spmdtest.Stream(b, w, "bench")
		clip := func(limit float64) func(b *testing.B) {
			return func(b *testing.B) {
				stats, err := telemetry.MeasureStream(w.Comm(), s, telemetry.Graph, 3, max(b.N, 20),
					func() error { return parallel.ClipNorm(s, x, limit, norm) })
				spmdtest.Must(b, err)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(stats.MedianUS, "us")
			}
		}
		b.Run("norm", clip(0))
		b.Run("within", clip(1e9)) // nothing is scaled
		b.Run("clipped", clip(1e-3))
		b.Run("same", func(b *testing.B) {
			var err error
			for range b.N {
				err = errors.Join(err, parallel.CheckSame(w.Comm(), "x", x))
			}
			spmdtest.Must(b, err)
		})
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}
