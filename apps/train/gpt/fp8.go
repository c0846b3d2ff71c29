package gpt

import (
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
)

// ownCast returns the cast of this rank's rows of a linear's input. Ranks that divide the linear
// gather the copies. Only if products take the input itself are gathered rows copied.
func (e *enqueue[A]) ownCast(to ops.Cast) ops.Cast {
	switch {
	case e.alone() || to.None():
		return to
	case !e.mode.Products:
		return ops.Cast{}
	}
	to.Codes = e.m.FP8.Own
	return to
}

// gathersCopies reports whether the ranks that divide a linear gather the copies of its input, in
// half of the bytes.
func (e *enqueue[A]) gathersCopies(p *Linear[A]) bool {
	return !e.alone() && e.mode.Casts && e.mode.Product(p.eight) != nil
}

// gatherCopies is gatherPiece for copies, which become the operand of the next product.
func (e *enqueue[A]) gatherCopies(i int) {
	if e.Err == nil && i < e.rows.Pieces() {
		e.Err = layout.GatherRows(e.m.tensor.with, e.rows, i, e.m.Cfg.Channels, spmd.View[uint8](e.m.FP8.Operand),
			spmd.View[uint8](e.m.FP8.Own))
	}
}
