package kernels

import (
	"context"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
	"lockstep/spmd/timing"
)

// BenchmarkElements times kernels of single elements beside a copy of as many bytes:
//
//	SPMDTEST_DEVICE=cuda go test ./apps/train/kernels -run '^$' -bench Elements
func BenchmarkElements(b *testing.B) {
	if err := spmd.Local(b.Context(), spmdtest.Config(), 1, func(_ context.Context, w *spmd.World) error {
		n := 64 << 20
		if w.OnHost() {
			n = 1 << 20
		}
		s := spmdtest.Stream(b, w, "bench")
		x, y := spmdtest.Alloc[float32](b, w, n), spmdtest.Alloc[float32](b, w, n)
		h, g := spmdtest.Alloc[spmd.BF16](b, w, n), spmdtest.Alloc[spmd.BF16](b, w, n)
		floats, halves := &Launcher[float32]{S: s}, &Launcher[spmd.BF16]{S: s}
		for _, k := range []struct {
			name  string
			bytes int
			run   func() error
		}{
			{"copy", 8 * n, func() error { return spmd.Copy(s, y, x) }},
			{"add_float32", 12 * n, func() error { floats.AddResidual(y, x, n); return floats.Err }},
			{"add_bfloat16", 6 * n, func() error { halves.AddResidual(h, g, n); return halves.Err }},
			{"add_to", 12 * n, func() error { floats.AddTo(y, x); return floats.Err }},
			{"round", 6 * n, func() error { return RoundWeights(s, h, x) }},
		} {
			b.Run(k.name, func(b *testing.B) {
				stats, err := timing.MeasureStream(w.Comm(), s, true, 3, max(b.N, 20), k.run)
				spmdtest.Must(b, err)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(stats.MedianUS, "us")
				b.ReportMetric(float64(k.bytes)/stats.MedianUS/1e3, "GB/s")
			})
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}
