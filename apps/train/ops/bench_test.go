package ops

import (
	"context"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
	"lockstep/spmd/telemetry"
)

// BenchmarkElements times kernels of single elements beside a copy of as many bytes:
//
//	SPMDTEST_DEVICE=cuda go test ./apps/train/ops -run '^$' -bench Elements
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
			benchKernel(b, w, s, k.name, k.bytes, k.run)
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkRows times kernels of rows on activations of 32,768 tokens of 3,072 numbers, and on the
// matrices of 12 layers of 768 channels.
func BenchmarkRows(b *testing.B) {
	if err := spmd.Local(b.Context(), spmdtest.Config(), 1, func(_ context.Context, w *spmd.World) error {
		n, c, layers := 32768, 3072, 12
		if w.OnHost() {
			n, layers = 64, 1
		}
		s := spmdtest.Stream(b, w, "bench")
		floats := func(n int) spmd.Buffer[float32] {
			x := spmdtest.Alloc[float32](b, w, n)
			spmdtest.Must(b, x.SetAll(1))
			return x
		}
		x := spmdtest.Alloc[spmd.BF16](b, w, n*c)
		codes := spmdtest.Alloc[spmd.F8E4M3](b, w, n*c)
		wide := spmdtest.Alloc[spmd.F8E5M2](b, w, n*c)
		spmdtest.Must(b, x.SetAll(spmd.ToBF16(0.37)))
		up, peak, losses, loss := floats(1), floats(1), floats(n), spmdtest.Alloc[float64](b, w, 1)
		partial, sums := floats(ColumnParts*c), floats(c)
		var numbers []int64
		all := 0
		for i := range 4 * layers {
			m := [4][2]int{{2304, 768}, {768, 768}, {3072, 768}, {768, 3072}}[i%4]
			v := Matrix8{From: all, To: all, Across: all, Rows: m[0], Cols: m[1]}.Numbers()
			numbers = append(numbers, v[:]...)
			all += m[0] * m[1]
		}
		weights := spmdtest.Alloc[spmd.BF16](b, w, all)
		peaks := floats(4 * layers)
		matrices := spmdtest.Alloc[int64](b, w, len(numbers))
		spmdtest.Must(b, weights.SetAll(spmd.ToBF16(0.37)))
		spmdtest.Must(b, matrices.CopyFrom(numbers))
		e := &Launcher[spmd.BF16]{S: s, N: n, T: n, Cfg: layout.Config{Channels: c}}
		for _, k := range []struct {
			name string
			run  func() error
		}{
			{"cast", func() error { e.Cast(x, n*c, Cast{Codes: codes, Up: up, Peak: peak}); return e.Err }},
			{"cast_wide", func() error { e.Cast(x, n*c, Cast{Wide: wide, Up: up, Peak: peak}); return e.Err }},
			{"loss_sum", func() error { e.LossSum(loss, losses, 0.5); return e.Err }},
			{"sum_rows", func() error { return launchSumRows(s, (c+31)/32, sums, partial, ColumnParts, c, false) }},
			{"peaks", func() error { return WeightPeaks(s, peaks, weights, matrices) }},
		} {
			benchKernel(b, w, s, k.name, 0, k.run)
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}

// benchKernel reports the median time of what run enqueues, and its rate if it moves bytes.
func benchKernel(b *testing.B, w *spmd.World, s *spmd.Stream, name string, bytes int, run func() error) {
	b.Run(name, func(b *testing.B) {
		stats, err := telemetry.MeasureStream(w.Comm(), s, telemetry.Graph, 3, max(b.N, 20), run)
		spmdtest.Must(b, err)
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(stats.MedianUS, "us")
		if bytes > 0 {
			b.ReportMetric(float64(bytes)/stats.MedianUS/1e3, "GB/s")
		}
	})
}
