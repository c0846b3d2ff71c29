package gpt

import (
	"math"
	"slices"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// One rank runs the kernels of all ranks that divide the vocabulary, one after the other.

// part returns the launcher of a rank among so many, and the rows and tokens of its part of
// the embedding.
func (l *launches[A]) part(rank, parts int) (e *ops.Launcher[A], first, rows, tokens int) {
	own := l.e.Launcher
	own.Cfg.Tensor = layout.Tensor{Rank: rank, Ranks: parts}
	first, rows, tokens = own.Cfg.OwnVocab()
	return &own, first, rows, tokens
}

// keep makes the next checks see the errors of a launcher.
func (l *launches[A]) keep(e *ops.Launcher[A]) {
	if l.e.Err == nil {
		l.e.Err = e.Err
	}
}

func (l *launches[A]) addResidual() {
	for _, n := range []int{1, 7, 8, 2051, l.e.N * l.e.m.Cfg.Channels} {
		y, yv := l.acts(n, 1)
		x, xv := l.acts(n, 1)
		l.e.AddResidual(y, x, n)
		for i := range yv {
			yv[i] += xv[i]
		}
		check(l, "residual stream", y, yv, 1e-6, 1e-6)
	}
}

func (l *launches[A]) embeddingParts(parts int) {
	cfg := l.e.m.Cfg
	n, C := l.e.N, cfg.Channels
	tokens := traintest.RandomTokens(n, cfg.Vocab, 3)
	tb, sorted := traintest.BufferOf(l.T, l.w, tokens), sortedBuffer(l.T, l.w, tokens, cfg.Vocab)
	wv, pv := l.random(cfg.PaddedVocab()*C, 1, false), l.random(cfg.SeqMax*C, 1, false)
	dout, dv := l.acts(n*C, 1)
	end := 0
	for rank := range parts {
		e, first, rows, _ := l.part(rank, parts)
		if first != end || rows == 0 {
			l.Fatalf("rank %d of %d has %d rows from %d on, the one before ends at %d", rank, parts, rows, first, end)
		}
		end += rows
		mine := func(i int) bool { return int(tokens[i/C]) >= first && int(tokens[i/C]) < end }
		own := append([]float64(nil), wv[first*C:end*C]...)
		wte, wpe := put[float32](l.T, l.w, own), put[float32](l.T, l.w, pv)
		out := fresh[A](l.T, l.w, n*C)
		e.EncoderForward(out, tb, wte, wpe)
		sum := make([]float64, n*C)
		for i := range sum {
			if rank == 0 {
				sum[i] = pv[i/C%e.T*C+i%C]
			}
			if mine(i) {
				sum[i] += wv[int(tokens[i/C])*C+i%C]
			}
		}
		l.keep(e)
		check(l, "part of encoder forward", out, sum, 1e-6, 1e-6)

		dwpe := put[float32](l.T, l.w, pv)
		e.EncoderBackward(wte, dwpe, dout, sorted)
		dp := make([]float64, cfg.SeqMax*C)
		for i, d := range dv {
			if mine(i) {
				own[(int(tokens[i/C])-first)*C+i%C] += d
			}
			dp[i/C%e.T*C+i%C] += d
		}
		l.keep(e)
		check(l, "part of dwte", wte, own, 1e-5, 1e-5)
		check(l, "dwpe", dwpe, added(dp, pv, e.Acc), 1e-5, 1e-5)
	}
	if end != cfg.PaddedVocab() {
		l.Fatalf("%d parts end at row %d of %d", parts, end, cfg.PaddedVocab())
	}
}

func (l *launches[A]) lossParts(parts int) {
	cfg, n := l.e.m.Cfg, l.e.N
	const scale = 0.25
	targets := traintest.RandomTokens(n, cfg.Vocab, 5)
	tb := traintest.BufferOf(l.T, l.w, targets)
	// Numbers are far from zero and from each other, so that a part may
	// have almost nothing of a sum.
	x := l.random(n*cfg.PaddedVocab(), 30, true)
	var loss []float64
	grad := make([]float64, len(x))
	for i := range n {
		row, top, sum := x[i*cfg.PaddedVocab():][:cfg.Vocab], math.Inf(-1), 0.0
		for _, s := range row {
			top = max(top, s)
		}
		for _, s := range row {
			sum += math.Exp(s - top)
		}
		for j, s := range row {
			grad[i*cfg.PaddedVocab()+j] = scale * math.Exp(s-top) / sum
		}
		grad[i*cfg.PaddedVocab()+int(targets[i])] -= scale
		loss = append(loss, math.Log(sum)+top-row[targets[i]])
	}
	columns := func(of []float64, first, rows int) (y []float64) {
		for i := range n {
			y = append(y, of[i*cfg.PaddedVocab()+first:][:rows]...)
		}
		return y
	}
	size := n * ops.LogitNumbers
	all := fresh[float32](l.T, l.w, parts*size)
	var logits []spmd.Buffer[A]
	for rank := range parts {
		e, first, rows, _ := l.part(rank, parts)
		logits = append(logits, put[A](l.T, l.w, columns(x, first, rows)))
		e.LogitSums(all.Slice(rank*size, (rank+1)*size), logits[rank], tb)
		l.keep(e)
	}
	for rank := range parts {
		e, first, rows, _ := l.part(rank, parts)
		losses := fresh[float32](l.T, l.w, n)
		e.ClassifierOfParts(losses, logits[rank], tb, all, scale, false)
		l.keep(e)
		check(l, "loss of parts", losses, loss, 1e-5, 1e-5)
		check(l, "logits without gradient", logits[rank], columns(x, first, rows), 0, 0)
		losses, logits[rank] = fresh[float32](l.T, l.w, n), put[A](l.T, l.w, columns(x, first, rows))
		e.ClassifierOfParts(losses, logits[rank], tb, all, scale, true)
		l.keep(e)
		check(l, "loss of parts", losses, loss, 1e-5, 1e-5)
		check(l, "gradient of parts", logits[rank], columns(grad, first, rows), 1e-4, 1e-7)
	}
}

// A vocabulary has rows for so many ranks, and no more.
func TestVocabularyParts(t *testing.T) {
	for _, tc := range []struct{ vocab, parts int }{{1, 16}, {256, 32}, {50257, 7}, {257, 5}} {
		cfg := layout.Config{Layers: 1, Heads: tc.parts, Channels: tc.parts, SeqMax: 1, Vocab: tc.vocab}
		end, tokens := 0, 0
		for rank := range tc.parts {
			cfg.Tensor = layout.Tensor{Rank: rank, Ranks: tc.parts}
			first, rows, own := cfg.OwnVocab()
			if first != end || rows < cfg.PaddedVocab()/tc.parts-8 || rows > cfg.PaddedVocab()/tc.parts+8 || own < 0 ||
				own > rows || cfg.Validate() != nil {
				t.Errorf("%d tokens, rank %d of %d: %d rows from %d on, %d tokens, %v",
					tc.vocab, rank, tc.parts, rows, first, own, cfg.Validate())
			}
			end, tokens = end+rows, tokens+own
		}
		if end != cfg.PaddedVocab() || tokens != tc.vocab {
			t.Errorf("%d tokens in %d parts: %d rows of %d, %d tokens",
				tc.vocab, tc.parts, end, cfg.PaddedVocab(), tokens)
		}
	}
	cfg := layout.Config{Layers: 1, Heads: 17, Channels: 17, SeqMax: 1, Vocab: 100, Tensor: layout.Tensor{Ranks: 17}}
	if err := cfg.Validate(); err == nil ||
		err.Error() != "--tp 17: a vocabulary of 100 tokens divides into 16 parts at most" {
		t.Error(err)
	}
	cfg = layout.Config{Layers: 1, Heads: 3, Channels: 144, SeqMax: 1, Vocab: 200, FP8: layout.FP8Head,
		Tensor: layout.Tensor{Ranks: 3}}
	for cfg.Tensor.Rank = range 3 {
		if first, rows, _ := cfg.OwnVocab(); first%16 != 0 || rows%16 != 0 || cfg.Validate() != nil {
			t.Errorf("8-bit logits of rank %d of 3 have %d columns from %d on, %v",
				cfg.Tensor.Rank, rows, first, cfg.Validate())
		}
	}
	cfg.Channels, cfg.Heads, cfg.FP8 = 192, 6, layout.FP8All
	cfg.Tensor = layout.Tensor{Ranks: 6}
	if err := cfg.Validate(); cfg.OwnChannels() != 32 || err != nil {
		t.Error(err)
	}
	cfg.Channels = 48
	if err := cfg.Validate(); err == nil ||
		err.Error() != "--tp 6: 8 channels a rank, which products of 8-bit floats take in multiples of 16: take "+
			"--fp8 head" {
		t.Error(err)
	}
}

// Each rank sets its part of the token embedding, also if the part ends with the last token.
func TestSetPart(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("s")
		traintest.NoError(t, err)
		for _, parts := range []int{2, 3, 4} {
			for rank := range parts {
				for _, shard := range []layout.Sharding{{}, {Mode: layout.ShardParameters, Rank: 1, Ranks: 3}} {
					cfg := layout.Config{Layers: 1, Heads: 12, Channels: 12, SeqMax: 2, Vocab: 130, Shard: shard,
						Tensor: layout.Tensor{Rank: rank, Ranks: parts}}
					x := make([]float32, cfg.Vocab*cfg.Channels)
					for i := range x {
						x[i] = float32(i + 1)
					}
					m, err := NewModel[float32](w, cfg, 1, 2)
					traintest.NoError(t, err)
					first, rows, _ := cfg.OwnVocab()
					want := make([]float32, (first+rows)*cfg.Channels)
					copy(want, x)
					want = want[first*cfg.Channels:]
					arena := Arena{Buffer: m.Weights}
					if shard.Mode == layout.ShardParameters {
						arena = Arena{Shared: true, Buffer: m.Sharded.Weights}
					}
					for _, p := range m.Params {
						if p.Name != "wte.weight" {
							continue
						}
						traintest.NoError(t, m.Set(p, x))
						skip, have := m.Of(arena, p)
						if got := traintest.ValuesOf(t, have); !slices.Equal(got, want[skip:skip+len(got)]) {
							t.Errorf("rank %d of %d, --shard %v: the rows differ from those of the tokens from %d on",
								rank, parts, shard.Mode, first)
						}
					}
					if _, err := m.Logits(s, traintest.BufferOf(t, w, []int32{1}), 0); err == nil {
						t.Error("a rank with a part of the logits tells of all")
					}
					traintest.NoError(t, m.Close())
				}
			}
		}
	})
}
