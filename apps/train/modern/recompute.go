package modern

import (
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd/blas"
)

// takeLayers allocates, or counts, the memory for what forward keeps of each layer. Recomputed
// activations share one place in all layers: it holds the last ones. Layers that a later layer adds
// always keep their output.
func (m *Model[A]) takeLayers() {
	sp, cfg, N, C := m.Space(), m.Cfg, m.rows, m.Cfg.Channels
	var shared layer[A]
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
func (e *enqueue[A]) attentionPart(l int) {
	m, a, C, heads := e.m, &e.m.layer[l], e.m.Cfg.Channels, e.m.heads
	_, attn := m.Cfg.Sections(l)
	heads.turn = heads.turn.Slice(e.before*heads.size/2, heads.turn.Len())
	norm(&e.Launcher, a.ln1, e.below(l), e.skip(a), e.mode.Input(a.qkv.eight))
	e.call(m.Need, attn)
	e.product(a.raw, a.ln1, &a.qkv, blas.Options{})
	headsForward(&e.Launcher, heads, a.att3.Slice(3*C*e.before, 3*C*(e.before+e.N)), a.raw, e.in, e.values(a))
	e.attend(l)
	e.Cast(a.att, e.N*C, e.mode.Input(a.proj.eight))
	e.product(a.res2, a.att, &a.proj, blas.Options{Residual: e.stream(l).Arg()})
	e.call(m.Done, attn)
	norm(&e.Launcher, a.ln2, a.res2, skip[A]{}, e.mode.Input(a.fc.eight))
}

// mlpPart computes a layer from ln2 on. Unless whole it leaves out the second product and the copy
// for it, since backward does not read the result.
func (e *enqueue[A]) mlpPart(l int, whole bool) {
	a, to := &e.m.layer[l], ops.Cast{}
	if whole {
		to = e.mode.Input(a.proj2.eight)
	}
	mlp, _ := e.m.Cfg.Sections(l)
	e.call(e.m.Need, mlp)
	e.product(a.act, a.ln2, &a.fc, blas.Options{})
	relu2(&e.Launcher, a.act, e.N*a.fc.out, to)
	if whole {
		e.product(a.res3, a.act, &a.proj2, blas.Options{Residual: a.res2.Arg()})
	}
	e.call(e.m.Done, mlp)
}

// again recomputes what backward needs of a layer and was not kept. Copies in 8-bit floats are made
// again, and replace the present ones. Forward has recorded their largest sizes.
func (e *enqueue[A]) again(l int) {
	if !e.m.Cfg.Recomputes(l) {
		return
	}
	a, part := &e.m.layer[l], *e
	part.mode.Records = false
	if e.m.Cfg.Recompute == layout.RecomputeBlock {
		part.attentionPart(l)
	} else {
		part.Cast(a.ln2, e.N*a.fc.in, part.mode.Input(a.fc.eight))
	}
	part.mlpPart(l, false)
	part.mode.Records = e.mode.Records
	part.Cast(e.m.dres, e.N*a.proj2.out, part.mode.Grad(a.proj2.eight))
	e.Err = part.Err
}

// residualCast returns the copy of the residual stream's gradient that a norm makes for the MLP of
// a layer. There is none if again makes it.
func (e *enqueue[A]) residualCast(l int) ops.Cast {
	if l < 0 || e.m.Cfg.Recomputes(l) {
		return ops.Cast{}
	}
	return e.mode.Grad(e.m.layer[l].proj2.eight)
}

// call calls a hook of the state at a section's matrices.
func (e *enqueue[A]) call(hook func(section int) error, section int) {
	if e.Err == nil {
		e.Err = hook(section)
	}
}
