package gpt

import (
	"lockstep/apps/train/ops"
	"lockstep/spmd"
	"lockstep/spmd/parallel"
)

// bindFP8 binds the linears of p to their parts of s.
func bindFP8[A ops.Act](s *State, p *Weights[A]) {
	e, cfg := s.FP8, s.Cfg
	if e == nil {
		return
	}
	p.Head.eight = e.Head(cfg.HeadName(), 0)
	first, _ := cfg.Own()
	for l := range p.Layers {
		q, of := &p.Layers[l], e.Layer(first+l)
		q.QKV.eight, q.Proj.eight, q.FC.eight, q.Proj2.eight = of[0], of[1], of[2], of[3]
	}
}

// inputCast returns the cast of a linear's input in this pass. gradCast returns the cast of its
// output's gradient.
func (e *enqueue[A]) inputCast(p *Linear[A]) ops.Cast { return e.mode8.Input(p.eight) }

func (e *enqueue[A]) gradCast(p *Linear[A]) ops.Cast { return e.mode8.Grad(p.eight) }

// ownCast returns the cast of this rank's rows of a linear's input. Ranks that divide the linear
// gather the copies. Only if products take the input itself are gathered rows copied.
func (e *enqueue[A]) ownCast(to ops.Cast) ops.Cast {
	switch {
	case e.alone() || to.None():
		return to
	case !e.mode8.Products:
		return ops.Cast{}
	}
	to.Codes = e.m.FP8.Own
	return to
}

// gathersCopies reports whether the ranks that divide a linear gather the copies of its input, in
// half of the bytes.
func (e *enqueue[A]) gathersCopies(p *Linear[A]) bool {
	return !e.alone() && e.mode8.Casts && e.product8(p) != nil
}

// gatherCopies is gatherPiece for copies, which become the operand of the next product.
func (e *enqueue[A]) gatherCopies(i int) {
	if e.Err == nil && i < e.rows.Pieces() {
		e.Err = parallel.GatherRows(e.m.tensor.with, e.rows, i, e.m.Cfg.Channels, spmd.View[uint8](e.m.FP8.Operand),
			spmd.View[uint8](e.m.FP8.Own))
	}
}

// product8 returns the 8-bit operands of a linear's product, or nil if it has none.
func (e *enqueue[A]) product8(p *Linear[A]) *ops.FP8Linear {
	return e.mode8.Product(p.eight)
}
