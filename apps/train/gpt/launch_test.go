package gpt

import (
	"errors"
	"math"
	rand "math/rand/v2"
	"slices"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/traintest"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// These tests launch each kernel as the model does, on the present device, and compare it with a
// loop in float64.

type shape struct{ b, t, heads, channels, vocab int }

// shapes are sizes that fill no vector, warp, block or tile, and some that do.
var shapes = []shape{
	{1, 1, 1, 1, 1},
	{1, 3, 3, 15, 61},
	{3, 1, 2, 6, 130},
	{2, 5, 1, 37, 128},
	{2, 33, 2, 40, 200},
	{1, 65, 1, 80, 300},   // heads wider than a tile, one token more than one
	{2, 130, 3, 72, 1000}, // many tokens twice
	{1, 70, 1, 136, 520},
	{1, 300, 2, 8, 5},  // rows in parts, few tokens many times
	{150, 33, 1, 8, 5}, // more tiles of rows than blocks, tokens in many parts
	{20, 33, 1, 9, 3},
	{16, 101, 4, 520, 70}, // rows of several warps
	{2, 9, 17, 2312, 5},   // rows longer than a tile's
	{2, 17, 2, 776, 5},    // a row of one warp
	{1, 3, 1, 8, 60000},   // logits longer than the memory of a block
}

// launches is one shape on a device.
type launches[A ops.Act] struct {
	*testing.T
	w   *spmd.World
	e   *enqueue[A]
	rng *rand.Rand
}

// guard is how many elements stand behind each buffer, which no kernel may change.
const guard = 16

// random returns n numbers that float32 holds exactly, and bfloat16 too if they are activations.
func (l *launches[A]) random(n int, scale float64, act bool) []float64 {
	x := make([]float64, n)
	for i := range x {
		v := float32(scale * l.rng.NormFloat64())
		if act && ops.IsHalf[A]() {
			v = spmd.ToBF16(v).Float32()
		}
		x[i] = float64(v)
	}
	return x
}

func (l *launches[A]) acts(n int, scale float64) (spmd.Buffer[A], []float64) {
	x := l.random(n, scale, true)
	return put[A](l.T, l.w, x), x
}

func (l *launches[A]) floats(n int, scale float64) (spmd.Buffer[float32], []float64) {
	x := l.random(n, scale, false)
	return put[float32](l.T, l.w, x), x
}

// fresh returns a buffer of NaN to write into.
func fresh[T ops.Act](t *testing.T, w *spmd.World, n int) spmd.Buffer[T] {
	t.Helper()
	x := make([]float64, n)
	for i := range x {
		x[i] = math.NaN()
	}
	return put[T](t, w, x)
}

// put returns a buffer of x, with a guard behind it.
func put[T ops.Act](t *testing.T, w *spmd.World, x []float64) spmd.Buffer[T] {
	t.Helper()
	b, err := spmd.Alloc[T](w, len(x)+guard)
	spmdtest.Must(t, err)
	all := make([]T, b.Len())
	for i := range all {
		v := float32(7)
		if i < len(x) {
			v = float32(x[i])
		}
		switch p := any(&all[i]).(type) {
		case *float32:
			*p = v
		case *spmd.BF16:
			*p = spmd.ToBF16(v)
		}
	}
	spmdtest.Must(t, b.CopyFrom(all))
	return b
}

// check compares a buffer of put with the wanted values. rel and abs bound the error of float32
// sums. A bfloat16 value may be off by another half unit of its last place, 2^-9.
func check[T ops.Act, A ops.Act](l *launches[A], name string, b spmd.Buffer[T], want []float64,
	rel, abs float64) {
	l.Helper()
	if ops.IsHalf[T]() {
		rel += 1. / 256
	}
	if err := l.e.Err; err != nil {
		l.Fatal(err)
	}
	if err := l.e.S.Synchronize(); err != nil {
		l.Fatal(err)
	}
	all := make([]T, b.Len())
	if err := b.CopyTo(all); err != nil {
		l.Fatal(err)
	}
	for i := range all {
		got := 0.0
		switch v := any(all[i]).(type) {
		case float32:
			got = float64(v)
		case spmd.BF16:
			got = float64(v.Float32())
		}
		if i >= len(want) {
			if got != 7 {
				l.Fatalf("%s: element %d behind the end was written: %v", name, i-len(want), got)
			}
		} else if !(math.Abs(got-want[i]) <= rel*math.Abs(want[i])+abs) {
			l.Fatalf("%s[%d] = %v, want %v", name, i, got, want[i])
		}
	}
	if err := b.Free(); err != nil {
		l.Fatal(err)
	}
}

// actsOf returns the present values of b.
func actsOf[A ops.Act](l *launches[A], b spmd.Buffer[A]) []float64 {
	l.Helper()
	all := make([]A, b.Len())
	if err := errors.Join(l.e.Err, l.e.S.Synchronize(), b.CopyTo(all)); err != nil {
		l.Fatal(err)
	}
	x := make([]float64, len(all))
	for i := range all {
		switch v := any(all[i]).(type) {
		case float32:
			x[i] = float64(v)
		case spmd.BF16:
			x[i] = float64(v.Float32())
		}
	}
	return x
}

// added returns x, plus before if acc is set.
func added(x, before []float64, acc bool) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = x[i]
		if acc {
			y[i] += before[i]
		}
	}
	return y
}

func rowsOf(x []float64, c int) [][]float64 {
	r := make([][]float64, 0, len(x)/c)
	for ; len(x) > 0; x = x[c:] {
		r = append(r, x[:c])
	}
	return r
}

func TestLaunches(t *testing.T) {
	left := 0
	for _, s := range shapes {
		if s.large() {
			left += 2
		}
	}
	testkit.More(t, left, "shapes of a model's kernels")
	traintest.OnBoth(t, []int{1}, testLaunches[float32], testLaunches[spmd.BF16])
}

// large says whether the host computes for long. Such shapes test warps and blocks.
func (s shape) large() bool { return s.b*s.t*max(s.channels, s.vocab) > 40_000 }

func testLaunches[A ops.Act](t *testing.T, w *spmd.World) {
	for i, sh := range shapes {
		if sh.large() && !testkit.AllCases() {
			continue
		}
		cfg := layout.Config{Layers: 1, Heads: sh.heads, Channels: sh.channels, SeqMax: sh.t + 2, Vocab: sh.vocab}
		m, s := testModel[A](t, w, cfg, nil, sh.b)
		for _, acc := range []bool{false, true} {
			l := &launches[A]{t, w, m.on(s, Batch{B: sh.b, T: sh.t}, Start(!acc), ops.Mode{}),
				rand.New(rand.NewPCG(uint64(i), 1))}
			t.Logf("%+v, accumulate %v", sh, acc)
			l.embeddings()
			l.layerNorm()
			l.biasGrad()
			l.loss()
			l.addResidual()
			for _, parts := range []int{2, 3, 5} {
				l.embeddingParts(parts)
				l.lossParts(parts)
			}
		}
		spmdtest.Must(t, m.Close())
	}
}

// There are more rows than the warps of a GPU's grid take at once.
func TestLayerNormOfManyRows(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		const b, tt = 105, 101
		m, s := testModel[spmd.BF16](t, w, layout.Config{Layers: 1, Heads: 1, Channels: 520, SeqMax: tt, Vocab: 5}, nil,
			b)
		l := &launches[spmd.BF16]{t, w, m.on(s, Batch{B: b, T: tt}, FromZero, ops.Mode{}),
			rand.New(rand.NewPCG(1, 2))}
		l.layerNorm()
		spmdtest.Must(t, m.Close())
	})
}

func (l *launches[A]) embeddings() {
	e, cfg := l.e, l.e.m.Cfg
	n, C := e.N, cfg.Channels
	tokens := traintest.RandomTokens(n, cfg.Vocab, 3)
	tb := traintest.BufferOf(l.T, l.w, tokens)
	wte, wv := l.floats(cfg.PaddedVocab()*C, 1)
	wpe, pv := l.floats(cfg.SeqMax*C, 1)
	out := fresh[A](l.T, l.w, n*C)
	e.EncoderForward(out, tb, wte, wpe)
	sum := make([]float64, n*C)
	for i := range sum {
		sum[i] = wv[int(tokens[i/C])*C+i%C] + pv[i/C%e.T*C+i%C]
	}
	check(l, "encoder forward", out, sum, 1e-6, 1e-6)

	dout, dv := l.acts(n*C, 1)
	dwpe, before := l.floats(cfg.SeqMax*C, 1)
	e.EncoderBackward(wte, dwpe, dout, sortedBuffer(l.T, l.w, tokens, cfg.Vocab))
	dp := make([]float64, cfg.SeqMax*C)
	for i, d := range dv {
		wv[int(tokens[i/C])*C+i%C] += d
		dp[i/C%e.T*C+i%C] += d
	}
	check(l, "dwte", wte, wv, 1e-5, 1e-5)
	check(l, "dwpe", dwpe, added(dp, before, e.Acc), 1e-5, 1e-5)
}

func (l *launches[A]) layerNorm() {
	e, n, C := l.e, l.e.N, l.e.m.Cfg.Channels
	x, xv := l.acts(n*C, 2)
	weight, wv := l.floats(C, 1)
	bias, cv := l.floats(C, 1)
	stats := func(rows [][]float64) (mean, rstd []float64) {
		for _, r := range rows {
			mu, inv := refStats(r)
			mean, rstd = append(mean, mu), append(rstd, inv)
		}
		return mean, rstd
	}
	// A row of one channel has no deviation: rounding errors grow by √1e5.
	abs := 3e-5
	if C == 1 {
		abs = 1e-3
	}
	out, mean, rstd := fresh[A](l.T, l.w, n*C), fresh[float32](l.T, l.w, n), fresh[float32](l.T, l.w, n)
	e.LayerNormForward(out, mean, rstd, x, &ops.Norm{W: weight, B: bias}, ops.Cast{})
	mu, inv := stats(rowsOf(xv, C))
	check(l, "layernorm forward", out, slices.Concat(refNorm(rowsOf(xv, C), wv, cv)...), 1e-5, abs)
	check(l, "mean", mean, mu, 1e-5, 1e-5)

	dout, dv := l.acts(n*C, 1)
	dx, dxv := l.acts(n*C, 1)
	dw, dwv := l.floats(C, 1)
	db, dbv := l.floats(C, 1)
	gw, gb := make([]float64, C), make([]float64, C)
	gx := slices.Concat(refNormBack(rowsOf(dv, C), rowsOf(xv, C), wv, gw, gb)...)
	dc, dcv := l.floats(C, 1)
	e.LayerNormBackward(ops.NormGrad[A]{DX: dx, DOut: dout, X: x, Mean: put[float32](l.T, l.w, mu),
		Rstd: put[float32](l.T, l.w, inv), Norm: &ops.Norm{W: weight, B: bias, DW: dw, DB: db},
		DColumns: dc.Slice(0, C), Adds: e.Acc})
	// The sums are of dx as it is stored.
	sums, size := make([]float64, C), 0.0
	for i, v := range actsOf(l, dx)[:n*C] {
		sums[i%C] += v
		size = max(size, math.Abs(v))
	}
	if C == 1 {
		abs = 0.1 // the sum of terms of some hundred that cancel
	}
	check(l, "rstd", rstd, inv, 1e-5, 1e-5)
	check(l, "layernorm dx", dx, added(gx, dxv, e.Acc), 1e-5, abs)
	check(l, "layernorm dcolumns", dc, added(sums, dcv, e.Acc), 1e-5, 1e-5*max(1, size))
	check(l, "layernorm dweight", dw, added(gw, dwv, e.Acc), 1e-5, 1e-4)
	check(l, "layernorm dbias", db, added(gb, dbv, e.Acc), 1e-5, 1e-4)
}

// A product replaces its sums over rows. With accumulate they are added to the gradient.
func (l *launches[A]) biasGrad() {
	e, n, C := l.e, l.e.N, l.e.m.Cfg.Channels
	dy, dyv := l.acts(n*C, 1)
	x, xv := l.acts(n*C, 1)
	p := Linear[A]{In: C, Out: C}
	var dwv, dbv []float64
	p.DW, dwv = l.floats(C*C, 1)
	p.DB, dbv = l.floats(C, 1)
	dw, db := p.DW, p.DB
	p.DW, p.DB = dw.Slice(0, C*C), db.Slice(0, C)
	e.weightBiasGrad(dy, x, &p, toSum)
	w, b := make([]float64, C*C), make([]float64, C)
	for i := range n {
		for j := range C {
			b[j] += dyv[i*C+j]
			for k := range C {
				w[j*C+k] += dyv[i*C+j] * xv[i*C+k]
			}
		}
	}
	// Tensor cores cut off what they add up, so the error of a sum grows with its terms.
	abs := 1e-5 * math.Sqrt(float64(n)) * 2
	check(l, "weight gradient", dw, added(w, dwv, e.Acc), 1e-5, max(abs, 1e-4))
	check(l, "bias gradient", db, added(b, dbv, e.Acc), 1e-5, 1e-4)
}

func (l *launches[A]) loss() {
	e, cfg := l.e, l.e.m.Cfg
	n, v, vp := e.N, cfg.Vocab, cfg.PaddedVocab()
	const scale = 0.25
	targets := traintest.RandomTokens(n, v, 5)
	tb := traintest.BufferOf(l.T, l.w, targets)
	logits, x := l.acts(n*vp, 4)
	var loss, grad []float64
	total := 0.0
	for i := range n {
		sum := 0.0
		for _, s := range x[i*vp:][:v] {
			sum += math.Exp(s)
		}
		loss = append(loss, math.Log(sum)-x[i*vp+int(targets[i])])
		total += scale * loss[i]
		for j, s := range x[i*vp:][:vp] {
			g := 0.0
			if j < v {
				g = scale * math.Exp(s) / sum
			}
			if j == int(targets[i]) {
				g -= scale
			}
			grad = append(grad, g)
		}
	}
	losses := fresh[float32](l.T, l.w, n)
	e.Classifier(losses, logits, tb, scale, false, ops.Cast{})
	check(l, "loss", losses, loss, 1e-5, 1e-5)
	losses = fresh[float32](l.T, l.w, n)
	check(l, "logits without gradient", logits, x, 0, 0)
	logits = put[A](l.T, l.w, x)
	e.Classifier(losses, logits, tb, scale, true, ops.Cast{})
	check(l, "gradient", logits, grad, 1e-4, 1e-7)

	sum, err := spmd.Alloc[float64](l.w, 1)
	if err == nil {
		err = sum.SetAll(3)
	}
	if err != nil {
		l.Fatal(err)
	}
	e.LossSum(sum, losses, scale)
	check(l, "loss", losses, loss, 1e-5, 1e-5)
	if e.Acc {
		total += 3
	}
	if got := sum.At(0); !(math.Abs(got-total) < 1e-5*math.Abs(total)+1e-6) {
		l.Fatalf("the sum of the losses is %v, want %v", got, total)
	}
}

// Sums of many parts in a step have the same bits every time, and the model takes the memory that
// was announced.
func TestStepsRepeat(t *testing.T) {
	traintest.OnBoth(t, []int{1}, testStepsRepeat[float32], testStepsRepeat[spmd.BF16])
}

func testStepsRepeat[A ops.Act](t *testing.T, w *spmd.World) {
	for _, cfg := range []layout.Config{{Layers: 1, Heads: 2, Channels: 64, SeqMax: 100, Vocab: 30},
		traintest.SmallModern} {
		m, s := testModel[A](t, w, cfg, traintest.RandomParams(cfg, 1), 8)
		n := 8 * cfg.SeqMax
		batch := randomBatch(t, w, 8, cfg.SeqMax, cfg.Vocab)
		var first []float32
		for i := range 5 {
			traintest.NoError(t, m.ForwardBackward(s, batch, 1/float32(n), true, nil), s.Synchronize())
			got := traintest.ValuesOf(t, m.Grads)
			if first == nil {
				first = got
			}
			for j, v := range first {
				if math.Float32bits(got[j]) != math.Float32bits(v) {
					t.Fatalf("run %d: gradient %d is %v, at first %v", i, j, got[j], v)
				}
			}
		}
		checkMemory(t, m, 8)
		traintest.NoError(t, m.Close())
	}
}

// checkMemory fails if a model has taken more memory than was announced.
func checkMemory[A ops.Act](t *testing.T, m *Model[A], batch int) {
	t.Helper()
	need, err := MemoryNeeded(m.Cfg, batch, m.Cfg.SeqMax, ops.IsHalf[A]())
	traintest.NoError(t, err)
	if took := m.space.Bytes + m.att.Workspace(); need < took {
		t.Errorf("%v, --fp8 %v: told %d bytes, took %d", m.Cfg.Parts, m.Cfg.FP8, need, took)
	}
}

// A token outside the vocabulary on a GPU makes the loss NaN, and nothing outside a tensor changes.
func TestBadTokens(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		if w.OnHost() {
			return // the stream fails: TestModelRefuses
		}
		m, s := testModel[float32](t, w, traintest.Small, traintest.RandomParams(traintest.Small, 1), 1)
		for _, bad := range []int32{-1, 61, math.MaxInt32, math.MinInt32} {
			for where := range 2 {
				tokens := [2][]int32{make([]int32, 4), make([]int32, 4)}
				tokens[where][2] = bad
				if err := m.ForwardBackward(s,
					batchOf(t, w, traintest.BufferOf(t, w, tokens[0]), traintest.BufferOf(t, w, tokens[1]), 1, 4,
						traintest.Small.Vocab), 0.25, true, nil); err != nil {
					t.Fatal(err)
				}
				spmdtest.Must(t, s.Synchronize())
				if !math.IsNaN(m.Loss.At(0)) {
					t.Errorf("token %d, input or target %d: loss %v", bad, where, m.Loss.At(0))
				}
			}
		}
	})
}
