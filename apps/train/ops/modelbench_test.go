package ops

import (
	"context"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// BenchmarkModern times kernels on 65,536 tokens of 768 channels, on the host on 64:
//
//	SPMDTEST_DEVICE=cuda go test ./apps/train/ops -run '^$' -bench Modern
func BenchmarkModern(b *testing.B) {
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
		to := Cast{Codes: spmdtest.Alloc[spmd.F8E4M3](b, w, n*c), Up: by,
			Peak: spmdtest.Alloc[float32](b, w, 1)}
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(spmd.UniformBits(1, uint64(i)) % uint32(vocab))
		}
		spmdtest.Must(b, table.SetAll(0.3))
		spmdtest.Must(b, by.SetAll(0.3))
		spmdtest.Must(b, tokens.CopyFrom(ids))
		e := &Launcher[spmd.BF16]{S: s, N: n, T: 1024, Cfg: layout.Config{Channels: c, Vocab: vocab}}
		for _, k := range []struct {
			name string
			run  func()
		}{
			{"embed", func() { e.EmbedNormed(x[0], tokens, table) }},
			{"embed_backward", func() { e.EmbedNormedBackward(x[0], tokens, table) }},
			{"norm", func() { e.RMSNorm(x[0], x[1], Skip[spmd.BF16]{}, Cast{}) }},
			{"norm_8", func() { e.RMSNorm(x[0], x[1], Skip[spmd.BF16]{}, to) }},
			{"norm_skip", func() {
				e.RMSNorm(x[0], x[1], Skip[spmd.BF16]{Sum: x[2], Kept: x[3], By: Number{W: by}}, Cast{})
			}},
			{"relu2", func() { e.ReLU2(x[0], n*c, Cast{}) }},
			{"relu2_8", func() { e.ReLU2(x[0], n*c, to) }},
			{"relu2_backward", func() { e.ReLU2Backward(x[0], x[1], n*c, Cast{}) }},
			{"relu2_backward_8", func() { e.ReLU2Backward(x[0], x[1], n*c, to) }},
		} {
			benchKernel(b, w, s, k.name, 0, func() error { k.run(); return e.Err })
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkDecode times the norm and GELU of 4,096 tokens of 768 channels, each ten times, on the
// host of one token.
func BenchmarkDecode(b *testing.B) {
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
		x, add, fc, weight, bias := filled(n*c), filled(n*c), filled(4*n*c), filled(c), filled(4*c)
		norm, gelu := spmdtest.Alloc[spmd.BF16](b, w, n*c), spmdtest.Alloc[spmd.BF16](b, w, 4*n*c)
		e := &Launcher[spmd.BF16]{S: s, N: n, Cfg: layout.Config{Channels: c, Heads: 12}}
		for _, k := range []struct {
			name string
			run  func()
		}{
			{"norm", func() { e.DecodeNorm(norm, x, add, weight, &Norm{W: weight, B: weight}) }},
			{"gelu", func() { e.DecodeGELU(gelu, fc, bias) }},
		} {
			benchKernel(b, w, s, k.name, 0, func() error {
				for range 10 { // a launch costs the host little beside them
					k.run()
				}
				return e.Err
			})
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkMuon times Muon's kernels on 12 matrices of 3072 rows of 768, on the host on one:
//
//	SPMDTEST_DEVICE=cuda go test ./apps/train/ops -run '^$' -bench Muon
func BenchmarkMuon(b *testing.B) {
	if err := spmd.Local(b.Context(), spmdtest.Config(), 1, func(_ context.Context, w *spmd.World) error {
		matrices := 12
		if w.OnHost() {
			matrices = 1
		}
		const n = 3072 * 768
		q := &MuonMatrices{Len: n, Count: matrices, Places: spmdtest.Alloc[int64](b, w, PlaceNumbers*matrices)}
		var places []int64
		for i := range matrices {
			at := int64(i * n)
			places = append(places, 0, int64(n), at, at, at)
		}
		spmdtest.Must(b, q.Places.CopyFrom(places))
		filled := func(n int) spmd.Buffer[float32] {
			x := spmdtest.Alloc[float32](b, w, n)
			spmdtest.Must(b, x.SetAll(0.01))
			return x
		}
		q.Squares = filled(matrices * q.Chunks())
		x, half := spmdtest.Alloc[spmd.BF16](b, w, matrices*n), spmdtest.Alloc[spmd.BF16](b, w, matrices*n)
		st := MuonState{W: filled(matrices * n), G: filled(matrices * n), M: filled(matrices * n), Half: half,
			Hyper: filled(2), Norm: filled(1), Clip: 1, WeightDecay: 0.1}
		s := spmdtest.Stream(b, w, "bench")
		benchKernel(b, w, s, "momentum", 0, func() error { return q.Momentum(s, st) })
		benchKernel(b, w, s, "direction", 0,
			func() error { return MuonDirection(s, x, q, st, spmd.Shard{Len: matrices}) })
		benchKernel(b, w, s, "update", 0, func() error { return MuonUpdate(s, q, st, x, 1) })
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}
