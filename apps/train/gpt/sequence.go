package gpt

import (
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
	"lockstep/spmd/blas"
)

// Ranks that divide layers (--tp) also share the rows of the LayerNorms and of the residual stream,
// which they do not divide. Each computes and keeps its rows, n of the N.
//
// Before a product whose outputs they divide, the ranks gather all rows. After a product whose
// inputs they divide, partial holds each rank's part of a sum, and each rank gets its rows of the
// sum. Both go on a stream of their own, in pieces: while a product takes one piece the next is on
// its way.
//
// Gathered rows are not kept: backward gathers them again, beside other products. So the ranks move
// the bytes of two all-reduces forward, as if each had all rows, and of two and a half backward.
//
// Gradients of a LayerNorm's parameters, and of the biases of scattered sums, are then sums over a
// rank's rows: State.ByRows.

// tensorParts is the further state of a rank if ranks divide its layers.
type tensorParts[A ops.Act] struct {
	with   spmd.Comm            // the ranks with the other parts of these layers, on side
	side   *spmd.Stream         // of what goes between them
	whole  spmd.Buffer[A]       // (N,C): rows of all ranks
	maxima spmd.Buffer[float32] // (HeadRows,3) of each rank, see ops.Launcher.LogitSums
}

// ShareLayers names the ranks with the other parts of each layer. Call it before any pass.
func (m *Model[A]) ShareLayers(c spmd.Comm) (err error) {
	x := m.tensor
	if x.side, err = m.World.NewStream("tensor", spmd.High); err != nil {
		return err
	}
	m.space.Frees = append(m.space.Frees, x.side.Close)
	x.with = c.On(x.side)
	return nil
}

// rowsOf returns how this rank sees n rows. The largest micro-batch sets the number of pieces, so
// that a smaller one never needs more memory.
func (m *Model[A]) rowsOf(n int) layout.Rows {
	x, pieces := m.Cfg.Tensor, 1
	if x.Parts() > 1 {
		pieces = max(2, min(m.rows/pieceRows, mostPieces))
	}
	return layout.NewRows(n, pieces, x.Rank, x.Parts())
}

// Products of pieceRows rows are nearly as fast as larger ones. With mostPieces pieces the one that
// nothing hides is short.
const (
	pieceRows  = 4096
	mostPieces = 4
)

// alone reports whether this rank has all rows.
func (e *enqueue[A]) alone() bool { return e.m.tensor == nil }

// begin makes the stream between the ranks wait for the commands so far.
func (e *enqueue[A]) begin() {
	if e.Err == nil {
		e.Err = e.m.tensor.side.After(e.S)
	}
}

// arrived enqueues a wait for everything that is on its way between the ranks.
func (e *enqueue[A]) arrived() {
	if e.Err == nil && !e.alone() {
		e.Err = e.S.After(e.m.tensor.side)
	}
}

// gatherPiece enqueues whole = all ranks' rows of a piece of x(n,C), if there is such a piece.
func (e *enqueue[A]) gatherPiece(x spmd.Buffer[A], i int) {
	if e.Err == nil && i < e.rows.Pieces() {
		e.Err = layout.GatherRows(e.m.tensor.with, e.rows, i, e.m.Cfg.Channels, e.m.tensor.whole, x)
	}
}

// scatterPiece enqueues y(n,C) = this rank's rows of the sum of a piece of partial. It goes on
// beside the next commands, up to arrived. If this rank has all rows they are there already.
func (e *enqueue[A]) scatterPiece(y spmd.Buffer[A], i int) {
	if e.alone() {
		return
	}
	e.begin()
	if e.Err == nil {
		e.Err = layout.ScatterRows(e.m.tensor.with, e.rows, i, e.m.Cfg.Channels, y, e.m.partial)
	}
}

// scatterBeside is scatterPiece for all of partial.
func (e *enqueue[A]) scatterBeside(y spmd.Buffer[A]) {
	for i := range e.rows.Pieces() {
		e.scatterPiece(y, i)
	}
}

// gatherBeside enqueues all = the rows of x(n,C) of all ranks. It goes on beside the next commands,
// up to arrived.
func (e *enqueue[A]) gatherBeside(x spmd.Buffer[A]) {
	if e.alone() {
		return
	}
	e.begin()
	for i := range e.rows.Pieces() {
		e.gatherPiece(x, i)
	}
}

// all returns all rows of x, which was gathered last.
func (e *enqueue[A]) all(x spmd.Buffer[A]) spmd.Buffer[A] {
	if e.alone() {
		return x
	}
	return e.m.tensor.whole
}

// eachPiece gathers x(n,C) and calls fn for each piece of its rows, [lo, hi) of N. fn enqueues the
// commands that read the piece. Meanwhile the next piece is on its way.
func (e *enqueue[A]) eachPiece(x spmd.Buffer[A], fn func(i, lo, hi int, rows spmd.Buffer[A])) {
	C := e.m.Cfg.Channels
	if e.alone() {
		fn(0, 0, e.N, x.Slice(0, e.N*C))
		return
	}
	e.inPieces(func(i int) { e.gatherPiece(x, i) },
		func(i, lo, hi int) { fn(i, lo, hi, e.m.tensor.whole.Slice(lo*C, hi*C)) })
}

// inPieces calls gather to enqueue the arrival of each piece of the rows, and fn for each piece.
func (e *enqueue[A]) inPieces(gather func(i int), fn func(i, lo, hi int)) {
	e.begin()
	gather(0)
	for i := range e.rows.Pieces() {
		e.arrived()
		gather(i + 1)
		lo, hi := e.rows.Piece(i)
		fn(i, lo, hi)
	}
}

// ofRows calls fn with e for n rows.
func (e *enqueue[A]) ofRows(n int, fn func(part *enqueue[A])) {
	part := *e
	part.N = n
	fn(&part)
	e.Err = part.Err
}

// embed enqueues y(n,C) = the embeddings of tokens(N). Nothing goes beside their sum: all later
// commands read it, and their computation is as short as the sum of a piece.
func (e *enqueue[A]) embed(y spmd.Buffer[A], tokens spmd.Buffer[int32]) {
	if e.Cfg.Has(layout.RMSNorms) {
		e.EmbedNormed(y, tokens, e.m.par.WTE.W)
		return
	}
	to := e.m.partial
	if e.alone() {
		to = y
	}
	e.EncoderForward(to, tokens, e.m.par.WTE.W, e.m.par.WPE.W)
	e.scatterBeside(y)
	e.arrived()
}

// norm enqueues the norm of this rank's rows of x, with the addition of k, and their copy.
func (e *enqueue[A]) norm(y normed[A], x spmd.Buffer[A], p *ops.Norm, k ops.Skip[A], to ops.Cast) {
	to = e.ownCast(to)
	if n := e.rows.Own(); n > 0 {
		e.ofRows(n, func(part *enqueue[A]) {
			if e.Cfg.Has(layout.RMSNorms) {
				part.RMSNorm(y.out, x, k, to)
			} else {
				part.LayerNormForward(y.out, y.mean, y.rstd, x, p, to)
			}
		})
	}
}

// normGrad is the backward pass of a norm of x, from the gradient in tmp. The gradient of x goes
// into dres.
type normGrad[A ops.Act] struct {
	of      *normed[A]
	x       spmd.Buffer[A]
	p       *ops.Norm
	adds    bool                 // dres has the gradient of the residual stream, which is added
	columns spmd.Buffer[float32] // the gradient of the bias of the linear that wrote x
	to      ops.Cast             // the copy of dres
	// see ops.RMSNormGrad
	skip         ops.Skip[A]
	dkept, above spmd.Buffer[A]
}

// normBackward enqueues the backward pass of a norm of this rank's rows. If these are not all rows,
// the copy is made from the gathered rows, which the gradients of weights read.
func (e *enqueue[A]) normBackward(g normGrad[A]) {
	m := e.m
	if !e.alone() {
		g.to = ops.Cast{}
	}
	n := e.rows.Own()
	if n == 0 {
		for _, sums := range [...]spmd.Buffer[float32]{g.p.DW, g.p.DB, g.columns} {
			e.zero(sums)
		}
		return
	}
	e.ofRows(n, func(part *enqueue[A]) {
		if e.Cfg.Has(layout.RMSNorms) {
			part.RMSNormBackward(ops.RMSNormGrad[A]{D: m.dres, DNorm: m.tmp, X: g.x, Skip: g.skip, DKept: g.dkept,
				Above: g.above, Adds: g.adds, Sums: m.numbers, To: g.to})
		} else {
			part.LayerNormBackward(ops.NormGrad[A]{DX: m.dres, DOut: m.tmp, X: g.x, Mean: g.of.mean, Rstd: g.of.rstd,
				Norm: g.p, DColumns: g.columns, Adds: g.adds, To: g.to})
		}
	})
}

// fromMLP returns g with what goes with the gradient of an MLP's output, in layer l: that of its
// bias, and the copy for its products. Without such a layer it returns g.
func (e *enqueue[A]) fromMLP(l int, g normGrad[A]) normGrad[A] {
	if l >= 0 {
		g.columns, g.to = e.m.par.Layers[l].Proj2.DB, e.residualCast(l)
	}
	return g
}

// zero enqueues 0 into a gradient that nothing is added to, unless it is accumulated.
func (e *enqueue[A]) zero(b spmd.Buffer[float32]) {
	if e.Err == nil && !e.Acc && b.Len() > 0 {
		e.Err = spmd.Fill(e.S, b, 0)
	}
}

// linearOfAll enqueues y(N,out) = x·wᵀ + b, of all rows of x(n,in).
func (e *enqueue[A]) linearOfAll(y, x spmd.Buffer[A], p *Linear[A]) {
	if e.gathersCopies(p) {
		e.inPieces(e.gatherCopies, func(_, lo, hi int) {
			e.ofRows(hi-lo, func(part *enqueue[A]) {
				part.product(y.Slice(lo*p.Out, hi*p.Out), x, p, blas.Options{Bias: argOf(p.bias)}, lo*p.In)
			})
		})
		return
	}
	e.eachPiece(x, func(_, lo, hi int, rows spmd.Buffer[A]) {
		e.ofRows(hi-lo, func(part *enqueue[A]) {
			part.castGathered(rows, e.inputCast(p))
			part.linear(y.Slice(lo*p.Out, hi*p.Out), rows, p)
		})
	})
}

// castGathered enqueues the copy of gathered rows that no LayerNorm has copied.
func (e *enqueue[A]) castGathered(rows spmd.Buffer[A], to ops.Cast) {
	if !e.alone() {
		e.Cast(rows, rows.Len(), to)
	}
}

// intoMLP enqueues the first product of a layer's MLP, of all rows, and the activation. The copy of
// its output is made if the whole MLP is computed.
func (e *enqueue[A]) intoMLP(l int, much mlpPart) {
	a, p := &e.m.act[l], &e.m.par.Layers[l].FC
	to, square := e.inputCast(&e.m.par.Layers[l].Proj2), e.Cfg.Has(layout.ReLU2)
	if to.None() && !square {
		e.eachPiece(a.ln2.out, func(_, lo, hi int, rows spmd.Buffer[A]) {
			e.ofRows(hi-lo, func(part *enqueue[A]) {
				part.linearGELU(a.gelu.Slice(lo*p.Out, hi*p.Out), a.fc.Slice(lo*p.Out, hi*p.Out), rows, p)
			})
		})
		return
	}
	if much != wholeMLP {
		to = ops.Cast{}
	}
	e.linearOfAll(a.fc, a.ln2.out, p) // all rows at once, since the copies of input and output take turns in one place
	if square {
		e.ReLU2(a.gelu, e.N*p.Out, to)
	} else {
		e.GELU8(a.gelu, a.fc, e.N*p.Out, to)
	}
}

// linearResidual enqueues y(n,out) = x·wᵀ + b + res(n,out): this rank's rows of the product of
// x(N,in). The ranks divide in. All have the bias, and one of them adds it. While a piece is summed
// the next is multiplied.
func (e *enqueue[A]) linearResidual(y, x spmd.Buffer[A], p *Linear[A], res spmd.Buffer[A]) {
	if e.alone() {
		e.product(y, x, p, blas.Options{Bias: argOf(p.bias), Residual: res.Arg()}, 0)
		return
	}
	o := blas.Options{}
	if e.m.Cfg.Tensor.Rank == 0 {
		o.Bias = argOf(p.bias)
	}
	for i := range e.rows.Pieces() {
		lo, hi := e.rows.Piece(i)
		e.ofRows(hi-lo, func(part *enqueue[A]) {
			part.product(e.m.partial.Slice(lo*p.Out, hi*p.Out), x.Slice(lo*p.In, hi*p.In), p, o, lo*p.In)
			part.scatterPiece(y, i)
		})
	}
	e.arrived()
	if n := e.rows.Own(); n > 0 {
		e.AddResidual(y, res, n*p.Out)
	}
}

// backThrough enqueues dx(N,in) = d·w, of all rows of d(n,out).
func (e *enqueue[A]) backThrough(dx, d spmd.Buffer[A], p *Linear[A]) {
	e.eachPiece(d, func(_, lo, hi int, dy spmd.Buffer[A]) {
		e.ofRows(hi-lo, func(part *enqueue[A]) {
			part.castGathered(dy, e.gradCast(p))
			part.inputGrad(dx.Slice(lo*p.In, hi*p.In), dy, p)
		})
	})
}

// backThroughMLP enqueues the gradient of the output of a layer's FC, of all rows, into dwide, and
// those of Proj2. A copy of dwide comes with the gradient of the bias of FC. With fresh no norm has
// made the copy of dres.
func (e *enqueue[A]) backThroughMLP(l int, fresh bool) {
	m, a, fc, p := e.m, &e.m.act[l], &e.m.par.Layers[l].FC, &e.m.par.Layers[l].Proj2
	to, square := e.gradCast(fc), e.Cfg.Has(layout.ReLU2)
	if (fresh || m.Cfg.Recomputes(l)) && e.alone() {
		e.Cast(m.dres, e.N*p.Out, e.gradCast(p))
	}
	e.eachPiece(m.dres, func(_, lo, hi int, dy spmd.Buffer[A]) {
		e.ofRows(hi-lo, func(part *enqueue[A]) {
			part.castGathered(dy, e.gradCast(p))
			if dx := m.dwide.Slice(lo*p.In, hi*p.In); to.None() && !square {
				part.inputGradGELU(dx, dy, p, a.fc.Slice(lo*p.In, hi*p.In))
			} else {
				part.inputGrad(dx, dy, p)
			}
		})
	})
	if !square {
		e.CastColumns(m.dwide, a.fc, to, fc.DB)
	}
	e.residualGrad(m.dres, a.gelu, p, fresh)
	if square {
		e.ReLU2Backward(m.dwide, a.gelu, e.N*fc.Out, to)
	}
}

// residualGrad enqueues weightGrad of a linear that adds to the residual stream, with the gradient
// d(n,out), which was gathered last. With fresh no norm has left the gradient of the bias, and one
// rank computes it from all rows.
func (e *enqueue[A]) residualGrad(d, x spmd.Buffer[A], p *Linear[A], fresh bool) {
	dy := e.all(d)
	switch {
	case !fresh || p.DB.Len() == 0:
		e.weightGrad(dy, x, p)
	case e.m.Cfg.Tensor.Rank == 0:
		e.weightAndSums(dy, x, p)
	default:
		e.weightGrad(dy, x, p)
		e.zero(p.DB)
	}
}

// grads enqueues dx(n,in) = this rank's rows of the sum of dy(N,out)·w over the ranks that
// divide the layer. Beside that sum it enqueues weightBiasGrad with all rows of x(n,in), which
// are being gathered.
func (e *enqueue[A]) grads(dx, dy, x spmd.Buffer[A], p *Linear[A], bias biasSum) {
	e.inputGrad(e.m.partial, dy, p)
	e.arrived()
	e.scatterBeside(dx)
	e.weightBiasGrad(dy, e.all(x), p, bias)
	e.arrived()
}
