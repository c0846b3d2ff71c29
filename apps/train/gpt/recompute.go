package gpt

import (
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
)

// takeActs allocates, or counts, the memory for what forward keeps of each layer, for each
// micro-batch in flight. Recomputed activations share one place in all layers and micro-batches: it
// holds the last ones.
func (m *Model[A]) takeActs() {
	m.kept = make([]microActs[A], m.Cfg.InFlight())
	for i := range m.kept {
		k := &m.kept[i]
		if m.Cfg.Begins() {
			layout.Take(&m.space, m.rowsOf(m.rows).Held()*m.Cfg.Channels, &k.emb)
		}
		k.act = make([]layerActs[A], m.Cfg.OwnLayers())
		m.takeLayers(k.act, i == 0)
	}
	m.use(0, spmd.Buffer[A]{})
}

// takeLayers allocates, or counts, the memory of one micro-batch in flight. The first also has the
// shared memory.
func (m *Model[A]) takeLayers(act []layerActs[A], first bool) {
	sp, N, C, own := &m.space, m.rows, m.Cfg.Channels, m.Cfg.OwnChannels()
	held := m.rowsOf(N).Held()
	for l := range act {
		a := &act[l]
		*a = m.kept[0].act[0]
		a.res3 = spmd.Buffer[A]{}
		if l+1 < len(act) || m.Cfg.Ends() { // else it is the next stage's alone
			layout.Take(sp, held*C, &a.res3)
		}
		if first && l == 0 || m.Cfg.Recompute < layout.RecomputeBlock {
			layout.Take(sp, held*C, &a.ln1, &a.res2, &a.ln2)
			layout.Take(sp, N*own, &a.att)
			layout.Take(sp, held, &a.mean1, &a.rstd1, &a.mean2, &a.rstd2)
			layout.Take(sp, 3*N*own, &a.qkv)
			layout.Take(sp, N*m.Cfg.OwnHeads(), &a.lse)
		}
		if first && l == 0 || m.Cfg.Recompute == layout.RecomputeOff {
			layout.Take(sp, 4*N*own, &a.fc, &a.gelu)
		}
	}
}

// attentionPart computes a layer from ln1 up to ln2. x is the residual stream that it reads.
func (e *enqueue[A]) attentionPart(l int, x spmd.Buffer[A]) {
	m, a, p := e.m, &e.m.act[l], &e.m.par.Layers[l]
	_, attn := m.Cfg.Sections(l)
	e.call(m.Need, attn)
	e.linearOfAll(a.qkv, a.ln1, &p.QKV)
	e.attentionForward(a.att, a.lse, a.qkv)
	e.Cast(a.att, e.N*m.Cfg.OwnChannels(), e.inputCast(&p.Proj))
	e.linearResidual(a.res2, a.att, &p.Proj, x)
	e.call(m.Done, attn)
	e.norm(a.ln2, a.mean2, a.rstd2, a.res2, &p.LN2, e.inputCast(&p.FC))
}

// mlpPart computes a layer from ln2 on.
func (e *enqueue[A]) mlpPart(l int, much mlpPart) {
	m, a, p := e.m, &e.m.act[l], &e.m.par.Layers[l]
	mlp, _ := m.Cfg.Sections(l)
	e.call(m.Need, mlp)
	e.linearGELUOfAll(a.gelu, a.fc, a.ln2, &p.FC, &p.Proj2, much)
	if much == wholeMLP {
		e.linearResidual(a.res3, a.gelu, &p.Proj2, a.res2)
	}
	e.call(m.Done, mlp)
}

// again recomputes what backward needs of a layer and was not kept. x is the residual stream
// that the layer read. The last layer's activations are still there if no other micro-batch
// came in between.
//
// Copies in 8-bit floats are made again, and replace the present ones. Forward has recorded their
// largest sizes.
func (e *enqueue[A]) again(l int, x spmd.Buffer[A]) {
	m := e.m
	if !m.Cfg.Recomputes(l) {
		return
	}
	a, p, part := &m.act[l], &m.par.Layers[l], *e
	part.mode.Records = false
	if m.Cfg.Recompute == layout.RecomputeBlock {
		part.norm(a.ln1, a.mean1, a.rstd1, x, &p.LN1, part.inputCast(&p.QKV))
		part.attentionPart(l, x)
	} else if n := e.rows.Own() * p.FC.In; n > 0 {
		part.Cast(a.ln2, n, part.ownCast(part.inputCast(&p.FC)))
	}
	part.mlpPart(l, upToActivation)
	e.Err = part.Err
}

// residualCast returns the copy of the residual stream's gradient that a LayerNorm makes for the
// MLP of layer l. There is none if other copies replace it before its product.
func (e *enqueue[A]) residualCast(l int) ops.Cast {
	if e.m.Cfg.Recomputes(l) {
		return ops.Cast{}
	}
	return e.gradCast(&e.m.par.Layers[l].Proj2)
}
