package gpt

import (
	"fmt"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
	"lockstep/spmd/attention"
	"lockstep/spmd/blas"
)

// Logits is Model's. The layers still have the keys and values of the tokens before, which were
// in the last call. Only the other tokens go through the model.
func (m *Modern[A]) Logits(s *spmd.Stream, tokens spmd.Buffer[int32], before int) (spmd.Buffer[float32], error) {
	if n := tokens.Len(); n > m.most.Tokens || before < 0 || before >= n {
		return spmd.Buffer[float32]{},
			fmt.Errorf("model: %d tokens, of which %d were there before, made for up to %d", n, before, m.most.Tokens)
	}
	if m.Cfg.Recompute == layout.RecomputeBlock { // no layer keeps them
		before = 0
	}
	tokens = tokens.Slice(before, tokens.Len())
	t := tokens.Len()
	e := m.on(s, Batch{In: tokens, B: 1, T: t}, FromZero, ops.Mode{})
	e.before = before
	e.forward()
	C, Vp := m.Cfg.Channels, m.Cfg.PaddedVocab()
	gemm(&e.pass, m.next, 1, Vp, m.lnf.Slice((t-1)*C, t*C), 1, C, m.output.W, Vp, C, blas.Options{TransB: true})
	return m.next.Slice(0, m.Cfg.Vocab), e.Err
}

// modernPass is the pass of a Modern.
type modernPass[A ops.Act] struct {
	pass[A]
	m      *Modern[A]
	before int // tokens of the one sequence whose keys and values the layers have
}

func (m *Modern[A]) on(s *spmd.Stream, b Batch, start Start, mode ops.Mode) *modernPass[A] {
	return &modernPass[A]{pass: m.pass(s, b, start, mode), m: m}
}

// skip returns what a layer adds to the residual stream that it reads.
func (e *modernPass[A]) skip(a *modernLayer[A]) ops.Skip[A] {
	if a.from < 0 {
		return ops.Skip[A]{}
	}
	return ops.Skip[A]{Sum: a.res1, Kept: e.m.layer[a.from].res3, By: a.skip}
}

// values returns what a layer mixes into its values.
func (e *modernPass[A]) values(a *modernLayer[A]) ops.ValueMix {
	if a.table < 0 {
		return ops.ValueMix{}
	}
	return ops.ValueMix{Table: e.m.tables[a.table].w, Mix: a.values}
}

// below returns the residual stream after the layer before.
func (e *modernPass[A]) below(l int) spmd.Buffer[A] {
	if l == 0 {
		return e.m.first
	}
	return e.m.layer[l-1].res3
}

// stream returns the residual stream that the layer reads.
func (e *modernPass[A]) stream(l int) spmd.Buffer[A] {
	if a := &e.m.layer[l]; a.from >= 0 {
		return a.res1
	}
	return e.below(l)
}

// attention returns the attention of a layer.
func (e *modernPass[A]) attention(l int) (a *attention.Attention[A]) {
	if e.Err != nil {
		return nil
	}
	of := e.m.att
	if e.m.near != nil && e.m.Cfg.Window(l) > 0 {
		of = e.m.near
	}
	a, e.Err = of.For(e.batch.B, e.T)
	return a
}

// attend enqueues the attention of a layer.
func (e *modernPass[A]) attend(l int) {
	a := &e.m.layer[l]
	if e.before > 0 {
		e.AttendFrom(e.m.heads, a.att, a.att3, e.before, e.m.Cfg.Window(l))
	} else if att := e.attention(l); e.Err == nil {
		e.Err = att.Forward(e.S, a.att, a.lse, a.att3)
	}
}

// forward runs the decoder up to the input of the head.
func (e *modernPass[A]) forward() {
	m := e.m
	e.call(m.Need, m.Cfg.Embeddings())
	e.EmbedNormed(m.first, e.batch.In, m.wteWeights)
	for l := range m.layer {
		e.attentionPart(l)
		e.mlpPart(l, wholeMLP)
	}
	e.RMSNorm(m.lnf, e.below(len(m.layer)), ops.Skip[A]{}, ops.Cast{})
}

// head adds the loss. For gradients it also computes those of the head's weights, and into tmp the
// gradient of the head's input.
func (e *modernPass[A]) head(scale float32) {
	m, C, head := e.m, e.m.Cfg.Channels, &e.m.output
	for lo := 0; lo < e.N; lo += layout.HeadRows {
		hi := min(lo+layout.HeadRows, e.N)
		part := *e // of these rows
		part.N, part.Acc = hi-lo, e.Acc || lo > 0
		x, logits := m.lnf.Slice(lo*C, hi*C), m.logits.Slice(0, part.N*head.Out)
		losses, wanted := m.losses.Slice(lo, hi), e.batch.Targets.Slice(lo, hi)
		part.Cast(x, part.N*C, e.inputCast(head))
		part.product(logits, x, head, blas.Options{}, 0)
		part.Classifier(losses, logits, wanted, scale, e.mode.Grads, e.gradCast(head))
		if e.mode.Grads {
			part.inputGrad(m.tmp.Slice(lo*C, hi*C), logits, head)
			part.weightGrad(logits, x, head)
		}
		e.Err = part.Err
	}
	e.LossSum(m.Loss, m.losses, scale)
}

// backward computes the other gradients from the one in tmp.
func (e *modernPass[A]) backward(ready func(section int) error) {
	m, none, done := e.m, spmd.Buffer[A]{}, e.sections(ready)
	last := len(m.layer) - 1
	e.RMSNormBackward(ops.RMSNormGrad[A]{D: m.dres, DNorm: m.tmp, X: e.below(last + 1), Sums: m.sums,
		To: e.residualCast(last)})
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
		e.ReLU2Backward(m.wide, a.act, e.N*a.fc.Out, e.gradCast(&a.fc))
		e.inputGrad(m.tmp, m.wide, &a.fc)
		e.weightGrad(m.wide, a.ln2, &a.fc)
		e.call(m.Done, mlp)
		e.RMSNormBackward(ops.RMSNormGrad[A]{D: m.dres, DNorm: m.tmp, X: a.res2, Adds: true, Sums: m.sums,
			To: e.gradCast(&a.proj)})
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
		e.HeadsBackward(m.heads, ops.HeadsGrad[A]{D: m.wide, QKV: a.raw, Tokens: e.batch.In, Values: e.values(a),
			DTable: drows, Fresh: fresh, Sums: m.sums, To: e.gradCast(&a.qkv)})
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
		e.RMSNormBackward(ops.RMSNormGrad[A]{D: m.dres, DNorm: m.tmp, X: e.stream(l), Skip: e.skip(a),
			DKept: dkept, Above: above, Adds: true, Sums: m.sums, To: e.residualCast(l - 1)})
		done()
	}
	e.EmbedNormedBackward(m.dres, e.batch.In, m.wteWeights)
	e.tablesGrad(e.batch.Sorted)
	done()
}
