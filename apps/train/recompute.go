package main

import (
	"fmt"
	"slices"

	"lockstep/spmd"
)

// recomputation says which activations the backward pass computes once more, instead of each
// layer keeping them. The bits are the same.
type recomputation int

const (
	recomputeOff   recomputation = iota
	recomputeGELU                // those between the two products of an MLP, (N,4C) before and after the GELU
	recomputeBlock               // all but the residual stream that leaves the layer
)

var recomputeNames = [...]string{"off", "gelu", "block"}

func (r recomputation) String() string { return recomputeNames[r] }

// parseRecompute is the recomputation of a name.
func parseRecompute(name string) (recomputation, error) {
	if i := slices.Index(recomputeNames[:], name); i >= 0 {
		return recomputation(i), nil
	}
	return 0, fmt.Errorf("--recompute %s: unknown, want off, gelu or block", name)
}

// checkRecompute refuses recomputation where a layer's products are of 8-bit floats: the copies
// of activations and of gradients take turns in one place. asked is where they were asked for.
func (o *options) checkRecompute(asked string) error {
	if o.cfg.Recompute != recomputeOff && o.cfg.FP8 == fp8All {
		return fmt.Errorf("%s does not go with --recompute %v: take --fp8 head", asked, o.cfg.Recompute)
	}
	return nil
}

// takeActs takes, or counts, the memory for what forward keeps of each layer. What is computed
// once more has the same memory in all layers: it is there for the last one that was computed.
func (m *Model[A]) takeActs() {
	sp, N, C := &m.space, m.rows, m.Cfg.Channels
	for l := range m.act {
		a := &m.act[l]
		if l > 0 {
			*a = m.act[0]
		}
		take(sp, N*C, &a.res3)
		if l == 0 || m.Cfg.Recompute < recomputeBlock {
			take(sp, N*C, &a.ln1, &a.att, &a.res2, &a.ln2)
			take(sp, N, &a.mean1, &a.rstd1, &a.mean2, &a.rstd2)
			take(sp, 3*N*C, &a.qkv)
			take(sp, N*m.Cfg.Heads, &a.lse)
		}
		if l == 0 || m.Cfg.Recompute == recomputeOff {
			take(sp, 4*N*C, &a.fc, &a.gelu)
		}
	}
}

// attentionPart computes a layer from ln1 up to ln2, where x is the residual stream that it reads.
func (e *enqueue[A]) attentionPart(l int, x spmd.Buffer[A]) {
	m, a, p := e.m, &e.m.act[l], &e.m.par.layers[l]
	_, attn := m.Cfg.sections(l)
	e.call(m.around.need, attn)
	e.linear(a.qkv, a.ln1, &p.qkv)
	e.attentionForward(a.att, a.lse, a.qkv)
	e.cast(a.att, e.n*m.Cfg.Channels, e.inputCast(&p.proj))
	e.linearResidual(a.res2, a.att, &p.proj, x)
	e.call(m.around.done, attn)
	e.layerNormForward(a.ln2, a.mean2, a.rstd2, a.res2, &p.ln2, e.inputCast(&p.fc))
}

// mlpPart computes a layer from ln2 on: without whole what lies between the two products.
func (e *enqueue[A]) mlpPart(l int, whole bool) {
	m, a, p := e.m, &e.m.act[l], &e.m.par.layers[l]
	mlp, _ := m.Cfg.sections(l)
	e.call(m.around.need, mlp)
	e.linearGELU(a.gelu, a.fc, a.ln2, &p.fc, e.inputCast(&p.proj2))
	if whole {
		e.linearResidual(a.res3, a.gelu, &p.proj2, a.res2)
	}
	e.call(m.around.done, mlp)
}

// again computes once more what backward needs of a layer and is not there, where x is the
// residual stream that the layer read. The last layer's is there.
func (e *enqueue[A]) again(l int, x spmd.Buffer[A]) {
	m := e.m
	if l == len(m.act)-1 || m.Cfg.Recompute == recomputeOff {
		return
	}
	if m.Cfg.Recompute == recomputeBlock {
		a, p := &m.act[l], &m.par.layers[l]
		e.layerNormForward(a.ln1, a.mean1, a.rstd1, x, &p.ln1, cast{})
		e.attentionPart(l, x)
	}
	e.mlpPart(l, false)
}

// groupsBack lists the groups of layers, with --shard, in the order in which backward uses them.
func (cfg Config) groupsBack() []int {
	var order []int
	for l := cfg.Layers - 1; l >= 0; l-- {
		mlp, attn := cfg.sections(l)
		mlp, attn = layerGroup(mlp), layerGroup(attn)
		if l < cfg.Layers-1 && cfg.Recompute == recomputeBlock {
			order = append(order, attn)
		}
		if l < cfg.Layers-1 && cfg.Recompute != recomputeOff {
			order = append(order, mlp)
		}
		order = append(order, mlp, attn)
	}
	return order
}
