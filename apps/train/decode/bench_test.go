package decode

import (
	"context"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
	"lockstep/spmd/timing"
)

// BenchmarkKernels times the norm and GELU of 4,096 tokens of 768 channels, on the host
// of one token:
//
//	SPMDTEST_DEVICE=cuda go test ./apps/train/decode -run '^$' -bench Kernels
func BenchmarkKernels(b *testing.B) {
	if err := spmd.Local(b.Context(), spmdtest.Config(), 1, func(_ context.Context, w *spmd.World) error {
		n, c := 4096, 768
		if w.OnHost() {
			n = 1
		}
		s := spmdtest.Stream(b, w, "bench")
		filled := func(n int) spmd.Buffer[float32] {
			x := spmdtest.Alloc[float32](b, w, n)
			spmdtest.Must(b, x.SetAll(0.01))
			return x
		}
		d := &decoding[spmd.BF16]{s: s, cfg: layout.Config{Channels: c, Heads: 12}, x: filled(n * c),
			tmp: filled(n * c), fc: filled(4 * n * c),
			norm: spmdtest.Alloc[spmd.BF16](b, w, n*c), gelu: spmdtest.Alloc[spmd.BF16](b, w, 4*n*c)}
		weight, bias := filled(c), filled(4*c)
		e := &decodePass[spmd.BF16]{d: d, n: n}
		for _, k := range []struct {
			name string
			run  func()
		}{
			{"norm", func() { e.normalize(d.tmp, weight, weight, weight) }},
			{"gelu", func() { e.activate(bias) }},
		} {
			b.Run(k.name, func(b *testing.B) {
				const each = 10 // a launch costs the host little beside them
				stats, err := timing.MeasureStream(w.Comm(), s, timing.Graph, 3, max(b.N, 20), func() error {
					for range each {
						k.run()
					}
					return e.err
				})
				spmdtest.Must(b, err)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(stats.MedianUS/each, "us")
			})
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}
