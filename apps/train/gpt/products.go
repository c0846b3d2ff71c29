package gpt

import (
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
	"lockstep/spmd/attention"
	"lockstep/spmd/blas"
)

// linear enqueues y(n,out) = x(n,in)·wᵀ + b.
func (e *enqueue[A]) linear(y, x spmd.Buffer[A], p *Linear[A]) {
	e.product(y, x, p, blas.Options{Bias: argOf(p.bias)}, 0)
}

// linearGELU enqueues pre(n,out) = x(n,in)·wᵀ + b and y = gelu(pre), by GPT-2's tanh formula.
func (e *enqueue[A]) linearGELU(y, pre, x spmd.Buffer[A], p *Linear[A]) {
	e.product(y, x, p, blas.Options{Bias: argOf(p.bias), GELU: pre.Arg()}, 0)
}

// product enqueues y(n,out) = x(n,in)·wᵀ, with an epilogue. If the copy of x is multiplied, it
// begins at element from of the operand.
func (e *enqueue[A]) product(y, x spmd.Buffer[A], p *Linear[A], o blas.Options, from int) {
	if q := e.mode.Product(p.eight); q != nil {
		gemm(&e.Launcher, y, e.N, p.Out, q.X.Codes.Slice(from, q.X.Codes.Len()), e.N, p.In, q.W, p.Out, p.In,
			q.Scaled(o, q.X))
		return
	}
	o.TransB = true
	gemm(&e.Launcher, y, e.N, p.Out, x, e.N, p.In, p.W, p.Out, p.In, o)
}

// classify enqueues logits of the head's input x(n,C), and losses(n). For gradients it replaces the
// logits by theirs.
//
// If ranks divide the head, logits belong to this rank's rows of the head. The ranks then exchange
// three numbers a row, half of the rows at a time. The first half's exchange goes beside the second
// half's product, and the second half's beside the losses of the first.
func (e *enqueue[A]) classify(losses spmd.Buffer[float32], logits, x spmd.Buffer[A], targets spmd.Buffer[int32],
	scale float32) {
	m, head := e.m, &e.m.par.Head
	e.Cast(x, e.N*head.In, e.inputCast(head))
	if e.alone() {
		e.linear(logits, x, head)
		e.Classifier(losses, logits, targets, scale, e.mode.Grads, e.gradCast(head))
		return
	}
	parts, rank, half := m.Cfg.Tensor.Parts(), m.Cfg.Tensor.Rank, (e.N+1)/2
	before := func() {} // the losses of the half before
	for lo := 0; lo < e.N; lo += half {
		n := min(half, e.N-lo)
		own := logits.Slice(lo*head.Out, (lo+n)*head.Out)
		all := m.tensor.maxima.Slice(parts*lo*ops.LogitNumbers, parts*(lo+n)*ops.LogitNumbers)
		mine := all.Slice(rank*n*ops.LogitNumbers, (rank+1)*n*ops.LogitNumbers)
		e.ofRows(n, func(part *enqueue[A]) {
			part.product(own, x.Slice(lo*head.In, (lo+n)*head.In), head, blas.Options{}, lo*head.In)
			part.LogitSums(mine, own, targets.Slice(lo, lo+n))
		})
		e.arrived() // those of the half before
		e.begin()
		if e.Err == nil {
			e.Err = spmd.AllGather(m.tensor.with, all, mine)
		}
		before()
		before = func() {
			e.ofRows(n, func(part *enqueue[A]) {
				part.ClassifierOfParts(losses.Slice(lo, lo+n), own, targets.Slice(lo, lo+n), all, scale, e.mode.Grads)
			})
		}
	}
	e.arrived()
	before()
	if e.mode.Grads {
		e.Cast(logits, e.N*head.Out, e.gradCast(head))
	}
}

// inputGrad enqueues dx(n,in) = dy(n,out)·w.
func (e *enqueue[A]) inputGrad(dx, dy spmd.Buffer[A], p *Linear[A]) {
	switch q := e.mode.Product(p.eight); {
	case q == nil:
		gemm(&e.Launcher, dx, e.N, p.In, dy, e.N, p.Out, p.W, p.Out, p.In, blas.Options{})
	case q.DY.Wide.Len() > 0:
		gemm(&e.Launcher, dx, e.N, p.In, q.DY.Wide, e.N, p.Out, q.Across, p.In, p.Out, q.Scaled(blas.Options{}, q.DY))
	default:
		gemm(&e.Launcher, dx, e.N, p.In, q.DY.Codes, e.N, p.Out, q.Across, p.In, p.Out, q.Scaled(blas.Options{}, q.DY))
	}
}

// inputGradGELU enqueues dpre(n,in) = dy(n,out)·w·gelu'(pre(n,in)).
func (e *enqueue[A]) inputGradGELU(dpre, dy spmd.Buffer[A], p *Linear[A], pre spmd.Buffer[A]) {
	gemm(&e.Launcher, dpre, e.N, p.In, dy, e.N, p.Out, p.W, p.Out, p.In, blas.Options{DGELU: pre.Arg()})
}

// weightGrad enqueues dw(out,in) (+)= dy(n,out)ᵀ·x(n,in).
func (e *enqueue[A]) weightGrad(dy, x spmd.Buffer[A], p *Linear[A]) {
	gemm(&e.Launcher, p.DW, p.Out, p.In, dy, e.N, p.Out, x, e.N, p.In, blas.Options{TransA: true, Accumulate: e.Acc})
}

// biasSum says whether the gradient of a linear's bias is still to be summed.
type biasSum bool

const (
	toSum  biasSum = false
	summed biasSum = true
)

// weightBiasGrad enqueues weightGrad, and db(out) (+)= the sum of dy over its rows unless it is
// summed already.
func (e *enqueue[A]) weightBiasGrad(dy, x spmd.Buffer[A], p *Linear[A], bias biasSum) {
	if bias == summed || p.DB.Len() == 0 || !e.gradCast(p).None() { // a copy has left the sums
		e.weightGrad(dy, x, p)
		return
	}
	e.weightAndSums(dy, x, p)
}

// weightAndSums enqueues the gradient of the weights, and of the bias as the product's
// sums of rows.
func (e *enqueue[A]) weightAndSums(dy, x spmd.Buffer[A], p *Linear[A]) {
	sums := e.sumsOf(p)
	gemm(&e.Launcher, p.DW, p.Out, p.In, dy, e.N, p.Out, x, e.N, p.In,
		blas.Options{TransA: true, Accumulate: e.Acc, RowSums: sums.Arg()})
	e.addSums(p, sums)
}

// sumsOf returns where the gradient of a linear's bias goes as sums that replace the old values.
// addSums enqueues the rest of the work.
func (e *enqueue[A]) sumsOf(p *Linear[A]) spmd.Buffer[float32] {
	if e.Acc {
		return e.m.sums.Slice(0, p.Out)
	}
	return p.DB
}

func (e *enqueue[A]) addSums(p *Linear[A], sums spmd.Buffer[float32]) {
	if e.Acc {
		e.AddTo(p.DB, sums)
	}
}

// argOf returns a buffer as an operand of Gemm, or none if it is empty.
func argOf[T spmd.Elem](b spmd.Buffer[T]) spmd.Arg {
	if b.Len() == 0 {
		return spmd.Arg{}
	}
	return b.Arg()
}

// gemm enqueues a product of the first rows of buffers: c(cr,cc) from a(ar,ac) and b(br,bc).
func gemm[A ops.Act, C, TA, TB blas.Elem](e *ops.Launcher[A], c spmd.Buffer[C], cr, cc int, a spmd.Buffer[TA],
	ar, ac int, b spmd.Buffer[TB], br, bc int, o blas.Options) {
	if e.Err == nil {
		e.Err = blas.Gemm(e.S, blas.MatrixOf(c, cr, cc), blas.MatrixOf(a, ar, ac), blas.MatrixOf(b, br, bc), o)
	}
}

// attention returns the attention of a layer.
func (e *enqueue[A]) attention(l int) (a *attention.Attention[A]) {
	of := e.m.att
	if first, _ := e.Cfg.Own(); e.m.near != nil && e.Cfg.Window(first+l) > 0 {
		of = e.m.near
	}
	if e.Err == nil {
		a, e.Err = of.For(e.batch.B, e.T)
	}
	return a
}

// values returns what a layer mixes into its values.
func (e *enqueue[A]) values(l int) ops.ValueMix {
	if i := e.Cfg.ValueTable(l); i >= 0 {
		return ops.ValueMix{Table: e.m.par.tables[i].W, Mix: e.m.par.Layers[l].values}
	}
	return ops.ValueMix{}
}

// attend enqueues the causal attention of a layer's raw(b,t,3,nh,hs). It keeps the logarithms of
// the softmax's denominators in lse.
func (e *enqueue[A]) attend(l int) {
	a, c, heads := &e.m.act[l], e.Cfg.OwnChannels(), e.m.heads
	if e.Cfg.Has(layout.ByHead) {
		heads.Turn = heads.Turn.Slice(e.before*heads.Size/2, heads.Turn.Len())
		e.HeadsForward(heads, a.qkv.Slice(3*c*e.before, 3*c*(e.before+e.N)), a.raw, e.batch.In, e.values(l))
	}
	if e.before > 0 {
		e.AttendFrom(heads, a.att, a.qkv, e.before, e.Cfg.Window(l))
	} else if att := e.attention(l); e.Err == nil {
		e.Err = att.Forward(e.S, a.att, a.lse, a.qkv)
	}
}

// attentionBackward enqueues the gradient of a layer's raw into dwide, from that of its attention
// in partial. If it returns summed it also enqueues the gradient of the bias of QKV.
func (e *enqueue[A]) attentionBackward(l int) biasSum {
	m, a, p, att := e.m, &e.m.act[l], &e.m.par.Layers[l].QKV, e.attention(l)
	byHead, to := e.Cfg.Has(layout.ByHead), e.gradCast(p)
	switch {
	case e.Err != nil:
		return toSum
	case !byHead && att.SumsBias() && to.None(): // what makes a copy sums too
		sums := e.sumsOf(p)
		e.Err = att.BackwardBias(e.S, m.dwide, sums, m.partial, a.att, a.lse, a.qkv)
		e.addSums(p, sums)
		return summed
	}
	e.Err = att.Backward(e.S, m.dwide, m.partial, a.att, a.lse, a.qkv)
	if !byHead {
		e.CastColumns(m.dwide, spmd.Buffer[A]{}, to, p.DB)
		return toSum
	}
	g := ops.HeadsGrad[A]{D: m.dwide, QKV: a.raw, Tokens: e.batch.In, Values: e.values(l), Sums: m.numbers, To: to}
	if i := e.Cfg.ValueTable(l); i >= 0 { // backward comes to the last layers first
		g.DTable, g.Fresh = m.drows[i], l >= e.Cfg.Layers-e.Cfg.Tables()
	}
	e.HeadsBackward(m.heads, g)
	return toSum
}
