package gpt

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
	"lockstep/spmd/parallel"
	"lockstep/spmd/spmdtest"
)

// testModern returns a model on a stream of w, with the given weights.
func testModern[A ops.Act](t *testing.T, w *spmd.World, cfg layout.Config, p map[string][]float64,
	maxBatch int) (*Modern[A], *spmd.Stream) {
	t.Helper()
	m, err := NewModern[A](w, cfg, maxBatch, cfg.SeqMax)
	traintest.NoError(t, err)
	s, err := w.NewStream("test")
	traintest.NoError(t, err)
	traintest.LoadParams(t, m.Params, m.Weights, p)
	traintest.NoError(t, m.Refresh(s))
	return m, s
}

// tokenBatch returns a micro-batch of b sequences of n tokens.
func tokenBatch(t *testing.T, w *spmd.World, in, targets []int32, b, n, vocab int) Batch {
	t.Helper()
	return batchOf(t, w, traintest.BufferOf(t, w, in), traintest.BufferOf(t, w, targets), b, n, vocab)
}

// compareModern fails if a tensor's gradient is further than bound from the reference,
// relative to its norm. For a vector, which may be near 0 by chance, it is relative to the
// norm of all gradients.
func compareModern(t *testing.T, m *State, want map[string][]float64, bound float64) float64 {
	t.Helper()
	got := traintest.ValuesOf(t, m.Grads)
	worst, where, all, off := 0.0, "", 0.0, 0.0
	for _, p := range m.Params {
		d, n := squares(got[p.Off:], want[p.Name])
		if !p.Decay {
			all, off = all+n, off+d
			continue
		}
		e := math.Sqrt(d / n)
		if !(e < bound) {
			t.Errorf("%s: gradient differs by %.2g of its norm", p.Name, e)
		}
		if !(e <= worst) { // NaN is the worst of all
			worst, where = e, p.Name
		}
	}
	if e := math.Sqrt(off / all); all > 0 && !(e < bound) {
		t.Errorf("vectors: gradient differs by %.2g of its norm", e)
	}
	t.Logf("largest difference %.1e, of %s", worst, where)
	return worst
}

// The loss and every gradient are those of the float64 reference, with all parts and without each,
// whole and in uneven micro-batches.
func TestModernAgainstReference(t *testing.T) {
	traintest.OnBoth(t, []int{1}, testModernAgainstReference[float32], testModernAgainstReference[spmd.BF16])
}

func testModernAgainstReference[A ops.Act](t *testing.T, w *spmd.World) {
	bound := traintest.BoundsOf(w, ops.IsHalf[A]())
	if ops.IsHalf[A]() {
		bound.Grad = 0.07 // more values are rounded than in GPT-2's form, and the tests' weights are wide
	}
	type row struct {
		cfg   layout.Config
		parts []int // sequences of each micro-batch
		t     int
	}
	full := traintest.SmallModern.Parts
	cases := []row{
		{traintest.SmallModern, []int{4}, 24},
		{traintest.SmallModern, []int{2, 1, 3}, 11},
		{layout.Config{Layers: 1, Heads: 1, Channels: 8, SeqMax: 7, Vocab: 5, Parts: full}, []int{3}, 7},
		{layout.Config{Layers: 6, Heads: 3, Channels: 120, SeqMax: 9, Vocab: 128, Parts: full}, []int{1, 1}, 1},
		{layout.Config{Layers: 2, Heads: 4, Channels: 288, SeqMax: 70, Vocab: 257, Parts: full}, []int{1, 2}, 70},
		// windows bound what is seen
		{layout.Config{Layers: 2, Heads: 1, Channels: 8, SeqMax: 400, Vocab: 5, Parts: full}, []int{1, 1}, 400},
		// more rows than the head takes at once
		{layout.Config{Layers: 1, Heads: 1, Channels: 8, SeqMax: 64, Vocab: 5, Parts: full},
			[]int{layout.HeadRows/64 + 1, 3}, 64},
	}
	for _, name := range append(layout.PartNames(), "") {
		cfg := layout.Config{Layers: 4, Heads: 2, Channels: 32, SeqMax: 12, Vocab: 61, Parts: layout.Modern}
		if name != "" {
			var err error
			cfg.Parts, err = full.Without([]string{name})
			traintest.NoError(t, err)
		}
		cases = append(cases, row{cfg, []int{1, 2}, 12})
	}
	for _, tc := range cases {
		batch := 0
		for _, b := range tc.parts {
			batch += b
		}
		name := fmt.Sprintf("%+v %v×%d", tc.cfg, tc.parts, tc.t)
		p := traintest.RandomParams(tc.cfg, 7)
		in := traintest.RandomTokens(batch*tc.t, tc.cfg.Vocab, 8)
		targets := traintest.RandomTokens(batch*tc.t, tc.cfg.Vocab, 9)
		want := traintest.ZeroLike(p)
		wantLoss := traintest.Reference(tc.cfg, p).Batch(in, targets, tc.t, want)

		m, s := testModern[A](t, w, tc.cfg, p, batch)
		scale := 1 / float32(batch*tc.t)
		twice(t, name, &m.State, tc.parts, tc.t, func(lo, hi, b int, first Start, ready func(int) error) error {
			return m.ForwardBackward(s, tokenBatch(t, w, in[lo:hi], targets[lo:hi], b, tc.t, tc.cfg.Vocab),
				scale, first, ready)
		})
		traintest.NoError(t, s.Synchronize())
		t.Logf("%s: loss %.7f, reference %.7f", name, m.Loss.At(0), wantLoss)
		if !traintest.CloseTo(m.Loss.At(0), wantLoss, bound.Loss) {
			t.Errorf("%s: loss %v, reference %v", name, m.Loss.At(0), wantLoss)
		}
		compareModern(t, &m.State, want, bound.Grad)
		traintest.NoError(t, m.Loss.SetAll(0),
			m.Evaluate(s, tokenBatch(t, w, in, targets, batch, tc.t, tc.cfg.Vocab), scale), s.Synchronize())
		if !traintest.CloseTo(m.Loss.At(0), wantLoss, bound.Loss) {
			t.Errorf("%s: Evaluate gives %v, reference %v", name, m.Loss.At(0), wantLoss)
		}
		traintest.NoError(t, m.Close())
	}
}

// The same batch is divided unevenly over the ranks, and the reducer works during backward. The
// sums are the gradients of the whole batch.
func TestModernDataParallel(t *testing.T) {
	run, ranks := spmdtest.RunInProcess, []int{1, 3}
	if spmdtest.Device() != "host" {
		run, ranks = spmdtest.Run, []int{1, 2, 3, 4}
	}
	run(t, ranks, func(t *testing.T, w *spmd.World) {
		bound := traintest.BoundsOf(w, false)
		const batch, T = 4, 9
		cfg := traintest.SmallModern
		p := traintest.RandomParams(cfg, 1)
		in, targets := traintest.RandomTokens(batch*T, cfg.Vocab, 2), traintest.RandomTokens(batch*T, cfg.Vocab, 3)
		want := traintest.ZeroLike(p)
		wantLoss := traintest.Reference(cfg, p).Batch(in, targets, T, want)
		m, s := testModern[float32](t, w, cfg, p, batch)
		r, err := parallel.NewReducer(w.Comm(), m.GradGroups(), parallel.ReducerConfig{BucketBytes: 1 << 14})
		traintest.NoError(t, err)
		mine := spmd.ShardOf(batch, w.Rank(), w.Size())
		lo, hi := mine.Off*T, (mine.Off+mine.Len)*T
		part := tokenBatch(t, w, in[lo:hi], targets[lo:hi], mine.Len, T, cfg.Vocab)
		traintest.NoError(t, m.ForwardBackward(s, part, 1./(batch*T), true, func(g int) error { return r.Ready(g, s) }),
			r.Wait(s))
		traintest.NoError(t, spmd.AllReduce(w.Comm().On(s), m.Loss, m.Loss, spmd.Sum), s.Synchronize())
		if !traintest.CloseTo(m.Loss.At(0), wantLoss, bound.Loss) {
			t.Errorf("loss %v, reference %v", m.Loss.At(0), wantLoss)
		}
		compareModern(t, &m.State, want, bound.Grad)
	})
}

// Equal inputs give equal bits, and the model takes the memory that was announced.
func TestModernRepeats(t *testing.T) {
	traintest.OnBoth(t, []int{1}, testModernRepeats[float32], testModernRepeats[spmd.BF16])
}

func testModernRepeats[A ops.Act](t *testing.T, w *spmd.World) {
	cfg := traintest.SmallModern
	m, s := testModern[A](t, w, cfg, traintest.RandomParams(cfg, 1), 4)
	batch := tokenBatch(t, w, traintest.RandomTokens(96, cfg.Vocab, 2), traintest.RandomTokens(96, cfg.Vocab, 3), 4, 24,
		cfg.Vocab)
	var grads [][]float32
	for range 2 {
		traintest.NoError(t, m.ForwardBackward(s, batch, 1./96, true, nil), s.Synchronize())
		grads = append(grads, traintest.ValuesOf(t, m.Grads))
	}
	if !slices.Equal(grads[0], grads[1]) {
		t.Error("two passes of the same batch have different bits")
	}
	need, err := MemoryNeeded(cfg, 4, cfg.SeqMax, ops.IsHalf[A]())
	traintest.NoError(t, err)
	if took := m.space.Bytes + m.att.Workspace(); need < took {
		t.Errorf("told %d bytes, took %d", need, took)
	}
}

// The cross-entropy of the logits is what the last token adds to the loss of the prefix.
func TestModernLogits(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		cfg := traintest.SmallModern
		p := traintest.RandomParams(cfg, 1)
		m, s := testModern[float32](t, w, cfg, p, 1)
		in := traintest.RandomTokens(cfg.SeqMax, cfg.Vocab, 2)
		targets := traintest.RandomTokens(cfg.SeqMax, cfg.Vocab, 3)
		ib, ref := traintest.BufferOf(t, w, in), traintest.Reference(cfg, p)
		for _, n := range []int{1, 2, 17, cfg.SeqMax} {
			want := float64(n) * ref.Batch(in[:n], targets[:n], n, nil)
			if n > 1 {
				want -= float64(n-1) * ref.Batch(in[:n-1], targets[:n-1], n-1, nil)
			}
			logits, err := m.Logits(s, ib.Slice(0, n), 0)
			traintest.NoError(t, err, s.Synchronize())
			x, sum := traintest.ValuesOf(t, logits), 0.0
			for _, v := range x {
				sum += math.Exp(float64(v))
			}
			if got := math.Log(sum) - float64(x[targets[n-1]]); !traintest.CloseTo(got, want, 1e-4) {
				t.Errorf("after %d tokens: loss %v, reference %v", n, got, want)
			}
		}
	})
}

// Tokens behind others, whose keys and values the layers have, get the logits of all tokens
// together, also in layers with a window.
func TestModernLogitsGoOn(t *testing.T) {
	traintest.OnBoth(t, []int{1}, testLogitsGoOn[float32], testLogitsGoOn[spmd.BF16])
}

func testLogitsGoOn[A ops.Act](t *testing.T, w *spmd.World) {
	cfg := traintest.SmallModern
	cfg.SeqMax = 400
	bound := 1e-4
	if ops.IsHalf[A]() {
		bound = 0.1 // of logits around 5
	}
	m, s := testModern[A](t, w, cfg, traintest.RandomParams(cfg, 1), 1)
	tokens := traintest.BufferOf(t, w, traintest.RandomTokens(cfg.SeqMax, cfg.Vocab, 2))
	logits := func(n, before int) []float32 {
		x, err := m.Logits(s, tokens.Slice(0, n), before)
		traintest.NoError(t, err, s.Synchronize())
		return traintest.ValuesOf(t, x)
	}
	for _, n := range []int{1, 2, 40, 385, 386, 400} {
		want := logits(n, 0)
		for _, before := range []int{1, n / 2, n - 1} {
			if before == 0 || before == n {
				continue
			}
			logits(before, 0)
			for i, x := range logits(n, before) {
				if !traintest.CloseTo(float64(x), float64(want[i]), bound) {
					t.Fatalf("%d tokens after %d: logit %d is %v, of all together %v", n-before, before, i, x, want[i])
				}
			}
		}
	}
	for _, c := range [][2]int{{401, 0}, {5, 5}, {5, -1}} {
		if _, err := m.Logits(s, traintest.BufferOf(t, w, make([]int32, c[0])), c[1]); err == nil {
			t.Errorf("%d tokens, %d of them before: no error", c[0], c[1])
		}
	}
}
