package gpt

import (
	"fmt"
	"strings"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
)

// Linear is the parameters of y(n,out) = x(n,in)·wᵀ + b, and their gradients.
type Linear[A ops.Act] struct {
	In, Out int
	W       spmd.Buffer[A]       // (out,in), as products take it
	DW      spmd.Buffer[float32] // (out,in)
	B, DB   spmd.Buffer[float32] // (out); empty if it adds none
	bias    spmd.Buffer[A]       // b, as products add it
	eight   *ops.FP8Linear       // nil if its products are of A
}

// embedding is a table of rows to look up, and its gradient.
type embedding struct{ W, DW spmd.Buffer[float32] }

// layerWeights is the parameters of one layer. Those that the decoder lacks are empty.
type layerWeights[A ops.Act] struct {
	LN1          ops.Norm
	QKV          Linear[A] // C to 3C
	Proj         Linear[A] // C to C
	LN2          ops.Norm
	FC           Linear[A] // C to 4C
	Proj2        Linear[A] // 4C to C
	skip, values ops.Number
}

// Weights is every parameter of a model by its place in it.
type Weights[A ops.Act] struct {
	WTE, WPE embedding         // (Vp,C), (SeqMax,C)
	tables   []embedding       // (Vp,C) each, mixed into values
	Layers   []layerWeights[A] // of this stage
	LNF      ops.Norm
	Head     Linear[A] // C to Vp
}

// Places is where a model's groups have their parameters, their gradients, and the operands of
// products. Groups may take turns in one place. A group that only products read has no Weights.
type Places[A ops.Act] struct {
	Weights, Grads []spmd.Buffer[float32]
	Mats           []spmd.Buffer[A]
}

// Bind finds the parameters in their groups.
func Bind[A ops.Act](cfg layout.Config, params []layout.Param, groups []layout.Group, at Places[A]) *Weights[A] {
	byName := map[string]layout.Param{}
	for _, p := range params {
		byName[p.Name] = p
	}
	get := func(name string) (w, dw spmd.Buffer[float32]) {
		if p, ok := byName[name]; ok {
			return layout.InGroup(groups, at.Weights, p), layout.InGroup(groups, at.Grads, p)
		}
		return w, dw
	}
	number := func(name string) (x ops.Number) {
		x.W, x.DW = get(name)
		return x
	}
	normOf := func(name string) (n ops.Norm) {
		n.W, n.DW = get(name + ".weight")
		n.B, n.DB = get(name + ".bias")
		return n
	}
	matrix := func(name string) Linear[A] {
		p := byName[name+".weight"]
		l := Linear[A]{Out: p.Shape[0], In: p.Shape[1], W: layout.InGroup(groups, at.Mats, p)}
		_, l.DW = get(name + ".weight")
		return l
	}
	linearOf := func(name string) Linear[A] {
		l := matrix(name)
		if p, ok := byName[name+".bias"]; ok {
			l.B, l.DB = get(name + ".bias")
			l.bias = layout.InGroup(groups, at.Mats, p)
		}
		return l
	}
	w := &Weights[A]{}
	if cfg.Ends() {
		w.LNF = normOf("ln_f")
	}
	if cfg.Embeds() {
		w.Head = matrix(strings.TrimSuffix(cfg.HeadName(), ".weight"))
		w.WTE.W, w.WTE.DW = get("wte.weight")
		w.WPE.W, w.WPE.DW = get("wpe.weight")
	}
	for i := range cfg.Tables() {
		var x embedding
		x.W, x.DW = get(fmt.Sprintf("values.%d.weight", i))
		w.tables = append(w.tables, x)
	}
	from, to := cfg.Own()
	for l := from; l < to; l++ {
		h := fmt.Sprintf("h.%d.", l)
		w.Layers = append(w.Layers, layerWeights[A]{
			LN1: normOf(h + "ln_1"), QKV: linearOf(h + "attn.c_attn"), Proj: linearOf(h + "attn.c_proj"),
			LN2: normOf(h + "ln_2"), FC: linearOf(h + "mlp.c_fc"), Proj2: linearOf(h + "mlp.c_proj"),
			skip: number(h + "skip"), values: number(h + "attn.values"),
		})
	}
	return w
}
