package modern

import (
	"fmt"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
	"lockstep/spmd/attention"
	"lockstep/spmd/blas"
)

// ForwardBackward is gpt.Model's.
func (m *Model[A]) ForwardBackward(s *spmd.Stream, batch gpt.Batch, scale float32, first bool,
	ready func(group int) error) error {
	if err := m.checkBatch(batch); err != nil {
		return err
	}
	if n := ops.SortedLen(batch.B*batch.T, m.Cfg.Vocab); batch.Sorted.Len() != n {
		return fmt.Errorf("model: micro-batch of %d×%d with %d numbers in the order of its tokens, want %d",
			batch.B, batch.T, batch.Sorted.Len(), n)
	}
	if ready == nil {
		ready = func(int) error { return nil }
	}
	return m.learn(s, batch, scale, !first, ops.Learns, ready)
}

// Calibrate is gpt.Model's.
func (m *Model[A]) Calibrate(s *spmd.Stream, batch gpt.Batch, scale float32) error {
	if err := m.checkBatch(batch); err != nil {
		return err
	}
	return m.learn(s, batch, scale, false, ops.Calibrates, func(int) error { return nil })
}

// learn enqueues both passes.
func (m *Model[A]) learn(s *spmd.Stream, batch gpt.Batch, scale float32, acc bool, mode ops.FP8Mode,
	ready func(group int) error) error {
	e := enqueueOn(s, m, batch, acc, mode)
	if m.Cfg.Shard.ScattersGrads() {
		e.Acc, e.AccLoss = false, acc // the reduced gradients are added up
	}
	e.forward()
	e.loss(batch.Targets, scale, true)
	e.backward(batch.Sorted, ready)
	return e.Err
}

// Evaluate is gpt.Model's.
func (m *Model[A]) Evaluate(s *spmd.Stream, batch gpt.Batch, scale float32, first bool) error {
	if err := m.checkBatch(batch); err != nil {
		return err
	}
	e := enqueueOn(s, m, batch, !first, ops.Evaluates)
	e.forward()
	e.loss(batch.Targets, scale, false)
	return e.Err
}

// Logits is gpt.Model's. The layers still have the keys and values of the tokens before, which were
// in the last call. Only the other tokens go through the model.
func (m *Model[A]) Logits(s *spmd.Stream, tokens spmd.Buffer[int32], before int) (spmd.Buffer[float32], error) {
	if n := tokens.Len(); n > m.most.Tokens || before < 0 || before >= n {
		return spmd.Buffer[float32]{},
			fmt.Errorf("model: %d tokens, of which %d were there before, made for up to %d", n, before, m.most.Tokens)
	}
	if m.Cfg.Recompute == layout.RecomputeBlock { // no layer keeps them
		before = 0
	}
	tokens = tokens.Slice(before, tokens.Len())
	t := tokens.Len()
	e := enqueueOn(s, m, gpt.Batch{In: tokens, B: 1, T: t}, false, ops.FP8Mode{})
	e.before = before
	e.forward()
	C, Vp := m.Cfg.Channels, m.Cfg.PaddedVocab()
	gemm(e, m.next, 1, Vp, m.lnf.Slice((t-1)*C, t*C), 1, C, m.head.w, Vp, C, blas.Options{TransB: true})
	return m.next.Slice(0, m.Cfg.Vocab), e.Err
}

func (m *Model[A]) checkBatch(b gpt.Batch) error {
	switch {
	case b.B <= 0 || b.T <= 0 || b.T > m.most.Tokens || b.B*b.T > m.rows:
		return fmt.Errorf("model: micro-batch of %d sequences of %d tokens, made for up to %d tokens of each and %d "+
			"in all", b.B, b.T, m.most.Tokens, m.rows)
	case b.In.Len() != b.B*b.T || b.Targets.Len() != b.B*b.T:
		return fmt.Errorf("model: micro-batch of %d×%d, but %d tokens and %d targets",
			b.B, b.T, b.In.Len(), b.Targets.Len())
	}
	return nil
}

// enqueue puts the passes of one micro-batch on a stream. After the first error it keeps the error
// and enqueues nothing more.
type enqueue[A ops.Act] struct {
	ops.Launcher[A]
	m    *Model[A]
	b    int // sequences
	in   spmd.Buffer[int32]
	mode ops.FP8Mode

	before int // tokens of the one sequence whose keys and values the layers have
}

func enqueueOn[A ops.Act](s *spmd.Stream, m *Model[A], b gpt.Batch, acc bool, mode ops.FP8Mode) *enqueue[A] {
	return &enqueue[A]{Launcher: ops.Launcher[A]{S: s, Cfg: m.Cfg, N: b.B * b.T, T: b.T, Acc: acc,
		Scratch: m.parts}, m: m, b: b.B, in: b.In, mode: mode}
}

// skip returns what a layer adds to the residual stream that it reads.
func (e *enqueue[A]) skip(a *layer[A]) skip[A] {
	if a.from < 0 {
		return skip[A]{}
	}
	return skip[A]{sum: a.res1, kept: e.m.layer[a.from].res3, by: a.skip}
}

// values returns what a layer mixes into its values.
func (e *enqueue[A]) values(a *layer[A]) valueMix {
	if a.table < 0 {
		return valueMix{}
	}
	return valueMix{table: e.m.tables[a.table].w, mix: a.values}
}

// below returns the residual stream after the layer before.
func (e *enqueue[A]) below(l int) spmd.Buffer[A] {
	if l == 0 {
		return e.m.first
	}
	return e.m.layer[l-1].res3
}

// stream returns the residual stream that the layer reads.
func (e *enqueue[A]) stream(l int) spmd.Buffer[A] {
	if a := &e.m.layer[l]; a.from >= 0 {
		return a.res1
	}
	return e.below(l)
}

// attention returns the attention of a layer.
func (e *enqueue[A]) attention(l int) (a *attention.Attention[A]) {
	if e.Err != nil {
		return nil
	}
	of := e.m.att
	if e.m.near != nil && e.m.Cfg.Window(l) > 0 {
		of = e.m.near
	}
	a, e.Err = of.For(e.b, e.T)
	return a
}

// attend enqueues the attention of a layer.
func (e *enqueue[A]) attend(l int) {
	a := &e.m.layer[l]
	if e.before > 0 {
		attendFrom(&e.Launcher, e.m.heads, a.att, a.att3, e.before, e.m.Cfg.Window(l))
	} else if att := e.attention(l); e.Err == nil {
		e.Err = att.Forward(e.S, a.att, a.lse, a.att3)
	}
}

// forward runs the decoder up to the input of the head.
func (e *enqueue[A]) forward() {
	m := e.m
	e.call(m.Need, m.Cfg.Embeddings())
	embed(&e.Launcher, m.first, e.in, m.wteWeights)
	for l := range m.layer {
		e.attentionPart(l)
		e.mlpPart(l, true)
	}
	norm(&e.Launcher, m.lnf, e.below(len(m.layer)), skip[A]{}, ops.Cast{})
}

// loss adds the loss. With grad it also computes the gradients of the head's weights, and into tmp
// the gradient of the head's input.
func (e *enqueue[A]) loss(targets spmd.Buffer[int32], scale float32, grad bool) {
	m, C, head := e.m, e.m.Cfg.Channels, &e.m.head
	for lo := 0; lo < e.N; lo += layout.HeadRows {
		hi := min(lo+layout.HeadRows, e.N)
		part := *e // of these rows
		part.N, part.Acc = hi-lo, e.Acc || lo > 0
		x, logits := m.lnf.Slice(lo*C, hi*C), m.logits.Slice(0, part.N*head.out)
		losses, wanted := m.losses.Slice(lo, hi), targets.Slice(lo, hi)
		part.Cast(x, part.N*C, e.mode.Input(head.eight))
		part.product(logits, x, head, blas.Options{})
		part.Classifier(losses, logits, wanted, scale, grad, e.mode.Grad(head.eight))
		if grad {
			part.inputGrad(m.tmp.Slice(lo*C, hi*C), logits, head)
			part.weightGrad(logits, x, head)
		}
		e.Err = part.Err
	}
	e.LossSum(m.Loss, m.losses, scale)
}

// backward computes the other gradients from the one in tmp.
func (e *enqueue[A]) backward(sorted spmd.Buffer[int32], ready func(int) error) {
	m, none := e.m, spmd.Buffer[A]{}
	group := 0
	done := func() {
		if e.Err == nil {
			e.Err = ready(group)
		}
		group++
	}
	last := len(m.layer) - 1
	normBackward(&e.Launcher, m.partial, normGrad[A]{d: m.dres, dnorm: m.tmp, x: e.below(last + 1),
		to: e.residualCast(last)})
	done()
	met := make([]bool, len(m.tables))
	for l := last; l >= 0; l-- {
		a := &m.layer[l]
		mlp, attn := m.Cfg.Sections(l)
		e.again(l)
		e.call(m.Need, mlp)
		e.call(m.Write, mlp)
		e.inputGrad(m.wide, m.dres, &a.proj2)
		e.weightGrad(m.dres, a.act, &a.proj2)
		relu2Backward(&e.Launcher, m.wide, a.act, e.N*a.fc.out, e.mode.Grad(a.fc.eight))
		e.inputGrad(m.tmp, m.wide, &a.fc)
		e.weightGrad(m.wide, a.ln2, &a.fc)
		e.call(m.Done, mlp)
		normBackward(&e.Launcher, m.partial, normGrad[A]{d: m.dres, dnorm: m.tmp, x: a.res2, adds: true,
			to: e.mode.Grad(a.proj.eight)})
		done()

		e.call(m.Need, attn)
		e.call(m.Write, attn)
		e.inputGrad(m.tmp, m.dres, &a.proj)
		e.weightGrad(m.dres, a.att, &a.proj)
		if att := e.attention(l); e.Err == nil {
			e.Err = att.Backward(e.S, m.wide, m.tmp, a.att, a.lse, a.att3)
		}
		drows, fresh := none, false
		if a.table >= 0 {
			drows, fresh = m.tables[a.table].drows, !met[a.table]
			met[a.table] = true
		}
		headsBackward(&e.Launcher, m.heads, m.partial, m.wide, drows, a.raw, e.in, e.values(a), fresh,
			e.mode.Grad(a.qkv.eight))
		e.inputGrad(m.tmp, m.wide, &a.qkv)
		e.weightGrad(m.wide, a.ln1, &a.qkv)
		e.call(m.Done, attn)
		dkept, above := none, none
		if a.from >= 0 {
			dkept = m.dkept[a.from]
		}
		if l > 0 {
			above = m.dkept[l-1]
		}
		normBackward(&e.Launcher, m.partial, normGrad[A]{d: m.dres, dnorm: m.tmp, x: e.stream(l), k: e.skip(a),
			dkept: dkept, above: above, adds: true, to: e.residualCast(l - 1)})
		done()
	}
	embedBackward(&e.Launcher, m.dres, e.in, m.wteWeights)
	e.tablesGrad(sorted)
	done()
}

// product enqueues y(n,out) = x(n,in)·wᵀ.
func (e *enqueue[A]) product(y, x spmd.Buffer[A], p *linear[A], o blas.Options) {
	if q := e.mode.Product(p.eight); q != nil {
		gemm(e, y, e.N, p.out, q.X.Codes, e.N, p.in, q.W, p.out, p.in, q.Scaled(o, q.X))
		return
	}
	o.TransB = true
	gemm(e, y, e.N, p.out, x, e.N, p.in, p.w, p.out, p.in, o)
}

// inputGrad enqueues dx(n,in) = dy(n,out)·w.
func (e *enqueue[A]) inputGrad(dx, dy spmd.Buffer[A], p *linear[A]) {
	switch q := e.mode.Product(p.eight); {
	case q == nil:
		gemm(e, dx, e.N, p.in, dy, e.N, p.out, p.w, p.out, p.in, blas.Options{})
	case q.DY.Wide.Len() > 0: // the head's
		gemm(e, dx, e.N, p.in, q.DY.Wide, e.N, p.out, q.Across, p.in, p.out, q.Scaled(blas.Options{}, q.DY))
	default:
		gemm(e, dx, e.N, p.in, q.DY.Codes, e.N, p.out, q.Across, p.in, p.out, q.Scaled(blas.Options{}, q.DY))
	}
}

// weightGrad enqueues dw(out,in) (+)= dy(n,out)ᵀ·x(n,in).
func (e *enqueue[A]) weightGrad(dy, x spmd.Buffer[A], p *linear[A]) {
	gemm(e, p.dw, p.out, p.in, dy, e.N, p.out, x, e.N, p.in, blas.Options{TransA: true, Accumulate: e.Acc})
}

// gemm enqueues a product of the first rows of buffers: c(cr,cc) from a(ar,ac) and b(br,bc).
func gemm[A ops.Act, C, TA, TB blas.Elem](e *enqueue[A], c spmd.Buffer[C], cr, cc int, a spmd.Buffer[TA],
	ar, ac int, b spmd.Buffer[TB], br, bc int, o blas.Options) {
	if e.Err == nil {
		e.Err = blas.Gemm(e.S, blas.MatrixOf(c, cr, cc), blas.MatrixOf(a, ar, ac), blas.MatrixOf(b, br, bc), o)
	}
}
