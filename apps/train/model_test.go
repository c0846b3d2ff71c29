package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"lockstep/host"
	"lockstep/spmd"
	"lockstep/spmd/ddp"
	"lockstep/spmd/spmdtest"
)

// small is the model of the tests: a vocabulary that needs padding, and a head of
// 16 channels.
var small = Config{Layers: 2, Heads: 2, Channels: 32, SeqMax: 24, Vocab: 61}

// randomParams draws every tensor so that no gradient is near zero for lack of
// signal: biases and LayerNorms too. Wide layers get smaller weights: the softmax
// would magnify every rounding.
func randomParams(cfg Config, seed uint64) map[string][]float64 {
	rng := rand.New(rand.NewPCG(seed, 1))
	params, _, _ := layout(cfg)
	std := 0.15 * min(1, math.Sqrt(32/float64(cfg.Channels)))
	ps := map[string][]float64{}
	for _, p := range params {
		x := make([]float64, p.Len)
		for i := range x {
			x[i] = std * rng.NormFloat64()
			if strings.HasSuffix(p.Name, ".weight") && !p.Decay {
				x[i]++
			}
			x[i] = float64(float32(x[i])) // the same values in both models
		}
		if p.Name == "wte.weight" {
			clear(x[cfg.Vocab*cfg.Channels:])
		}
		ps[p.Name] = x
	}
	return ps
}

func randomTokens(n, vocab int, seed uint64) []int32 {
	rng := rand.New(rand.NewPCG(seed, 2))
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(rng.IntN(vocab))
	}
	return x
}

func reference(cfg Config, p map[string][]float64) *refModel {
	return &refModel{layers: cfg.Layers, heads: cfg.Heads, channels: cfg.Channels, vocab: cfg.Vocab, p: p}
}

func zeroLike(p map[string][]float64) map[string][]float64 {
	g := map[string][]float64{}
	for name, x := range p {
		g[name] = make([]float64, len(x))
	}
	return g
}

// The reference's own gradients against central differences of its loss: the
// error of each element against the largest gradient of the tensor.
func TestReferenceGradients(t *testing.T) {
	cfg := small
	m := reference(cfg, randomParams(cfg, 1))
	in, targets := randomTokens(10, cfg.Vocab, 3), randomTokens(10, cfg.Vocab, 4)
	grad := zeroLike(m.p)
	m.batch(in, targets, 5, grad)
	loss := func(x *float64, v float64) float64 {
		old := *x
		*x = v
		defer func() { *x = old }()
		return m.batch(in, targets, 5, nil)
	}
	params, _, _ := layout(cfg)
	rng := rand.New(rand.NewPCG(5, 6))
	all := 0.0
	for _, p := range params {
		x, g := m.p[p.Name], grad[p.Name]
		largest, worst := 0.0, 0.0
		for _, v := range g {
			largest = max(largest, math.Abs(v))
		}
		for range 24 {
			i := rng.IntN(p.Len)
			switch p.Name { // where a gradient may differ from zero
			case "wte.weight":
				i %= cfg.Vocab * cfg.Channels
			case "wpe.weight":
				i %= 5 * cfg.Channels
			}
			// Five points: the error is of fourth order, so that the step can be large
			// enough for the rounding of the loss not to matter.
			const h = 1e-3
			v := x[i]
			d := (8*(loss(&x[i], v+h)-loss(&x[i], v-h)) - (loss(&x[i], v+2*h) - loss(&x[i], v-2*h))) / (12 * h)
			worst = max(worst, math.Abs(d-g[i])/largest)
		}
		if !(worst < 1e-6) {
			t.Errorf("%s: largest relative error %.2g", p.Name, worst)
		}
		t.Logf("%-22s %.1e", p.Name, worst)
		all = max(all, worst)
	}
	measured(t, "largest relative error of a float64 gradient against central differences", all)
}

// loadParams copies the tensors of p into an arena.
func loadParams(t *testing.T, params []Param, weights spmd.Buffer[float32], p map[string][]float64) {
	t.Helper()
	for _, q := range params {
		x := make([]float32, q.Len)
		for i, v := range p[q.Name] {
			x[i] = float32(v)
		}
		if err := weights.Slice(q.Off, q.Off+q.Len).CopyFrom(x); err != nil {
			t.Fatal(err)
		}
	}
}

// testModel is a model on a stream of w, with the given weights.
func testModel[A Act](t *testing.T, w *spmd.World, cfg Config, p map[string][]float64, maxBatch int) (*Model[A], *spmd.Stream) {
	t.Helper()
	m, err := NewModel[A](w, cfg, maxBatch, cfg.SeqMax)
	if err != nil {
		t.Fatal(err)
	}
	s, err := w.NewStream("test")
	if err != nil {
		t.Fatal(err)
	}
	if p != nil {
		loadParams(t, m.Params, m.Weights, p)
		if err := m.Refresh(s); err != nil {
			t.Fatal(err)
		}
	}
	return m, s
}

// bounds are how far loss and gradients may be from the reference.
type bounds struct{ loss, grad float64 }

// boundsOf returns what activations, bfloat16 with half, and the device allow. The sums of a GPU go in an order of
// their own, and its exponentials are not those of the host.
func boundsOf(w *spmd.World, half bool) bounds {
	switch {
	case half:
		return bounds{0.01, 2e-2}
	case w.OnHost():
		return bounds{1e-5, 1e-5}
	}
	return bounds{1e-4, 1e-4}
}

// nameOf is how A is called in what the tests measure.
func nameOf[A Act]() string {
	if isHalf[A]() {
		return "bfloat16"
	}
	return "float32"
}

// onBoth runs a test for each type of activations.
func onBoth(t *testing.T, ranks []int, f32, half func(t *testing.T, w *spmd.World)) {
	t.Run("float32", func(t *testing.T) { spmdtest.Run(t, ranks, f32) })
	t.Run("bfloat16", func(t *testing.T) { spmdtest.Run(t, ranks, half) })
}

// floatsOf copies a buffer to the host.
func floatsOf(t *testing.T, b spmd.Buffer[float32]) []float32 {
	t.Helper()
	x := make([]float32, b.Len())
	if err := b.CopyTo(x); err != nil {
		t.Fatal(err)
	}
	return x
}

func tokenBuffer(t *testing.T, w *spmd.World, x []int32) spmd.Buffer[int32] {
	t.Helper()
	b, err := spmd.Alloc[int32](w, len(x))
	if err == nil {
		err = b.CopyFrom(x)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// batchOf is a micro-batch of b sequences of n tokens.
func batchOf(t testing.TB, w *spmd.World, in, targets spmd.Buffer[int32], b, n, vocab int) Batch {
	t.Helper()
	tokens := make([]int32, in.Len())
	if err := in.CopyTo(tokens); err != nil {
		t.Fatal(err)
	}
	return Batch{In: in, Targets: targets, Sorted: sortedBuffer(t, w, tokens, vocab), B: b, T: n}
}

// sortedBuffer holds tokens as sorter.sort leaves them; what is beyond the vocabulary
// counts as token 0.
func sortedBuffer(t testing.TB, w *spmd.World, tokens []int32, vocab int) spmd.Buffer[int32] {
	t.Helper()
	tokens = slices.Clone(tokens)
	for i, x := range tokens {
		if x < 0 || int(x) >= vocab {
			tokens[i] = 0
		}
	}
	list := slices.Repeat([]int32{-1 << 30}, sortedLen(len(tokens), vocab))
	new(sorter).sort(list, tokens, vocab)
	b, err := spmd.Alloc[int32](w, len(list))
	if err == nil {
		err = b.CopyFrom(list)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// compareGrads fails where a tensor's gradient is further than bound from the
// reference, relative to its norm, and returns the largest such distance.
func compareGrads(t *testing.T, m *State, want map[string][]float64, bound float64) float64 {
	t.Helper()
	got := floatsOf(t, m.Grads)
	worst, where := 0.0, ""
	for _, p := range m.Params {
		d, n := 0.0, 0.0
		for i, v := range want[p.Name] {
			e := float64(got[p.Off+i]) - v
			d += e * e
			n += v * v
		}
		e := math.Sqrt(d / n)
		if !(e < bound) {
			t.Errorf("%s: gradient differs by %.2g of its norm", p.Name, e)
		}
		if !(e <= worst) { // NaN is the worst of all
			worst, where = e, p.Name
		}
	}
	t.Logf("largest difference %.1e, of %s", worst, where)
	return worst
}

// The model against the float64 reference: loss and every gradient, for shapes that
// fill vectors and blocks and shapes that do not, whole and in uneven micro-batches.
func TestModelAgainstReference(t *testing.T) {
	onBoth(t, []int{1}, testModelAgainstReference[float32], testModelAgainstReference[spmd.BF16])
}

func testModelAgainstReference[A Act](t *testing.T, w *spmd.World) {
	bound := boundsOf(w, isHalf[A]())
	worstLoss, worstGrad := 0.0, 0.0
	for _, tc := range []struct {
		cfg   Config
		parts []int // sequences of each micro-batch
		t     int
	}{
		{small, []int{4}, 24},
		{small, []int{2, 1, 3}, 11},
		{Config{Layers: 1, Heads: 1, Channels: 9, SeqMax: 7, Vocab: 5}, []int{3}, 7},
		{Config{Layers: 1, Heads: 3, Channels: 15, SeqMax: 1, Vocab: 128}, []int{1, 1}, 1},
		{Config{Layers: 1, Heads: 1, Channels: 80, SeqMax: 70, Vocab: 257}, []int{1, 2}, 70},
		{Config{Layers: 2, Heads: 2, Channels: 128, SeqMax: 64, Vocab: 300}, []int{1}, 64},
		{Config{Layers: 1, Heads: 1, Channels: 8, SeqMax: 64, Vocab: 5}, []int{headRows/64 + 1, 3}, 64}, // more rows than the head takes at once
	} {
		batch := 0
		for _, b := range tc.parts {
			batch += b
		}
		name := fmt.Sprintf("%+v %v×%d", tc.cfg, tc.parts, tc.t)
		p := randomParams(tc.cfg, 7)
		in, targets := randomTokens(batch*tc.t, tc.cfg.Vocab, 8), randomTokens(batch*tc.t, tc.cfg.Vocab, 9)
		want := zeroLike(p)
		wantLoss := reference(tc.cfg, p).batch(in, targets, tc.t, want)

		m, s := testModel[A](t, w, tc.cfg, p, batch)
		ib, tb := tokenBuffer(t, w, in), tokenBuffer(t, w, targets)
		scale := 1 / float32(batch*tc.t)
		// A second pass must not see the first.
		for range 2 {
			lo, group := 0, 0
			for i, b := range tc.parts {
				hi := lo + b*tc.t
				var ready func(int) error
				if i == len(tc.parts)-1 {
					ready = func(g int) error {
						if g != group {
							t.Errorf("%s: group %d is ready, expected %d", name, g, group)
						}
						group++
						return nil
					}
				}
				if err := m.ForwardBackward(s, batchOf(t, w, ib.Slice(lo, hi), tb.Slice(lo, hi), b, tc.t, tc.cfg.Vocab), scale, i == 0, ready); err != nil {
					t.Fatal(err)
				}
				lo = hi
			}
			if group != len(m.Groups) {
				t.Errorf("%s: %d of %d groups were ready", name, group, len(m.Groups))
			}
		}
		if err := s.Synchronize(); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: loss %.7f, reference %.7f", name, m.Loss.At(0), wantLoss)
		d := math.Abs(m.Loss.At(0) - wantLoss)
		if !(d < bound.loss) {
			t.Errorf("%s: loss %v, reference %v", name, m.Loss.At(0), wantLoss)
		}
		worstLoss, worstGrad = max(worstLoss, d), max(worstGrad, compareGrads(t, &m.State, want, bound.grad))

		if err := m.Evaluate(s, batchOf(t, w, ib, tb, batch, tc.t, tc.cfg.Vocab), scale, true); err != nil {
			t.Fatal(err)
		}
		if err := s.Synchronize(); err != nil {
			t.Fatal(err)
		}
		d = math.Abs(m.Loss.At(0) - wantLoss)
		if !(d < bound.loss) {
			t.Errorf("%s: Evaluate gives %v, reference %v", name, m.Loss.At(0), wantLoss)
		}
		worstLoss = max(worstLoss, d)
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	measured(t, "difference of the "+nameOf[A]()+" loss from the float64 model", worstLoss)
	measured(t, "largest relative difference of a "+nameOf[A]()+" gradient tensor from the float64 model", worstGrad)
}

// The same batch over the ranks, unevenly, with the reducer at work during
// backward: the sums are the gradients of the whole.
func TestModelDataParallel(t *testing.T) {
	onBoth(t, []int{1, 3}, testModelDataParallel[float32], testModelDataParallel[spmd.BF16])
}

func testModelDataParallel[A Act](t *testing.T, w *spmd.World) {
	bound := boundsOf(w, isHalf[A]())
	const batch, T = 4, 9
	cfg := small
	p := randomParams(cfg, 1)
	in, targets := randomTokens(batch*T, cfg.Vocab, 2), randomTokens(batch*T, cfg.Vocab, 3)
	want := zeroLike(p)
	wantLoss := reference(cfg, p).batch(in, targets, T, want)

	m, s := testModel[A](t, w, cfg, p, batch)
	r, err := ddp.NewReducer(w.Comm(), m.GradGroups(), ddp.ReducerConfig{BucketBytes: 1 << 14})
	if err != nil {
		t.Fatal(err)
	}
	mine := spmd.ShardOf(batch, w.Rank(), w.Size())
	lo, hi := mine.Off*T, (mine.Off+mine.Len)*T
	ib, tb := tokenBuffer(t, w, in[lo:hi]), tokenBuffer(t, w, targets[lo:hi])
	ready := func(g int) error { return r.Ready(g, s) }
	if err := m.ForwardBackward(s, batchOf(t, w, ib, tb, mine.Len, T, cfg.Vocab), 1./(batch*T), true, ready); err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(s); err != nil {
		t.Fatal(err)
	}
	if err := spmd.AllReduce(w.Comm().On(s), m.Loss, m.Loss, spmd.Sum); err != nil {
		t.Fatal(err)
	}
	if err := s.Synchronize(); err != nil {
		t.Fatal(err)
	}
	if d := math.Abs(m.Loss.At(0) - wantLoss); !(d < bound.loss) {
		t.Errorf("loss %v, reference %v", m.Loss.At(0), wantLoss)
	}
	compareGrads(t, &m.State, want, bound.grad)
	if err := ddp.CheckSame(w.Comm(), "gradients", m.Grads); err != nil {
		t.Error(err)
	}
}

// One batch is learned by heart; and the same steps from a graph give the same bits.
func TestOverfit(t *testing.T) {
	onBoth(t, []int{1}, testOverfit[float32], testOverfit[spmd.BF16])
}

func testOverfit[A Act](t *testing.T, w *spmd.World) {
	const batch, T, steps = 2, 16, 60
	cfg := small
	adam := AdamConfig{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1}
	ib, tb := tokenBuffer(t, w, randomTokens(batch*T, cfg.Vocab, 2)), tokenBuffer(t, w, randomTokens(batch*T, cfg.Vocab, 3))
	rows := make([]int32, sortedLen(batch*T, cfg.Vocab))
	new(sorter).sort(rows, randomTokens(batch*T, cfg.Vocab, 2), cfg.Vocab)
	part := Batch{In: ib, Targets: tb, Sorted: tokenBuffer(t, w, rows), B: batch, T: T}
	var weights [2][]float32
	for graphed := range weights {
		m, s := modelWith[A](t, w, cfg, randomParams(cfg, 1), batch)
		if err := m.Init(1); err != nil {
			t.Fatal(err)
		}
		if err := m.Refresh(s); err != nil {
			t.Fatal(err)
		}
		o, err := NewAdamW(&m.State, adam)
		if err != nil {
			t.Fatal(err)
		}
		body := func() error {
			if err := m.ForwardBackward(s, part, 1./(batch*T), true, nil); err != nil {
				return err
			}
			return o.Apply(s)
		}
		run := body
		if graphed == 1 {
			g, err := s.Capture(body)
			if err != nil {
				t.Fatal(err)
			}
			run = func() error { return g.Launch(s) }
		}
		for range steps {
			if err := o.Prepare(s, 1e-2); err != nil {
				t.Fatal(err)
			}
			if err := run(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Synchronize(); err != nil {
			t.Fatal(err)
		}
		t.Logf("loss %.4f", m.Loss.At(0))
		if loss := m.Loss.At(0); !(loss < 0.1) {
			t.Errorf("loss after %d steps on one batch is %v", steps, loss)
		}
		weights[graphed] = floatsOf(t, m.Weights)
	}
	if !slices.Equal(weights[0], weights[1]) {
		t.Error("the steps of a graph differ from those enqueued")
	}
}

// Logits of the next token, for prefixes of every kind of length: their
// cross-entropy is what the loss of the prefix gains by its last token.
func TestLogits(t *testing.T) {
	onBoth(t, []int{1}, testLogits[float32], testLogits[spmd.BF16])
}

func testLogits[A Act](t *testing.T, w *spmd.World) {
	bound := boundsOf(w, isHalf[A]()).loss
	if isHalf[A]() {
		bound = 0.05 // one token's, not the mean of many
	}
	cfg := small
	p := randomParams(cfg, 1)
	m, s := testModel[A](t, w, cfg, p, 1)
	in, targets := randomTokens(cfg.SeqMax, cfg.Vocab, 2), randomTokens(cfg.SeqMax, cfg.Vocab, 3)
	ib := tokenBuffer(t, w, in)
	ref := reference(cfg, p)
	for _, n := range []int{1, 2, 17, cfg.SeqMax} {
		want := ref.sequence(in[:n], targets[:n], 1, nil)
		if n > 1 {
			want -= ref.sequence(in[:n-1], targets[:n-1], 1, nil)
		}
		logits, err := m.Logits(s, ib.Slice(0, n))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Synchronize(); err != nil {
			t.Fatal(err)
		}
		x := floatsOf(t, logits)
		sum := 0.0
		for _, v := range x {
			sum += math.Exp(float64(v))
		}
		if got := math.Log(sum) - float64(x[targets[n-1]]); !(math.Abs(got-want) < bound) {
			t.Errorf("after %d tokens: loss %v, reference %v", n, got, want)
		}
	}
}

func TestLayout(t *testing.T) {
	gpt2 := presets["gpt2"]
	gpt2.Vocab = 50257
	if n := gpt2.ParamCount(); n != 124439808 { // the count that GPT-2's paper and llm.c give
		t.Errorf("gpt2 has %d parameters", n)
	}
	for _, cfg := range []Config{small, gpt2} {
		params, groups, n := layout(cfg)
		at, count := 0, 0
		for _, p := range params {
			size := 1
			for _, d := range p.Shape {
				size *= d
			}
			if p.Off%arenaAlign != 0 || p.Off < at || p.Off >= at+arenaAlign || p.Len != size {
				t.Errorf("%s at %d, %d elements, shape %v; the one before ends at %d", p.Name, p.Off, p.Len, p.Shape, at)
			}
			at = p.Off + p.Len
			count += p.Len
		}
		if want := cfg.ParamCount() + (cfg.PaddedVocab()-cfg.Vocab)*cfg.Channels; count != want {
			t.Errorf("%d parameters, expected %d", count, want)
		}
		at = 0
		for _, g := range groups {
			if g.Off != at {
				t.Errorf("group %s at %d, the one before ends at %d", g.Name, g.Off, at)
			}
			at += g.Len
		}
		if at != n || len(groups) != 2*cfg.Layers+2 {
			t.Errorf("%d groups end at %d, arena has %d", len(groups), at, n)
		}
	}
}

// The weights depend on the seed and on nothing else, not on the threads either.
func TestInit(t *testing.T) {
	cfg := Config{Layers: 2, Heads: 2, Channels: 128, SeqMax: 40, Vocab: 1000}
	params, _, _ := layout(cfg)
	defer host.SetThreads(0)
	draw := func(p Param, seed uint64) []float32 {
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
		// Five standard errors of each moment.
		if got := math.Sqrt(squares / n); math.Abs(got-want) > 5*want/math.Sqrt(2*n) {
			t.Errorf("%s: root mean square %v, want %v", p.Name, got, want)
		}
		if p.Decay && math.Abs(sum/n) > 5*want/math.Sqrt(n) {
			t.Errorf("%s: mean %v", p.Name, sum/n)
		}
	}
}

func TestModelRefuses(t *testing.T) {
	for _, c := range []Config{
		{Layers: 0, Heads: 1, Channels: 1, SeqMax: 1, Vocab: 1},
		{Layers: 1, Heads: 3, Channels: 8, SeqMax: 1, Vocab: 1},
		{Layers: 1, Heads: 1, Channels: 8, SeqMax: -1, Vocab: 1},
		{Layers: 1, Heads: 1, Channels: 8, SeqMax: 1},
	} {
		if c.Validate() == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	if _, err := Preset("gpt3"); err == nil || !strings.Contains(err.Error(), "gpt2-xl") {
		t.Errorf("Preset of an unknown name: %v", err)
	}
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		m, s := testModel[float32](t, w, small, randomParams(small, 1), 2)
		tokens := tokenBuffer(t, w, make([]int32, 3*small.SeqMax))
		for _, tc := range []struct{ b, t, in, targets int }{
			{3, 24, 72, 72}, {0, 24, 0, 0}, {1, 25, 25, 25}, {2, 10, 20, 19}, {2, 10, 21, 20},
		} {
			if err := m.ForwardBackward(s, batchOf(t, w, tokens.Slice(0, tc.in), tokens.Slice(0, tc.targets), tc.b, tc.t, small.Vocab), 1, true, nil); err == nil {
				t.Errorf("%+v is accepted", tc)
			}
		}
	})
	if err := checkTokens([]int32{0, 60}, 61); err != nil {
		t.Error(err)
	}
	for _, bad := range []int32{61, -1, math.MaxInt32} {
		if err := checkTokens([]int32{0, 60, bad}, 61); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("token %d at place 2", bad)) {
			t.Errorf("token %d of 61: %v", bad, err)
		}
	}
}
