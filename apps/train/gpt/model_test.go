package gpt

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/traintest"
	"lockstep/host"
	"lockstep/spmd"
	"lockstep/spmd/parallel"
	"lockstep/spmd/spmdtest"
)

// testModel returns a model on a stream of w, with the given weights.
func testModel[A ops.Act](t *testing.T, w *spmd.World, cfg layout.Config, p map[string][]float64,
	maxBatch int) (*Model[A], *spmd.Stream) {
	t.Helper()
	m, err := NewModel[A](w, cfg, maxBatch, cfg.SeqMax)
	traintest.NoError(t, err)
	s, err := w.NewStream("test")
	traintest.NoError(t, err)
	if p != nil {
		traintest.LoadParams(t, m.Params, m.Weights, p)
		traintest.NoError(t, m.Refresh(s))
	}
	return m, s
}

// forms are the models of tests of all kinds of decoders.
var forms = []layout.Config{traintest.Small, traintest.SmallModern, traintest.SmallThird}

// nameOf returns the name of A in measurements.
func nameOf[A ops.Act]() string {
	if ops.IsHalf[A]() {
		return "bfloat16"
	}
	return "float32"
}

// batchOf returns a micro-batch of b sequences of n tokens.
func batchOf(t testing.TB, w *spmd.World, in, targets spmd.Buffer[int32], b, n, vocab int) Batch {
	t.Helper()
	tokens := make([]int32, in.Len())
	spmdtest.Must(t, in.CopyTo(tokens))
	return Batch{In: in, Targets: targets, Sorted: sortedBuffer(t, w, tokens, vocab), B: b, T: n}
}

// randomBatch returns a micro-batch of b sequences of n random tokens.
func randomBatch(t *testing.T, w *spmd.World, b, n, vocab int) Batch {
	t.Helper()
	return batchOf(t, w, traintest.BufferOf(t, w, traintest.RandomTokens(b*n, vocab, 2)),
		traintest.BufferOf(t, w, traintest.RandomTokens(b*n, vocab, 3)), b, n, vocab)
}

// sortedBuffer returns tokens as ops.Sorter.Sort leaves them. Those beyond the vocabulary
// count as token 0.
func sortedBuffer(t testing.TB, w *spmd.World, tokens []int32, vocab int) spmd.Buffer[int32] {
	t.Helper()
	tokens = slices.Clone(tokens)
	for i, x := range tokens {
		if x < 0 || int(x) >= vocab {
			tokens[i] = 0
		}
	}
	list := slices.Repeat([]int32{-1 << 30}, ops.SortedLen(len(tokens), vocab))
	new(ops.Sorter).Sort(list, tokens, vocab)
	b, err := spmd.Alloc[int32](w, len(list))
	if err == nil {
		err = b.CopyFrom(list)
	}
	spmdtest.Must(t, err)
	return b
}

// squares returns the sums of the squares of the differences from want, and of want.
func squares(got []float32, want []float64) (d, n float64) {
	for i, v := range want {
		e := float64(got[i]) - v
		d += e * e
		n += v * v
	}
	return d, n
}

// compareGrads fails if a tensor's gradient is further than bound from the reference, relative to
// its norm. For numbers, which may be near 0 by chance, it is relative to the norm of all of them.
// It returns the largest such distance.
func compareGrads(t *testing.T, m *State, want map[string][]float64, bound float64) float64 {
	t.Helper()
	got := traintest.ValuesOf(t, m.Grads)
	worst, where, all, off := 0.0, "", 0.0, 0.0
	compare := func(name string, d, n float64) {
		e := math.Sqrt(d / n)
		if !(e < bound) {
			t.Errorf("%s: gradient differs by %.2g of its norm", name, e)
		}
		if !(e <= worst) { // NaN is the worst of all
			worst, where = e, name
		}
	}
	for _, p := range m.Params {
		d, n := squares(got[p.Off:], want[p.Name])
		if p.Len <= 2 {
			all, off = all+n, off+d
		} else {
			compare(p.Name, d, n)
		}
	}
	if all > 0 {
		compare("numbers", off, all)
	}
	t.Logf("largest difference %.1e, of %s", worst, where)
	return worst
}

// boundsOf returns traintest's bounds for a model. More values of modern ones are rounded, and the
// tests' weights are wide.
func boundsOf[A ops.Act](w *spmd.World, cfg layout.Config) (loss, grad float64) {
	b := traintest.BoundsOf(w, ops.IsHalf[A]())
	if ops.IsHalf[A]() && cfg.Parts != 0 {
		b.Grad = 0.07
	}
	return b.Loss, b.Grad
}

// twice has micro go through a batch in parts, of so many sequences of n tokens, two times: a
// second pass must not see the first. Groups of gradients are ready in their order, in the last
// part.
func twice(t *testing.T, name string, m *State, parts []int, n int,
	micro func(lo, hi, b int, first Start, ready func(int) error) error) {
	t.Helper()
	for range 2 {
		lo, group := 0, 0
		for i, b := range parts {
			hi := lo + b*n
			var ready func(int) error
			if i == len(parts)-1 {
				ready = func(g int) error {
					if g != group {
						t.Errorf("%s: group %d is ready, expected %d", name, g, group)
					}
					group++
					return nil
				}
			}
			traintest.NoError(t, micro(lo, hi, b, i == 0, ready))
			lo = hi
		}
		if group != len(m.Groups) {
			t.Errorf("%s: %d of %d groups were ready", name, group, len(m.Groups))
		}
	}
}

// The loss and every gradient are those of the float64 reference, for shapes that fill vectors and
// blocks and shapes that do not, with all parts and without each, whole and in uneven
// micro-batches.
func TestModelAgainstReference(t *testing.T) {
	traintest.OnBoth(t, []int{1}, testModelAgainstReference[float32], testModelAgainstReference[spmd.BF16])
}

func testModelAgainstReference[A ops.Act](t *testing.T, w *spmd.World) {
	worstLoss, worstGrad := 0.0, 0.0
	type row struct {
		cfg   layout.Config
		parts []int // sequences of each micro-batch
		t     int
	}
	full := traintest.SmallModern.Parts
	cases := []row{
		{traintest.Small, []int{4}, 24},
		{traintest.Small, []int{2, 1, 3}, 11},
		{layout.Config{Layers: 1, Heads: 1, Channels: 9, SeqMax: 7, Vocab: 5}, []int{3}, 7},
		{layout.Config{Layers: 1, Heads: 3, Channels: 15, SeqMax: 1, Vocab: 128}, []int{1, 1}, 1},
		{layout.Config{Layers: 1, Heads: 1, Channels: 80, SeqMax: 70, Vocab: 257}, []int{1, 2}, 70},
		{layout.Config{Layers: 2, Heads: 2, Channels: 128, SeqMax: 64, Vocab: 300}, []int{1}, 64},
		// more rows than the head takes at once
		{layout.Config{Layers: 1, Heads: 1, Channels: 8, SeqMax: 64, Vocab: 5}, []int{layout.HeadRows/64 + 1, 3}, 64},
		{traintest.SmallModern, []int{4}, 24},
		{traintest.SmallModern, []int{2, 1, 3}, 11},
		{layout.Config{Layers: 1, Heads: 1, Channels: 8, SeqMax: 7, Vocab: 5, Parts: full}, []int{3}, 7},
		{layout.Config{Layers: 6, Heads: 3, Channels: 120, SeqMax: 9, Vocab: 128, Parts: full}, []int{1, 1}, 1},
		{layout.Config{Layers: 2, Heads: 4, Channels: 288, SeqMax: 70, Vocab: 257, Parts: full}, []int{1, 2}, 70},
		// windows bound what is seen
		{layout.Config{Layers: 2, Heads: 1, Channels: 8, SeqMax: 400, Vocab: 5, Parts: full}, []int{1, 1}, 400},
		{layout.Config{Layers: 1, Heads: 1, Channels: 8, SeqMax: 64, Vocab: 5, Parts: full},
			[]int{layout.HeadRows/64 + 1, 3}, 64},
	}
	for _, parts := range []layout.Parts{layout.Rotary | layout.Beside, layout.Rotary, layout.Beside, layout.ReLU2,
		layout.Rotary | layout.NormQK | layout.Windows, layout.Rotary | layout.Scaled | layout.ReLU2,
		full | layout.Beside} {
		cfg := traintest.SmallThird
		cfg.Layers, cfg.Parts = 3, parts
		cases = append(cases, row{cfg, []int{1, 2}, 12})
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
		boundLoss, boundGrad := boundsOf[A](w, tc.cfg)
		if parts, err := layout.ParseParts(tc.cfg.Parts.String()); parts != tc.cfg.Parts || err != nil {
			t.Errorf("parts %v are read as %v, %v", tc.cfg.Parts, parts, err)
		}
		name := fmt.Sprintf("%+v %v×%d", tc.cfg, tc.parts, tc.t)
		p := traintest.RandomParams(tc.cfg, 7)
		in := traintest.RandomTokens(batch*tc.t, tc.cfg.Vocab, 8)
		targets := traintest.RandomTokens(batch*tc.t, tc.cfg.Vocab, 9)
		want := traintest.ZeroLike(p)
		wantLoss := reference(tc.cfg, p).Batch(in, targets, tc.t, want)

		m, s := testModel[A](t, w, tc.cfg, p, batch)
		ib, tb := traintest.BufferOf(t, w, in), traintest.BufferOf(t, w, targets)
		scale := 1 / float32(batch*tc.t)
		twice(t, name, &m.State, tc.parts, tc.t, func(lo, hi, b int, first Start, ready func(int) error) error {
			return m.ForwardBackward(s, batchOf(t, w, ib.Slice(lo, hi), tb.Slice(lo, hi), b, tc.t, tc.cfg.Vocab),
				scale, first, ready)
		})
		traintest.NoError(t, s.Synchronize())
		t.Logf("%s: loss %.7f, reference %.7f", name, m.Loss.At(0), wantLoss)
		d := math.Abs(m.Loss.At(0) - wantLoss)
		if !(d < boundLoss) {
			t.Errorf("%s: loss %v, reference %v", name, m.Loss.At(0), wantLoss)
		}
		off := compareGrads(t, &m.State, want, boundGrad)
		traintest.NoError(t, m.Loss.SetAll(0), m.Evaluate(s, batchOf(t, w, ib, tb, batch, tc.t, tc.cfg.Vocab), scale),
			s.Synchronize())
		e := math.Abs(m.Loss.At(0) - wantLoss)
		if !(e < boundLoss) {
			t.Errorf("%s: Evaluate gives %v, reference %v", name, m.Loss.At(0), wantLoss)
		}
		if tc.cfg.Parts == 0 {
			worstLoss, worstGrad = max(worstLoss, d, e), max(worstGrad, off)
		}
		traintest.NoError(t, m.Close())
	}
	traintest.Measured(t, "difference of the "+nameOf[A]()+" loss from the float64 model", worstLoss)
	traintest.Measured(t, "largest relative difference of a "+nameOf[A]()+" gradient tensor from the float64 model",
		worstGrad)
}

// A step of a small model compares each launch on the device with the host.
func TestCompareKernels(t *testing.T) {
	spmdtest.CompareKernels(t)
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		cfg := layout.Config{Layers: 1, Heads: 2, Channels: 32, SeqMax: 9, Vocab: 61}
		stepOf[float32](t, w, cfg)
		stepOf[spmd.BF16](t, w, cfg)
		cfg = traintest.SmallModern
		cfg.FP8 = layout.FP8All
		m, s, batch := eightModel(t, w, cfg)
		spmdtest.Must(t, m.ForwardBackward(s, batch, 1./96, true, nil))
		spmdtest.Must(t, s.Synchronize())
		spmdtest.Must(t, m.Close())
	})
}

func stepOf[A ops.Act](t *testing.T, w *spmd.World, cfg layout.Config) {
	const batch, length = 2, 9
	m, s := testModel[A](t, w, cfg, traintest.RandomParams(cfg, 7), batch)
	for _, first := range []Start{FromZero, OnTop} {
		spmdtest.Must(t, m.ForwardBackward(s, randomBatch(t, w, batch, length, cfg.Vocab), 0.1, first, nil))
		spmdtest.Must(t, s.Synchronize())
	}
	spmdtest.Must(t, m.Close())
}

// The same batch is divided unevenly over the ranks, and the reducer works during backward. The
// sums are the gradients of the whole batch.
func TestModelDataParallel(t *testing.T) {
	traintest.OnBoth(t, []int{1, 3}, testModelDataParallel[float32], testModelDataParallel[spmd.BF16])
}

func testModelDataParallel[A ops.Act](t *testing.T, w *spmd.World) {
	const batch, T = 4, 9
	for _, cfg := range forms {
		boundLoss, boundGrad := boundsOf[A](w, cfg)
		p := traintest.RandomParams(cfg, 1)
		in, targets := traintest.RandomTokens(batch*T, cfg.Vocab, 2), traintest.RandomTokens(batch*T, cfg.Vocab, 3)
		want := traintest.ZeroLike(p)
		wantLoss := reference(cfg, p).Batch(in, targets, T, want)

		m, s := testModel[A](t, w, cfg, p, batch)
		r, err := parallel.NewReducer(w.Comm(), m.GradGroups(), parallel.ReducerConfig{BucketBytes: 1 << 14})
		traintest.NoError(t, err)
		mine := spmd.ShardOf(batch, w.Rank(), w.Size())
		lo, hi := mine.Off*T, (mine.Off+mine.Len)*T
		part := batchOf(t, w, traintest.BufferOf(t, w, in[lo:hi]), traintest.BufferOf(t, w, targets[lo:hi]),
			mine.Len, T, cfg.Vocab)
		traintest.NoError(t, m.ForwardBackward(s, part, 1./(batch*T), true, func(g int) error { return r.Ready(g, s) }),
			r.Wait(s), spmd.AllReduce(w.Comm().On(s), m.Loss, m.Loss, spmd.Sum), s.Synchronize())
		if d := math.Abs(m.Loss.At(0) - wantLoss); !(d < boundLoss) {
			t.Errorf("%v: loss %v, reference %v", cfg.Parts, m.Loss.At(0), wantLoss)
		}
		compareGrads(t, &m.State, want, boundGrad)
		traintest.NoError(t, parallel.CheckSame(w.Comm(), "gradients", m.Grads), r.Close(), m.Close())
	}
}

// For prefixes of every kind of length, the cross-entropy of the logits is what the last token adds
// to the loss of the prefix.
func TestLogits(t *testing.T) {
	traintest.OnBoth(t, []int{1}, testLogits[float32], testLogits[spmd.BF16])
}

func testLogits[A ops.Act](t *testing.T, w *spmd.World) {
	for _, cfg := range forms {
		bound := max(1e-4, traintest.BoundsOf(w, ops.IsHalf[A]()).Loss)
		if cfg.Parts == 0 {
			bound = traintest.BoundsOf(w, ops.IsHalf[A]()).Loss
		}
		if ops.IsHalf[A]() {
			bound = 0.05 // one token's, not the mean of many
		}
		p := traintest.RandomParams(cfg, 1)
		m, s := testModel[A](t, w, cfg, p, 1)
		in := traintest.RandomTokens(cfg.SeqMax, cfg.Vocab, 2)
		targets := traintest.RandomTokens(cfg.SeqMax, cfg.Vocab, 3)
		ib, ref := traintest.BufferOf(t, w, in), reference(cfg, p)
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
			if got := math.Log(sum) - float64(x[targets[n-1]]); !(math.Abs(got-want) < bound) {
				t.Errorf("%v after %d tokens: loss %v, reference %v", cfg.Parts, n, got, want)
			}
		}
	}
}

// Tokens behind others, whose keys and values the layers have, get the logits of all tokens
// together, also in layers with a window.
func TestLogitsGoOn(t *testing.T) {
	traintest.OnBoth(t, []int{1}, testLogitsGoOn[float32], testLogitsGoOn[spmd.BF16])
}

func testLogitsGoOn[A ops.Act](t *testing.T, w *spmd.World) {
	for _, cfg := range forms[1:] {
		testLogitsGoOnFor[A](t, w, cfg)
	}
}

func testLogitsGoOnFor[A ops.Act](t *testing.T, w *spmd.World, cfg layout.Config) {
	cfg.SeqMax = 400
	bound := 1e-4
	if ops.IsHalf[A]() {
		bound = 0.1 // of logits around 5
	}
	m, s := testModel[A](t, w, cfg, traintest.RandomParams(cfg, 1), 1)
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

func TestLayout(t *testing.T) {
	gpt2 := layout.Presets["gpt2"]
	gpt2.Vocab = 50257
	if n := gpt2.ParamCount(); n != 124439808 { // the count that GPT-2's paper and llm.c give
		t.Errorf("gpt2 has %d parameters", n)
	}
	for _, cfg := range []layout.Config{traintest.Small, gpt2} {
		params, groups, n := layout.Of(cfg)
		at, count := 0, 0
		for _, p := range params {
			size := 1
			for _, d := range p.Shape {
				size *= d
			}
			if p.Off%layout.ArenaAlign != 0 || p.Off < at || p.Off >= at+layout.ArenaAlign || p.Len != size {
				t.Errorf("%s at %d, %d elements, shape %v; the one before ends at %d",
					p.Name, p.Off, p.Len, p.Shape, at)
			}
			at = p.Off + p.Len
			count += p.Len
		}
		if want := cfg.ParamCount() + (cfg.PaddedVocab()-cfg.Vocab)*cfg.Channels; count != want {
			t.Errorf("%d parameters, expected %d", count, want)
		}
		at = 0
		for i, g := range groups {
			if g.Off != at {
				t.Errorf("group %d at %d, the one before ends at %d", i, g.Off, at)
			}
			at += g.Len
		}
		if at != n || len(groups) != 2*cfg.Layers+2 {
			t.Errorf("%d groups end at %d, arena has %d", len(groups), at, n)
		}
	}
}

// The weights depend on nothing but the seed, not even on the threads.
func TestInit(t *testing.T) {
	cfg := layout.Config{Layers: 2, Heads: 2, Channels: 128, SeqMax: 40, Vocab: 1000}
	params, _, _ := layout.Of(cfg)
	defer host.SetThreads(0)
	draw := func(p layout.Param, seed uint64) []float32 {
		x := make([]float32, p.Len)
		initParam(x, p, cfg, seed)
		return x
	}
	for _, p := range params {
		host.SetThreads(1)
		x := draw(p, 1)
		host.SetThreads(3)
		if !slices.Equal(x, draw(p, 1)) {
			t.Errorf("%s depends on the number of threads", p.Name)
		}
		if slices.Equal(x, draw(p, 2)) == p.Decay {
			t.Errorf("%s: matrices depend on the seed, vectors do not", p.Name)
		}
		sum, squares := 0.0, 0.0
		for _, v := range x {
			sum += float64(v)
			squares += float64(v) * float64(v)
		}
		n := float64(p.Len)
		want := 0.0
		switch {
		case p.Name == "wte.weight":
			n = float64(cfg.Vocab * cfg.Channels)
			want = 0.02
			if !slices.Equal(x[int(n):], make([]float32, p.Len-int(n))) {
				t.Error("the rows beyond the vocabulary are not zero")
			}
		case strings.HasSuffix(p.Name, "c_proj.weight"):
			want = 0.01 // 0.02/√(2·2)
		case p.Decay:
			want = 0.02
		case strings.HasSuffix(p.Name, ".weight"): // of a LayerNorm
			want = 1
		}
		// Moments may be off by five standard errors.
		if got := math.Sqrt(squares / n); math.Abs(got-want) > 5*want/math.Sqrt(2*n) {
			t.Errorf("%s: root mean square %v, want %v", p.Name, got, want)
		}
		if p.Decay && math.Abs(sum/n) > 5*want/math.Sqrt(n) {
			t.Errorf("%s: mean %v", p.Name, sum/n)
		}
	}
}

func TestModelRefuses(t *testing.T) {
	for _, c := range []layout.Config{
		{Layers: 0, Heads: 1, Channels: 1, SeqMax: 1, Vocab: 1},
		{Layers: 1, Heads: 3, Channels: 8, SeqMax: 1, Vocab: 1},
		{Layers: 1, Heads: 1, Channels: 8, SeqMax: -1, Vocab: 1},
		{Layers: 1, Heads: 1, Channels: 8, SeqMax: 1},
	} {
		if c.Validate() == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	if _, err := layout.Preset("gpt3"); err == nil || !strings.Contains(err.Error(), "gpt2-xl") {
		t.Errorf("Preset of an unknown name: %v", err)
	}
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		m, s := testModel[float32](t, w, traintest.Small, traintest.RandomParams(traintest.Small, 1), 2)
		tokens := traintest.BufferOf(t, w, make([]int32, 3*traintest.Small.SeqMax))
		for _, tc := range []struct{ b, t, in, targets int }{
			{3, 24, 72, 72}, {0, 24, 0, 0}, {1, 25, 25, 25}, {2, 10, 20, 19}, {2, 10, 21, 20},
		} {
			if err := m.ForwardBackward(s,
				batchOf(t, w, tokens.Slice(0, tc.in), tokens.Slice(0, tc.targets), tc.b, tc.t, traintest.Small.Vocab),
				1, true, nil); err == nil {
				t.Errorf("%+v is accepted", tc)
			}
		}
	})
	if err := ops.CheckTokens([]int32{0, 60}, 61); err != nil {
		t.Error(err)
	}
	for _, bad := range []int32{61, -1, math.MaxInt32} {
		if err := ops.CheckTokens([]int32{0, 60, bad}, 61); err == nil ||
			!strings.Contains(err.Error(), fmt.Sprintf("token %d at place 2", bad)) {
			t.Errorf("token %d of 61: %v", bad, err)
		}
	}
}
