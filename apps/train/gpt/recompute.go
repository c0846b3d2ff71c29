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
// shared memory. Layers that a later layer adds always keep their output.
func (m *Model[A]) takeLayers(act []layerActs[A], first bool) {
	sp, cfg, N, C, own := &m.space, m.Cfg, m.rows, m.Cfg.Channels, m.Cfg.OwnChannels()
	held := m.rowsOf(N).Held()
	var added spmd.Buffer[A]
	for l := range act {
		a := &act[l]
		*a = m.kept[0].act[0]
		a.res1, a.res3 = spmd.Buffer[A]{}, spmd.Buffer[A]{}
		if l+1 < len(act) || cfg.Ends() { // else it is the next stage's alone
			layout.Take(sp, held*C, &a.res3)
		}
		if from := cfg.SkipFrom(l); from >= 0 {
			layout.Take(sp, held*C, &m.dkept[from])
			// the first such layer
			if cfg.Recompute < layout.RecomputeBlock || from == cfg.SkipFrom(cfg.Layers-cfg.Layers/2) {
				layout.Take(sp, held*C, &added)
			}
			a.res1 = added
		}
		if first && l == 0 || cfg.Recompute < layout.RecomputeBlock {
			layout.Take(sp, held*C, &a.res2)
			m.takeNorms(&a.ln1, &a.ln2)
			layout.Take(sp, N*own, &a.att)
			layout.Take(sp, 3*N*own, &a.raw)
			if a.qkv = a.raw; cfg.Has(layout.ByHead) {
				layout.Take(sp, 3*N*own, &a.qkv)
			}
			layout.Take(sp, N*cfg.OwnHeads(), &a.lse)
		}
		if first && l == 0 || cfg.Recompute == layout.RecomputeOff {
			layout.Take(sp, 4*N*own, &a.fc)
			if a.gelu = a.fc; !cfg.Has(layout.ReLU2) {
				layout.Take(sp, 4*N*own, &a.gelu)
			}
		}
	}
}

// takeNorms allocates, or counts, the memory of outputs of norms.
func (m *Model[A]) takeNorms(norms ...*normed[A]) {
	held := m.rowsOf(m.rows).Held()
	for _, x := range norms {
		layout.Take(&m.space, held*m.Cfg.Channels, &x.out)
		if !m.Cfg.Has(layout.RMSNorms) {
			layout.Take(&m.space, held, &x.mean, &x.rstd)
		}
	}
}

// attentionPart computes a layer from the residual stream that it reads up to ln2.
func (e *enqueue[A]) attentionPart(l int) {
	m, a, p := e.m, &e.m.act[l], &e.m.par.Layers[l]
	_, attn := m.Cfg.Sections(l)
	e.norm(a.ln1, e.below(l), &p.LN1, e.skip(l), e.inputCast(&p.QKV))
	e.call(m.Need, attn)
	e.linearOfAll(a.raw, a.ln1.out, &p.QKV)
	e.attend(l)
	e.Cast(a.att, e.N*m.Cfg.OwnChannels(), e.inputCast(&p.Proj))
	e.linearResidual(a.res2, a.att, &p.Proj, e.stream(l))
	e.call(m.Done, attn)
	e.norm(a.ln2, e.intoNorm2(l), &p.LN2, ops.Skip[A]{}, e.inputCast(&p.FC))
}

// mlpPart computes a layer from ln2 on.
func (e *enqueue[A]) mlpPart(l int, much mlpPart) {
	m, a := e.m, &e.m.act[l]
	mlp, _ := m.Cfg.Sections(l)
	e.call(m.Need, mlp)
	e.intoMLP(l, much)
	if much == wholeMLP {
		e.linearResidual(a.res3, a.gelu, &m.par.Layers[l].Proj2, a.res2)
	}
	e.call(m.Done, mlp)
}

// mlpPart is how much of an MLP is computed.
type mlpPart bool

const (
	wholeMLP mlpPart = true
	// without the second product and the copy for it, since backward does not read the result
	upToActivation mlpPart = false
)

// again recomputes what backward needs of a layer and was not kept. The last layer's activations
// are still there if no other micro-batch came in between.
//
// Copies in 8-bit floats are made again, and replace the present ones. Forward has recorded their
// largest sizes.
func (e *enqueue[A]) again(l int) {
	m := e.m
	if !m.Cfg.Recomputes(l) {
		return
	}
	a, p, part := &m.act[l], &m.par.Layers[l], *e
	part.mode.Records = false
	if m.Cfg.Recompute == layout.RecomputeBlock {
		part.attentionPart(l)
	} else if n := e.rows.Own() * p.FC.In; n > 0 {
		part.Cast(a.ln2.out, n, part.ownCast(part.inputCast(&p.FC)))
	}
	part.mlpPart(l, upToActivation)
	e.Err = part.Err
}

// residualCast returns the copy of the residual stream's gradient that a norm makes for the MLP of
// layer l. There is none if other copies replace it before its product.
func (e *enqueue[A]) residualCast(l int) ops.Cast {
	if e.m.Cfg.Recomputes(l) {
		return ops.Cast{}
	}
	return e.gradCast(&e.m.par.Layers[l].Proj2)
}
