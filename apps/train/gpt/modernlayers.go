package gpt

import (
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd/blas"
)

// takeLayers allocates, or counts, the memory for what forward keeps of each layer. Recomputed
// activations share one place in all layers: it holds the last ones. Layers that a later layer adds
// always keep their output.
func (m *Modern[A]) takeLayers() {
	sp, cfg, N, C := &m.space, m.Cfg, m.rows, m.Cfg.Channels
	var shared modernLayer[A]
	for l := range m.layer {
		a := &m.layer[l]
		layout.Take(sp, N*C, &a.res3)
		a.table, a.from = cfg.ValueTable(l), cfg.SkipFrom(l)
		if a.from >= 0 {
			layout.Take(sp, N*C, &m.dkept[a.from])
			// the first such layer
			if cfg.Recompute < layout.RecomputeBlock || a.from == cfg.SkipFrom(cfg.Layers-cfg.Layers/2) {
				layout.Take(sp, N*C, &shared.res1)
			}
			a.res1 = shared.res1
		}
		if l == 0 || cfg.Recompute < layout.RecomputeBlock {
			layout.Take(sp, N*C, &shared.ln1, &shared.att, &shared.res2, &shared.ln2)
			layout.Take(sp, 3*N*C, &shared.raw, &shared.att3)
			layout.Take(sp, N*cfg.Heads, &shared.lse)
		}
		if l == 0 || cfg.Recompute == layout.RecomputeOff {
			layout.Take(sp, 4*N*C, &shared.act)
		}
		a.ln1, a.att, a.res2, a.ln2, a.raw = shared.ln1, shared.att, shared.res2, shared.ln2, shared.raw
		a.att3, a.lse, a.act = shared.att3, shared.lse, shared.act
	}
}

// attentionPart computes a layer from the residual stream that it reads up to ln2.
func (e *modernPass[A]) attentionPart(l int) {
	m, a, C, heads := e.m, &e.m.layer[l], e.m.Cfg.Channels, e.m.heads
	_, attn := m.Cfg.Sections(l)
	heads.Turn = heads.Turn.Slice(e.before*heads.Size/2, heads.Turn.Len())
	e.RMSNorm(a.ln1, e.below(l), e.skip(a), e.inputCast(&a.qkv))
	e.call(m.Need, attn)
	e.product(a.raw, a.ln1, &a.qkv, blas.Options{}, 0)
	e.HeadsForward(heads, a.att3.Slice(3*C*e.before, 3*C*(e.before+e.N)), a.raw, e.batch.In, e.values(a))
	e.attend(l)
	e.Cast(a.att, e.N*C, e.inputCast(&a.proj))
	e.product(a.res2, a.att, &a.proj, blas.Options{Residual: e.stream(l).Arg()}, 0)
	e.call(m.Done, attn)
	e.RMSNorm(a.ln2, a.res2, ops.Skip[A]{}, e.inputCast(&a.fc))
}

// mlpPart computes a layer from ln2 on.
func (e *modernPass[A]) mlpPart(l int, much mlpPart) {
	a, to := &e.m.layer[l], ops.Cast{}
	if much == wholeMLP {
		to = e.inputCast(&a.proj2)
	}
	mlp, _ := e.m.Cfg.Sections(l)
	e.call(e.m.Need, mlp)
	e.product(a.act, a.ln2, &a.fc, blas.Options{}, 0)
	e.ReLU2(a.act, e.N*a.fc.Out, to)
	if much == wholeMLP {
		e.product(a.res3, a.act, &a.proj2, blas.Options{Residual: a.res2.Arg()}, 0)
	}
	e.call(e.m.Done, mlp)
}

// again recomputes what backward needs of a layer and was not kept. Copies in 8-bit floats are made
// again, and replace the present ones. Forward has recorded their largest sizes.
func (e *modernPass[A]) again(l int) {
	if !e.m.Cfg.Recomputes(l) {
		return
	}
	a, part := &e.m.layer[l], *e
	part.mode.Records = false
	if e.m.Cfg.Recompute == layout.RecomputeBlock {
		part.attentionPart(l)
	} else {
		part.Cast(a.ln2, e.N*a.fc.In, part.inputCast(&a.fc))
	}
	part.mlpPart(l, upToActivation)
	part.mode.Records = e.mode.Records
	part.Cast(e.m.dres, e.N*a.proj2.Out, part.gradCast(&a.proj2))
	e.Err = part.Err
}

// residualCast returns the copy of the residual stream's gradient that a norm makes for the MLP of
// a layer. There is none if again makes it.
func (e *modernPass[A]) residualCast(l int) ops.Cast {
	if l < 0 || e.m.Cfg.Recomputes(l) {
		return ops.Cast{}
	}
	return e.gradCast(&e.m.layer[l].proj2)
}
