package gpt

import (
	"errors"
	"fmt"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
	"lockstep/spmd/blas"
)

// Logits enqueues on s the forward pass of one sequence. It returns the buffer for the (Vocab)
// logits of the next token, which stay until the next call. The rank must have the whole model.
//
// The first before tokens were in the last call. If layers have kept the keys and values of a model
// with rotary positions, only the other tokens go through it.
func (m *Model[A]) Logits(s *spmd.Stream, tokens spmd.Buffer[int32],
	before int) (logits spmd.Buffer[float32], err error) {
	if n := tokens.Len(); before < 0 || before >= n {
		return logits, fmt.Errorf("model: %d tokens, of which %d were there before, made for up to %d",
			n, before, m.longest)
	}
	if err := m.checkBatch(Batch{In: tokens, Targets: tokens, B: 1, T: tokens.Len()}); err != nil {
		return logits, err
	}
	if m.tensor != nil || !m.Cfg.Begins() || !m.Cfg.Ends() {
		return logits, errors.New("model: Logits is for a rank that has the whole model")
	}
	if m.Cfg.Recompute == layout.RecomputeBlock || !m.Cfg.Has(layout.ByHead) { // no layer keeps them
		before = 0
	}
	tokens = tokens.Slice(before, tokens.Len())
	t, C, Vp := tokens.Len(), m.Cfg.Channels, m.Cfg.PaddedVocab()
	e := m.on(s, Batch{In: tokens, B: 1, T: t}, FromZero, ops.Mode{})
	e.before = before
	e.forward()
	gemm(&e.Launcher, m.next, 1, Vp, m.lnf.out.Slice((t-1)*C, t*C), 1, C, m.par.Head.W, Vp, C,
		blas.Options{TransB: true})
	return m.next.Slice(0, m.Cfg.Vocab), e.Err
}

// enqueue puts the passes of one micro-batch on a stream. After the first error it keeps the error
// and enqueues nothing more.
type enqueue[A ops.Act] struct {
	ops.Launcher[A]
	batch  Batch
	mode   ops.Mode
	m      *Model[A]
	rows   layout.Rows // of the micro-batch
	before int         // tokens of the one sequence whose keys and values the layers have
}

// on returns a pass. If gradients are reduced in every micro-step the reduced ones are added up.
func (m *Model[A]) on(s *spmd.Stream, b Batch, start Start, mode ops.Mode) *enqueue[A] {
	return &enqueue[A]{Launcher: ops.Launcher[A]{S: s, Cfg: m.Cfg, N: b.B * b.T, T: b.T,
		Acc: start == OnTop && !m.Cfg.Shard.ScattersGrads(), AccLoss: start == OnTop, Scratch: m.parts}, batch: b,
		mode: mode, m: m, rows: m.rowsOf(b.B * b.T)}
}

// call calls a hook of the state at a section's matrices.
func (e *enqueue[A]) call(hook func(section int) error, section int) {
	if e.Err == nil {
		e.Err = hook(section)
	}
}

// sections returns a function that says of one section after the other that it is complete.
func (e *enqueue[A]) sections(ready func(section int) error) (done func()) {
	section := 0
	return func() {
		if e.Err == nil {
			e.Err = ready(section)
		}
		section++
	}
}

// inputCast returns the cast of a linear's input in this pass. gradCast returns the cast of its
// output's gradient.
func (e *enqueue[A]) inputCast(p *Linear[A]) ops.Cast { return e.mode.Input(p.eight) }
func (e *enqueue[A]) gradCast(p *Linear[A]) ops.Cast  { return e.mode.Grad(p.eight) }

// below returns the residual stream after the layer before, or the first one.
func (e *enqueue[A]) below(l int) spmd.Buffer[A] {
	if l == 0 {
		return e.m.emb
	}
	return e.m.act[l-1].res3
}

// stream returns the residual stream that the layer reads. skip returns what the layer adds to it.
func (e *enqueue[A]) stream(l int) spmd.Buffer[A] {
	if a := &e.m.act[l]; a.res1.Len() > 0 {
		return a.res1
	}
	return e.below(l)
}

func (e *enqueue[A]) skip(l int) ops.Skip[A] {
	if from := e.Cfg.SkipFrom(l); from >= 0 {
		return ops.Skip[A]{Sum: e.m.act[l].res1, Kept: e.m.act[from].res3, By: e.m.par.Layers[l].skip}
	}
	return ops.Skip[A]{}
}

// intoNorm2 returns the residual stream that a layer's MLP reads.
func (e *enqueue[A]) intoNorm2(l int) spmd.Buffer[A] {
	if e.Cfg.Has(layout.Beside) {
		return e.stream(l)
	}
	return e.m.act[l].res2
}

// forward runs the decoder up to the final norm, or to the last layer of a stage.
func (e *enqueue[A]) forward() {
	m := e.m
	if m.Cfg.Begins() {
		e.call(m.Need, m.Cfg.Embeddings())
		e.embed(m.emb, e.batch.In)
	}
	for l := range m.act {
		e.attentionPart(l)
		e.mlpPart(l, wholeMLP)
	}
	if m.Cfg.Ends() { // else the output is the next stage's
		e.norm(m.lnf, e.below(len(m.act)), &m.par.LNF, ops.Skip[A]{}, ops.Cast{})
	}
}

// head adds the loss. For gradients it also computes those of the head's weights, and into tmp
// the gradient of the final norm's output.
//
// If ranks divide the head, each has the logits of its rows. The sums over the ranks go on beside
// the products.
func (e *enqueue[A]) head(scale float32) {
	m, C, head := e.m, e.m.Cfg.Channels, &e.m.par.Head
	e.eachPiece(m.lnf.out, func(i, from, to int, x spmd.Buffer[A]) {
		for lo := from; lo < to; lo += layout.HeadRows {
			hi := min(lo+layout.HeadRows, to)
			part := *e // of these rows
			part.N, part.Acc = hi-lo, e.Acc || lo > 0
			lnf, logits := x.Slice((lo-from)*C, (hi-from)*C), m.logits.Slice(0, part.N*head.Out)
			part.classify(m.losses.Slice(lo, hi), logits, lnf, e.batch.Targets.Slice(lo, hi), scale)
			if e.mode.Grads {
				part.inputGrad(m.partial.Slice(lo*C, hi*C), logits, head)
				if hi == to {
					part.scatterPiece(m.tmp, i)
				}
				part.weightGrad(logits, lnf, head)
			}
			e.Err = part.Err
		}
	})
	e.arrived()
	e.LossSum(m.Loss, m.losses, scale)
}

// backward computes the other gradients. It begins with the gradient in tmp, or with that in
// dres if another stage has the final norm. It leaves the gradient of the first residual
// stream in dres.
func (e *enqueue[A]) backward(ready func(section int) error) {
	m, done, top := e.m, e.sections(ready), len(e.m.act)
	if m.Cfg.Ends() {
		e.normBackward(e.fromMLP(top-1, normGrad[A]{of: &m.lnf, x: e.below(top), p: &m.par.LNF}))
	}
	done()
	for l := top - 1; l >= 0; l-- {
		a, p := &m.act[l], &m.par.Layers[l]
		e.again(l)
		mlp, attn := m.Cfg.Sections(l)
		e.call(m.Need, mlp)
		e.call(m.Write, mlp)
		fresh := l+1 == top && !m.Cfg.Ends() // no norm has written dres
		e.backThroughMLP(l, fresh)
		e.gatherBeside(a.ln2.out)
		e.grads(m.tmp, m.dwide, a.ln2.out, &p.FC, toSum)
		e.call(m.Done, mlp)
		d, beside := m.dres, m.Cfg.Has(layout.Beside) // the gradient of the output of attention
		g := normGrad[A]{of: &a.ln2, x: e.intoNorm2(l), p: &p.LN2, adds: true}
		if !beside {
			g.columns, g.to = p.Proj.DB, e.gradCast(&p.Proj)
		} else if n := e.rows.Own() * m.Cfg.Channels; e.Err == nil {
			d, e.Err = m.dout, spmd.Copy(e.S, m.dout.Slice(0, n), m.dres.Slice(0, n))
		}
		e.normBackward(g)
		done()

		e.call(m.Need, attn)
		e.call(m.Write, attn)
		e.backThrough(m.partial, d, &p.Proj)
		e.residualGrad(d, a.att, &p.Proj, beside)
		e.gatherBeside(a.ln1.out)
		bias := e.attentionBackward(l)
		e.grads(m.tmp, m.dwide, a.ln1.out, &p.QKV, bias)
		e.call(m.Done, attn)
		g = normGrad[A]{of: &a.ln1, x: e.stream(l), p: &p.LN1, skip: e.skip(l), adds: true}
		if from := m.Cfg.SkipFrom(l); from >= 0 {
			g.dkept = m.dkept[from]
		}
		if l > 0 {
			g.above = m.dkept[l-1]
		}
		e.normBackward(e.fromMLP(l-1, g))
		done()
	}
	e.embeddingsBackward()
	done()
}
