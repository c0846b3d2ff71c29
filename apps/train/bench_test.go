package main

import (
	"sync"
	"testing"

	"lockstep/spmd"
)

// The step that issue 2 sets the time of: GPT-2 124M, 4 sequences of 64 tokens.
//
//	go test ./apps/train -run '^$' -bench . -benchtime 5x
const benchB, benchT = 4, 64

// benchModel is open for the life of the process: MPI starts only once.
var benchModel = sync.OnceValues(func() (*enqueue[float32], error) {
	w, err := spmd.Open(spmd.Config{LogLevel: "error"})
	if err != nil {
		return nil, err
	}
	cfg := presets["gpt2"]
	cfg.Vocab = 50257
	m, err := NewModel[float32](w, cfg, benchB, benchT)
	if err != nil {
		return nil, err
	}
	s, err := w.NewStream("bench")
	if err != nil {
		return nil, err
	}
	return &enqueue[float32]{s: s, m: m, b: benchB, t: benchT, n: benchB * benchT}, m.Init(1)
})

func benchStart(b *testing.B) (e *enqueue[float32], in, targets spmd.Buffer[int32]) {
	b.Helper()
	e, err := benchModel()
	if err != nil {
		b.Fatal(err)
	}
	for _, t := range []*spmd.Buffer[int32]{&in, &targets} {
		if *t, err = spmd.Alloc[int32](e.s.World(), e.n); err != nil {
			b.Fatal(err)
		}
		if err = t.CopyFrom(randomTokens(e.n, e.m.Cfg.Vocab, 1)); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = t.Free() })
	}
	return e, in, targets
}

func benchOptimizer(b *testing.B, e *enqueue[float32]) *AdamW {
	b.Helper()
	o, err := NewAdamW(&e.m.State, DefaultAdam)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = o.Close() })
	return o
}

func BenchmarkStepGPT2(b *testing.B) {
	e, in, targets := benchStart(b)
	o := benchOptimizer(b, e)
	step := func() {
		if err := e.m.ForwardBackward(e.s, batchOf(in, targets, e.b, e.t), 1/float32(e.n), true, nil); err != nil {
			b.Fatal(err)
		}
		if err := o.Step(e.s, 1e-4); err != nil {
			b.Fatal(err)
		}
		if err := e.s.Synchronize(); err != nil {
			b.Fatal(err)
		}
	}
	step() // pages of the moments, threads of the BLAS
	for b.Loop() {
		step()
	}
	b.ReportMetric(float64(e.n*b.N)/b.Elapsed().Seconds(), "tokens/s")
}

// BenchmarkKernels times each kernel and product of that step alone; ms/step is its
// time for all that a step does of it.
func BenchmarkKernels(b *testing.B) {
	e, in, targets := benchStart(b)
	o := benchOptimizer(b, e)
	m, n, L := e.m, e.n, e.m.Cfg.Layers
	a, p, wte, wpe := &m.act[0], &m.par.layers[0], m.par.wte, m.par.wpe
	for _, k := range []struct {
		name string
		each int // times in a step
		run  func()
	}{
		{"gemm qkv forward", L, func() { e.linear(a.qkv, a.ln1, &p.qkv) }},
		{"gemm qkv input grad", L, func() { e.inputGrad(m.tmp, m.dwide, &p.qkv) }},
		{"gemm qkv weight grad", L, func() { e.weightGrad(m.dwide, a.ln1, &p.qkv) }},
		{"gemm attproj forward", L, func() { e.linear(m.tmp, a.att, &p.proj) }},
		{"gemm attproj input grad", L, func() { e.inputGrad(m.tmp, m.dres, &p.proj) }},
		{"gemm attproj weight grad", L, func() { e.weightGrad(m.dres, a.att, &p.proj) }},
		{"gemm fc forward", L, func() { e.linear(a.fc, a.ln2, &p.fc) }},
		{"gemm fc input grad", L, func() { e.inputGrad(m.tmp, m.dwide, &p.fc) }},
		{"gemm fc weight grad", L, func() { e.weightGrad(m.dwide, a.ln2, &p.fc) }},
		{"gemm fcproj forward", L, func() { e.linear(m.tmp, a.gelu, &p.proj2) }},
		{"gemm fcproj input grad", L, func() { e.inputGrad(m.dwide, m.dres, &p.proj2) }},
		{"gemm fcproj weight grad", L, func() { e.weightGrad(m.dres, a.gelu, &p.proj2) }},
		{"gemm head forward", 1, func() { e.linear(m.logits, m.lnf, &m.par.head) }},
		{"gemm head input grad", 1, func() { e.inputGrad(m.tmp, m.logits, &m.par.head) }},
		{"gemm head weight grad", 1, func() { e.weightGrad(m.logits, m.lnf, &m.par.head) }},
		{"encoder forward", 1, func() { e.encoderForward(m.emb, in, wte.w, wpe.w) }},
		{"encoder backward", 1, func() { e.encoderBackward(wte.dw, wpe.dw, m.dres, in) }},
		{"residual layernorm forward", 2 * L, func() {
			e.residualLayerNormForward(a.res2, a.ln2, a.mean2, a.rstd2, m.emb, m.tmp, p.proj.b, &p.ln2)
		}},
		{"layernorm backward", 2*L + 1, func() {
			e.layerNormBackward(m.dres, m.tmp, a.res2, a.mean2, a.rstd2, &p.ln2, true)
		}},
		{"bias forward", L, func() { e.biasForward(a.qkv, p.qkv.b) }},
		{"bias backward C", 2 * L, func() { e.biasBackward(p.proj.db, m.dres) }},
		{"bias backward 3C", L, func() { e.biasBackward(p.qkv.db, m.dwide) }},
		{"bias backward 4C", L, func() { e.biasBackward(p.fc.db, m.dwide) }},
		{"bias gelu forward", L, func() { e.biasGeluForward(a.gelu, a.fc, p.fc.b) }},
		{"gelu backward", L, func() { e.geluBackward(m.dwide, a.fc, p.fc.out) }},
		{"attention forward", L, func() { e.attentionForward(a.att, a.lse, a.qkv) }},
		{"attention backward", L, func() { e.attentionBackward(m.dwide, m.delta, m.tmp, a.att, a.lse, a.qkv) }},
		{"classifier", 1, func() { e.classify(targets, 1, true) }},
		{"adamw and norm", 1, func() {
			if e.err == nil {
				e.err = o.Step(e.s, 0)
			}
		}},
	} {
		b.Run(k.name, func(b *testing.B) {
			// Every kernel starts from a whole pass: the repeated sums above must not
			// run into infinities and denormal numbers.
			if err := m.ForwardBackward(e.s, batchOf(in, targets, e.b, e.t), 1/float32(n), true, nil); err != nil {
				b.Fatal(err)
			}
			k.run()
			if err := e.s.Synchronize(); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				k.run()
				if e.err == nil {
					e.err = e.s.Synchronize()
				}
				if e.err != nil {
					b.Fatal(e.err)
				}
			}
			b.ReportMetric(b.Elapsed().Seconds()*1e3/float64(b.N)*float64(k.each), "ms/step")
		})
	}
}
