package modern

import (
	"context"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
	"lockstep/spmd/timing"
)

// BenchmarkKernels times kernels on 65,536 tokens of 768 channels, on the host on 64:
//
//	SPMDTEST_DEVICE=cuda go test ./apps/train/modern -run '^$' -bench Kernels
func BenchmarkKernels(b *testing.B) {
	if err := spmd.Local(b.Context(), spmdtest.Config(), 1, func(_ context.Context, w *spmd.World) error {
		n, c, vocab := 65536, 768, 50304
		if w.OnHost() {
			n = 64
		}
		s := spmdtest.Stream(b, w, "bench")
		var x [4]spmd.Buffer[spmd.BF16]
		for i := range x {
			x[i] = spmdtest.Alloc[spmd.BF16](b, w, n*c)
			spmdtest.Must(b, x[i].SetAll(spmd.ToBF16(0.37)))
		}
		table := spmdtest.Alloc[float32](b, w, vocab*c)
		tokens := spmdtest.Alloc[int32](b, w, n)
		by := spmdtest.Alloc[float32](b, w, 1)
		to := ops.Cast{Codes: spmdtest.Alloc[spmd.F8E4M3](b, w, n*c), Up: by,
			Peak: spmdtest.Alloc[float32](b, w, 1)}
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(spmd.UniformBits(1, uint64(i)) % uint32(vocab))
		}
		spmdtest.Must(b, table.SetAll(0.3))
		spmdtest.Must(b, by.SetAll(0.3))
		spmdtest.Must(b, tokens.CopyFrom(ids))
		e := &ops.Launcher[spmd.BF16]{S: s, N: n, T: 1024, Cfg: layout.Config{Channels: c, Vocab: vocab}}
		for _, k := range []struct {
			name string
			run  func()
		}{
			{"embed", func() { embed(e, x[0], tokens, table) }},
			{"embed_backward", func() { embedBackward(e, x[0], tokens, table) }},
			{"norm", func() { norm(e, x[0], x[1], skip[spmd.BF16]{}, ops.Cast{}) }},
			{"norm_8", func() { norm(e, x[0], x[1], skip[spmd.BF16]{}, to) }},
			{"norm_skip", func() {
				norm(e, x[0], x[1], skip[spmd.BF16]{sum: x[2], kept: x[3], by: number{w: by}}, ops.Cast{})
			}},
			{"relu2", func() { relu2(e, x[0], n*c, ops.Cast{}) }},
			{"relu2_8", func() { relu2(e, x[0], n*c, to) }},
			{"relu2_backward", func() { relu2Backward(e, x[0], x[1], n*c, ops.Cast{}) }},
			{"relu2_backward_8", func() { relu2Backward(e, x[0], x[1], n*c, to) }},
		} {
			b.Run(k.name, func(b *testing.B) {
				stats, err := timing.MeasureStream(w.Comm(), s, timing.Graph, 3, max(b.N, 20),
					func() error { k.run(); return e.Err })
				spmdtest.Must(b, err)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(stats.MedianUS, "us")
			})
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}
