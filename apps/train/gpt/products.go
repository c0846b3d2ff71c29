package gpt

import (
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
func (e *pass[A]) product(y, x spmd.Buffer[A], p *Linear[A], o blas.Options, from int) {
	if q := e.mode.Product(p.eight); q != nil {
		gemm(e, y, e.N, p.Out, q.X.Codes.Slice(from, q.X.Codes.Len()), e.N, p.In, q.W, p.Out, p.In, q.Scaled(o, q.X))
		return
	}
	o.TransB = true
	gemm(e, y, e.N, p.Out, x, e.N, p.In, p.W, p.Out, p.In, o)
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
func (e *pass[A]) inputGrad(dx, dy spmd.Buffer[A], p *Linear[A]) {
	switch q := e.mode.Product(p.eight); {
	case q == nil:
		gemm(e, dx, e.N, p.In, dy, e.N, p.Out, p.W, p.Out, p.In, blas.Options{})
	case q.DY.Wide.Len() > 0:
		gemm(e, dx, e.N, p.In, q.DY.Wide, e.N, p.Out, q.Across, p.In, p.Out, q.Scaled(blas.Options{}, q.DY))
	default:
		gemm(e, dx, e.N, p.In, q.DY.Codes, e.N, p.Out, q.Across, p.In, p.Out, q.Scaled(blas.Options{}, q.DY))
	}
}

// inputGradGELU enqueues dpre(n,in) = dy(n,out)·w·gelu'(pre(n,in)).
func (e *enqueue[A]) inputGradGELU(dpre, dy spmd.Buffer[A], p *Linear[A], pre spmd.Buffer[A]) {
	gemm(&e.pass, dpre, e.N, p.In, dy, e.N, p.Out, p.W, p.Out, p.In, blas.Options{DGELU: pre.Arg()})
}

// weightGrad enqueues dw(out,in) (+)= dy(n,out)ᵀ·x(n,in).
func (e *pass[A]) weightGrad(dy, x spmd.Buffer[A], p *Linear[A]) {
	gemm(e, p.DW, p.Out, p.In, dy, e.N, p.Out, x, e.N, p.In, blas.Options{TransA: true, Accumulate: e.Acc})
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
	if bias == summed || !e.gradCast(p).None() { // a copy has left the sums
		e.weightGrad(dy, x, p)
		return
	}
	e.weightAndSums(dy, x, p)
}

// weightAndSums enqueues the gradient of the weights, and of the bias as the product's
// sums of rows.
func (e *enqueue[A]) weightAndSums(dy, x spmd.Buffer[A], p *Linear[A]) {
	sums := e.sumsOf(p)
	gemm(&e.pass, p.DW, p.Out, p.In, dy, e.N, p.Out, x, e.N, p.In,
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
func gemm[A ops.Act, C, TA, TB blas.Elem](e *pass[A], c spmd.Buffer[C], cr, cc int, a spmd.Buffer[TA],
	ar, ac int, b spmd.Buffer[TB], br, bc int, o blas.Options) {
	if e.Err == nil {
		e.Err = blas.Gemm(e.S, blas.MatrixOf(c, cr, cc), blas.MatrixOf(a, ar, ac), blas.MatrixOf(b, br, bc), o)
	}
}

// attention returns the attention of the micro-batch.
func (e *enqueue[A]) attention() (a *attention.Attention[A]) {
	if e.Err == nil {
		a, e.Err = e.m.att.For(e.batch.B, e.T)
	}
	return a
}

// attentionForward enqueues the causal attention of qkv(b,t,3,nh,hs) into out(b,t,nh,hs). It keeps
// the logarithms of the softmax's denominators in lse(b,nh,t).
func (e *enqueue[A]) attentionForward(out spmd.Buffer[A], lse spmd.Buffer[float32], qkv spmd.Buffer[A]) {
	if a := e.attention(); e.Err == nil {
		e.Err = a.Forward(e.S, out, lse, qkv)
	}
}

// attentionBackward enqueues dqkv from dout and from what attentionForward kept. If it returns
// summed it also enqueues the gradient of the bias of p, which wrote qkv.
func (e *enqueue[A]) attentionBackward(dqkv, dout, out spmd.Buffer[A], lse spmd.Buffer[float32], qkv spmd.Buffer[A],
	p *Linear[A]) biasSum {
	a := e.attention()
	switch {
	case e.Err != nil:
		return toSum
	case !a.SumsBias() || !e.gradCast(p).None(): // what makes a copy sums too
		e.Err = a.Backward(e.S, dqkv, dout, out, lse, qkv)
		return toSum
	}
	sums := e.sumsOf(p)
	e.Err = a.BackwardBias(e.S, dqkv, sums, dout, out, lse, qkv)
	e.addSums(p, sums)
	return summed
}
