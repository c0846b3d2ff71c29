package gpt

import (
	"fmt"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/traintest"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/blas"
)

// The benchmarks time the passes of GPT-2 124M, and each kernel and product of them:
//
//	go test ./apps/train/gpt -run '^$' -bench . -benchtime 5x
//
// On the host it is GPT-2 124M in float32, with 4 sequences of 64 tokens. On a GPU
// (SPMDTEST_DEVICE=cuda) it is in bfloat16, with 64 and 8 sequences of 1024 tokens. There each
// kernel stands beside its floor: the bytes that it has to move at the speed of a copy.
type benchShape struct {
	b, t int
	half bool
}

func benchShapes(w *spmd.World) []benchShape {
	if w.OnHost() {
		return []benchShape{{4, 64, false}}
	}
	return []benchShape{{64, 1024, true}, {8, 1024, true}}
}

// These are an H200's best, in bytes and operations a second: a copy, as measured, and the fastest
// products of bfloat16 matrices.
const (
	copyRate    = 4.3e12
	productRate = 790e12
)

var benchWorlds struct{ w *spmd.World } // open until the process ends: MPI starts only once

func benchWorld(b *testing.B) *spmd.World {
	b.Helper()
	if benchWorlds.w == nil {
		w, err := spmd.Open(spmd.Config{LogLevel: "error"})
		testkit.Must(b, err)
		benchWorlds.w = w
	}
	return benchWorlds.w
}

// bench is a model of GPT-2's shape, with a batch that it has learned from once.
type bench[A ops.Act] struct {
	*enqueue[A]
	batch Batch
}

func newBench[A ops.Act](b *testing.B, w *spmd.World, sh benchShape) *bench[A] {
	b.Helper()
	cfg := layout.Presets["gpt2"]
	cfg.Vocab = 50257
	m, err := NewModel[A](w, cfg, sh.b, sh.t)
	testkit.Must(b, err)
	b.Cleanup(func() { _ = m.Close() })
	s, err := w.NewStream("bench")
	testkit.Must(b, err)
	b.Cleanup(func() { _ = s.Close() })
	x := &bench[A]{}
	tokens := func(seed uint64) spmd.Buffer[int32] {
		t, err := spmd.Alloc[int32](w, sh.b*sh.t)
		if err == nil {
			err = t.CopyFrom(traintest.RandomTokens(sh.b*sh.t, cfg.Vocab, seed))
		}
		testkit.Must(b, err)
		b.Cleanup(func() { _ = t.Free() })
		return t
	}
	x.batch = batchOf(b, w, tokens(1), tokens(2), sh.b, sh.t, cfg.Vocab)
	x.enqueue = m.on(s, x.batch, FromZero, ops.Mode{})
	testkit.Must(b, m.Init(1))
	testkit.Must(b, m.Refresh(s))
	x.step(b)
	if err := blas.Tune(w); err != nil { // as train does
		b.Fatal(err)
	}
	return x
}

func (x *bench[A]) step(b *testing.B) {
	testkit.Must(b, x.m.ForwardBackward(x.S, x.batch, 1/float32(x.N), true, nil))
	testkit.Must(b, x.S.Synchronize())
}

// onShapes runs a benchmark for each shape.
func onShapes(b *testing.B, f32 func(*testing.B, *bench[float32]), half func(*testing.B, *bench[spmd.BF16])) {
	w := benchWorld(b)
	for _, sh := range benchShapes(w) {
		b.Run(fmt.Sprintf("%dx%d", sh.b, sh.t), func(b *testing.B) {
			if sh.half {
				half(b, newBench[spmd.BF16](b, w, sh))
			} else {
				f32(b, newBench[float32](b, w, sh))
			}
		})
	}
}

// BenchmarkPasses times the forward and the backward pass.
func BenchmarkPasses(b *testing.B) { onShapes(b, benchPasses[float32], benchPasses[spmd.BF16]) }

func benchPasses[A ops.Act](b *testing.B, x *bench[A]) {
	for b.Loop() {
		x.step(b)
	}
	b.ReportMetric(float64(x.N*b.N)/b.Elapsed().Seconds(), "tokens/s")
}

// BenchmarkKernels times each kernel and product of a step alone. ms/step is the time for all of
// its uses in a step.
func BenchmarkKernels(b *testing.B) { onShapes(b, benchKernels[float32], benchKernels[spmd.BF16]) }

func benchKernels[A ops.Act](b *testing.B, x *bench[A]) {
	e, m, L := x.enqueue, x.m, x.m.Cfg.Layers
	a, p, wte, wpe := &m.act[0], &m.par.Layers[0], m.par.WTE, m.par.WPE
	var size float64 = 4
	if ops.IsHalf[A]() {
		size = 2
	}
	N, C, Vp := float64(e.N), float64(m.Cfg.Channels), float64(m.Cfg.PaddedVocab())
	rows := min(e.N, layout.HeadRows)
	head := *e
	head.N = rows
	lnf := m.lnf.out.Slice(0, rows*m.Cfg.Channels)
	logits := m.logits.Slice(0, rows*m.Cfg.PaddedVocab())
	targets := x.batch.Targets.Slice(0, rows)
	chunks := (e.N + rows - 1) / rows
	product := func(l *Linear[A]) float64 { return 2 * N * float64(l.In) * float64(l.Out) }
	headProduct := 2 * float64(rows) * C * Vp
	for _, k := range []struct {
		name         string
		each         int     // times in a step
		bytes, flops float64 // that it has to move, to do
		run          func()
	}{
		{"gemm qkv forward", L, 0, product(&p.QKV), func() { e.linear(a.raw, a.ln1.out, &p.QKV) }},
		{"gemm qkv input grad", L, 0, product(&p.QKV), func() { e.inputGrad(m.tmp, m.dwide, &p.QKV) }},
		{"gemm qkv weight grad, bias grad", L, 0, product(&p.QKV),
			func() { e.weightBiasGrad(m.dwide, a.ln1.out, &p.QKV, toSum) }},
		{"gemm qkv weight grad", L, 0, product(&p.QKV), func() { e.weightGrad(m.dwide, a.ln1.out, &p.QKV) }},
		{"gemm attproj forward", L, 0, product(&p.Proj), func() { e.linearResidual(a.res2, a.att, &p.Proj, m.emb) }},
		{"gemm attproj input grad", L, 0, product(&p.Proj), func() { e.inputGrad(m.tmp, m.dres, &p.Proj) }},
		{"gemm attproj weight grad", L, 0, product(&p.Proj), func() { e.weightGrad(m.dres, a.att, &p.Proj) }},
		{"gemm fc forward", L, 0, product(&p.FC), func() { e.linearGELU(a.gelu, a.fc, a.ln2.out, &p.FC) }},
		{"gemm fc input grad", L, 0, product(&p.FC), func() { e.inputGrad(m.tmp, m.dwide, &p.FC) }},
		{"gemm fc weight grad, bias grad", L, 0, product(&p.FC),
			func() { e.weightBiasGrad(m.dwide, a.ln2.out, &p.FC, toSum) }},
		{"gemm fc weight grad", L, 0, product(&p.FC), func() { e.weightGrad(m.dwide, a.ln2.out, &p.FC) }},
		{"gemm fcproj forward", L, 0, product(&p.Proj2), func() { e.linearResidual(a.res3, a.gelu, &p.Proj2, a.res2) }},
		{"gemm fcproj input grad", L, 0, product(&p.Proj2),
			func() { e.inputGradGELU(m.dwide, m.dres, &p.Proj2, a.fc) }},
		{"gemm fcproj weight grad", L, 0, product(&p.Proj2), func() { e.weightGrad(m.dres, a.gelu, &p.Proj2) }},
		{"gemm head forward", chunks, 0, headProduct, func() { head.linear(logits, lnf, &m.par.Head) }},
		{"gemm head input grad", chunks, 0, headProduct, func() { head.inputGrad(m.tmp, logits, &m.par.Head) }},
		{"gemm head weight grad", chunks, 0, headProduct, func() { head.weightGrad(logits, lnf, &m.par.Head) }},
		{"encoder forward", 1, N * C * (4 + size), 0, func() { e.EncoderForward(m.emb, x.batch.In, wte.W, wpe.W) }},
		{"encoder backward", 1, N * C * 2 * size, 0,
			func() { e.EncoderBackward(wte.DW, wpe.DW, m.dres, x.batch.Sorted) }},
		{"layernorm forward", 2*L + 1, N * C * 2 * size, 0,
			func() { e.norm(a.ln1, m.emb, &p.LN1, ops.Skip[A]{}, ops.Cast{}) }},
		{"layernorm backward", 2*L + 1, N * C * 4 * size, 0, func() {
			e.normBackward(normGrad[A]{of: &a.ln2, x: a.res2, p: &p.LN2, columns: p.Proj.DB, adds: true})
		}},
		{"attention forward", L, 0, 0, func() { e.attend(0) }},
		{"attention backward", L, 0, 0, func() { e.attentionBackward(0) }},
		{"classifier", chunks, float64(rows) * Vp * 2 * size, 0,
			func() { e.Classifier(m.losses.Slice(0, rows), logits, targets, 1, true, ops.Cast{}) }},
		{"loss sum", 1, N * 4, 0, func() { e.LossSum(m.Loss, m.losses, 1) }},
	} {
		b.Run(k.name, func(b *testing.B) {
			// Every kernel starts from a whole pass, so that the repeated sums above do not run
			// into infinities and denormal numbers.
			x.step(b)
			k.run()
			testkit.Must(b, e.S.Synchronize())
			b.ResetTimer()
			for range b.N {
				k.run()
			}
			if e.Err == nil {
				e.Err = head.Err
			}
			if e.Err == nil {
				e.Err = e.S.Synchronize()
			}
			if e.Err != nil {
				b.Fatal(e.Err)
			}
			b.StopTimer()
			each := b.Elapsed().Seconds() / float64(b.N)
			b.ReportMetric(each*1e3*float64(k.each), "ms/step")
			floor := max(k.bytes/copyRate, k.flops/productRate)
			if floor > 0 && !e.S.World().OnHost() {
				b.ReportMetric(floor*1e6, "floor-us")
				b.ReportMetric(100*floor/each, "%ofbest")
			}
		})
	}
}
