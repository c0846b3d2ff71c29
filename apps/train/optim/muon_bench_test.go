package optim

import (
	"context"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
	"lockstep/spmd/timing"
)

// BenchmarkMuon times Muon's kernels on 12 matrices of 3072 rows of 768, on the host on one:
//
//	SPMDTEST_DEVICE=cuda go test ./apps/train/optim -run '^$' -bench Muon
func BenchmarkMuon(b *testing.B) {
	if err := spmd.Local(b.Context(), spmdtest.Config(), 1, func(_ context.Context, w *spmd.World) error {
		matrices := 12
		if w.OnHost() {
			matrices = 1
		}
		q := &muonShape{rows: 3072, cols: 768, at: make([]layout.Param, matrices),
			places: spmdtest.Alloc[int64](b, w, placeNumbers*matrices)}
		n, chunks := q.len(), matrices*q.chunks()
		var places []int64
		for i := range matrices {
			at := int64(i * n)
			places = append(places, 0, int64(n), at, at, at)
		}
		spmdtest.Must(b, q.places.CopyFrom(places))
		filled := func(n int) spmd.Buffer[float32] {
			x := spmdtest.Alloc[float32](b, w, n)
			spmdtest.Must(b, x.SetAll(0.01))
			return x
		}
		m, g, p, hyper, norm := filled(matrices*n), filled(matrices*n), filled(matrices*n), filled(2), filled(1)
		q.squares = filled(chunks)
		x, half := spmdtest.Alloc[spmd.BF16](b, w, matrices*n), spmdtest.Alloc[spmd.BF16](b, w, matrices*n)
		s := spmdtest.Stream(b, w, "bench")
		for _, k := range []struct {
			name string
			run  func() error
		}{
			{"momentum", func() error {
				return launchMuonMomentum(s, chunks, m, q.squares, g, q.places, hyper, norm, n, 1)
			}},
			{"direction", func() error {
				return q.launchDirection(s, muonDirections.BF16, x.Arg(), m, g, hyper, norm, 1,
					spmd.Shard{Len: matrices})
			}},
			{"update", func() error {
				return launchMuonUpdate(s, chunks, p, half, x, q.places, hyper, norm, n, 1, 0.1)
			}},
		} {
			b.Run(k.name, func(b *testing.B) {
				stats, err := timing.MeasureStream(w.Comm(), s, timing.Graph, 3, max(b.N, 20), k.run)
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
