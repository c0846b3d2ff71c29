package gpt

import (
	"lockstep/apps/train/kernels"
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

// product enqueues y(n,out) = x(n,in)·wᵀ, with an epilogue. The copy of x, where it is that which is multiplied,
// begins at element from of the operand.
func (e *enqueue[A]) product(y, x spmd.Buffer[A], p *Linear[A], o blas.Options, from int) {
	if q := e.product8(p); q != nil {
		gemm(e, y, e.N, p.Out, q.X.Codes.Slice(from, q.X.Codes.Len()), e.N, p.In, q.W, p.Out, p.In, q.Scaled(o, q.X))
		return
	}
	o.TransB = true
	gemm(e, y, e.N, p.Out, x, e.N, p.In, p.W, p.Out, p.In, o)
}

// classifier enqueues losses(n), and with grad the gradient of logits in their place: of the rows of the
// head that this rank has, where ranks divide it. These tell each other three numbers a row.
func (e *enqueue[A]) classifier(losses spmd.Buffer[float32], logits spmd.Buffer[A], targets spmd.Buffer[int32], scale float32, grad bool) {
	parts := e.m.Cfg.Tensor.Parts()
	if parts == 1 {
		e.Classifier(losses, logits, targets, scale, grad, e.gradCast(&e.m.par.Head))
		return
	}
	n, rank := e.N*kernels.LogitNumbers, e.m.Cfg.Tensor.Rank
	all := e.m.maxima.Slice(0, parts*n)
	own := all.Slice(rank*n, (rank+1)*n)
	e.LogitSums(own, logits, targets)
	if e.Err == nil {
		e.Err = e.m.side.After(e.S)
	}
	if e.Err == nil {
		e.Err = spmd.AllGather(e.m.with, all, own)
	}
	e.arrived()
	e.ClassifierOfParts(losses, logits, targets, all, scale, grad)
	if head := &e.m.par.Head; grad {
		e.Cast(logits, e.N*head.Out, e.gradCast(head))
	}
}

// inputGrad enqueues dx(n,in) = dy(n,out)·w.
func (e *enqueue[A]) inputGrad(dx, dy spmd.Buffer[A], p *Linear[A]) {
	if q := e.product8(p); q != nil {
		gemm(e, dx, e.N, p.In, q.DY.Codes, e.N, p.Out, q.Across, p.In, p.Out, q.Scaled(blas.Options{}, q.DY))
		return
	}
	gemm(e, dx, e.N, p.In, dy, e.N, p.Out, p.W, p.Out, p.In, blas.Options{})
}

// inputGradGELU enqueues dpre(n,in) = dy(n,out)·w·gelu'(pre(n,in)).
func (e *enqueue[A]) inputGradGELU(dpre, dy spmd.Buffer[A], p *Linear[A], pre spmd.Buffer[A]) {
	gemm(e, dpre, e.N, p.In, dy, e.N, p.Out, p.W, p.Out, p.In, blas.Options{DGELU: pre.Arg()})
}

// weightGrad enqueues dw(out,in) (+)= dy(n,out)ᵀ·x(n,in).
func (e *enqueue[A]) weightGrad(dy, x spmd.Buffer[A], p *Linear[A]) {
	gemm(e, p.DW, p.Out, p.In, dy, e.N, p.Out, x, e.N, p.In, blas.Options{TransA: true, Accumulate: e.Acc})
}

// weightBiasGrad enqueues what weightGrad does, and db(out) (+)= the sum of dy over its rows.
func (e *enqueue[A]) weightBiasGrad(dy, x spmd.Buffer[A], p *Linear[A]) {
	if !e.gradCast(p).None() { // which has left the sums
		e.weightGrad(dy, x, p)
		return
	}
	e.weightAndSums(dy, x, p)
}

// weightAndSums enqueues both.
func (e *enqueue[A]) weightAndSums(dy, x spmd.Buffer[A], p *Linear[A]) {
	sums := p.DB
	if e.Acc {
		sums = e.m.sums.Slice(0, p.Out) // a product replaces them
	}
	gemm(e, p.DW, p.Out, p.In, dy, e.N, p.Out, x, e.N, p.In, blas.Options{TransA: true, Accumulate: e.Acc, RowSums: sums.Arg()})
	if e.Acc {
		e.AddTo(p.DB, sums)
	}
}

// argOf is a buffer as an operand of Gemm, none where it is empty.
func argOf[T spmd.Elem](b spmd.Buffer[T]) spmd.Arg {
	if b.Len() == 0 {
		return spmd.Arg{}
	}
	return b.Arg()
}

// gemm enqueues a product of the first rows of buffers: c(cr,cc) from a(ar,ac) and b(br,bc).
func gemm[A kernels.Act, C, T blas.Elem](e *enqueue[A], c spmd.Buffer[C], cr, cc int, a spmd.Buffer[T], ar, ac int, b spmd.Buffer[T], br, bc int, o blas.Options) {
	if e.Err == nil {
		e.Err = blas.Gemm(e.S, blas.MatrixOf(c, cr, cc), blas.MatrixOf(a, ar, ac), blas.MatrixOf(b, br, bc), o)
	}
}

// attention is what computes that of the micro-batch.
func (e *enqueue[A]) attention() (a *attention.Attention[A]) {
	if e.Err == nil {
		a, e.Err = e.m.att.For(e.b, e.T)
	}
	return a
}

// attentionForward enqueues the causal attention of qkv(b,t,3,nh,hs) into
// out(b,t,nh,hs), keeping the logarithms of the softmax's denominators, lse(b,nh,t).
func (e *enqueue[A]) attentionForward(out spmd.Buffer[A], lse spmd.Buffer[float32], qkv spmd.Buffer[A]) {
	if a := e.attention(); e.Err == nil {
		e.Err = a.Forward(e.S, out, lse, qkv)
	}
}

// attentionBackward enqueues dqkv from dout and what attentionForward kept.
func (e *enqueue[A]) attentionBackward(dqkv, dout, out spmd.Buffer[A], lse spmd.Buffer[float32], qkv spmd.Buffer[A]) {
	if a := e.attention(); e.Err == nil {
		e.Err = a.Backward(e.S, dqkv, dout, out, lse, qkv)
	}
}
