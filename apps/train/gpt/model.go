package gpt

import (
	"errors"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
	"lockstep/spmd/attention"
	"lockstep/spmd/blas"
	"lockstep/spmd/parallel"
)

// Model is a decoder of GPT-2's form with activations of type A on the rank's device.
type Model[A ops.Act] struct {
	decoder[A]
	par  *Weights[A]
	kept []microActs[A] // of each micro-batch in flight
	act  []layerActs[A] // of each layer, of one of them

	pipe   *parallel.Pipeline[A] // nil without --pp
	tensor *tensorParts[A]       // nil without --tp

	// (n,C): the first residual stream, of the same micro-batch as act; the input of the head
	emb, lnf         spmd.Buffer[A]
	lnfMean, lnfRstd spmd.Buffer[float32] // (n)
	// (HeadRows,v): logits of this rank's v rows of the head, then their gradient
	logits    spmd.Buffer[A]
	next      spmd.Buffer[float32] // (Vp): logits of the next token, for Logits
	losses    spmd.Buffer[float32] // (N)
	tmp, dres spmd.Buffer[A]       // (n,C): gradient of a LayerNorm's output; gradient of the residual stream
	// (N,C): this rank's part of a sum, see sequence.go; tmp without --tp
	partial spmd.Buffer[A]
	dwide   spmd.Buffer[A]       // (N,4c): gradient inside the MLP, and of qkv; shares the memory of logits
	scratch spmd.Buffer[A]       // of logits and dwide
	sums    spmd.Buffer[float32] // (4C): sums over rows, to be added to a gradient
}

// layerActs are the activations of one layer that forward keeps for backward. It holds this rank's
// part of NH heads, C channels and N rows: nh heads of c channels, and n rows. Without --tp these
// are all.
type layerActs[A ops.Act] struct {
	ln1                        spmd.Buffer[A]       // (n,C)
	qkv                        spmd.Buffer[A]       // (N,3c): queries, keys, values, each (nh,HS)
	lse                        spmd.Buffer[float32] // (B,nh,T): log of the softmax's denominator
	att                        spmd.Buffer[A]       // (N,c)
	res2, ln2                  spmd.Buffer[A]       // (n,C); res2: residual stream after attention
	fc, gelu                   spmd.Buffer[A]       // (N,4c): before and after the GELU
	res3                       spmd.Buffer[A]       // (n,C): residual stream after the MLP
	mean1, rstd1, mean2, rstd2 spmd.Buffer[float32] // (n)
}

// NewModel allocates a model for micro-batches of up to maxBatch sequences of maxSeq tokens. The
// weights are zero: call Init, or fill Weights and call Refresh. It is collective over w, since all
// ranks compute attention the same way.
func NewModel[A ops.Act](w *spmd.World, cfg layout.Config, maxBatch, maxSeq int) (*Model[A], error) {
	m, err := takeModel[A](w, cfg, maxBatch, maxSeq)
	if err != nil {
		return nil, err
	}
	if err := m.bind(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// takeModel returns a model with its memory, which is only counted without a world.
func takeModel[A ops.Act](w *spmd.World, cfg layout.Config, maxBatch, maxSeq int) (*Model[A], error) {
	m := &Model[A]{}
	m.begin = func(s *spmd.Stream, b Batch, start Start, mode ops.Mode) work { return m.on(s, b, start, mode) }
	if err := m.take(w, cfg, maxBatch, maxSeq); err != nil {
		return nil, err
	}
	m.takeAll()
	return m, nil
}

// takeAll allocates, or counts, the memory of the activations.
func (m *Model[A]) takeAll() {
	sp, cfg, N, C := &m.space, m.Cfg, m.rows, m.Cfg.Channels
	_, own, _ := cfg.OwnVocab()
	m.takeActs()
	rows := m.rowsOf(N)
	layout.Take(sp, rows.Held()*C, &m.tmp, &m.dres)
	if cfg.Tensor.Parts() > 1 {
		m.tensor = &tensorParts[A]{}
		layout.Take(sp, rows.All()*C, &m.tensor.whole, &m.partial)
	}
	wide := 4 * N * cfg.OwnChannels()
	if cfg.Ends() {
		layout.Take(sp, rows.Held()*C, &m.lnf)
		layout.Take(sp, rows.Held(), &m.lnfMean, &m.lnfRstd)
		layout.Take(sp, N, &m.losses)
		layout.Take(sp, own, &m.next)
		wide = max(wide, min(N, layout.HeadRows)*own)
		if m.tensor != nil {
			layout.Take(sp, cfg.Tensor.Parts()*ops.LogitNumbers*min(N, layout.HeadRows), &m.tensor.maxima)
		}
	}
	layout.Take(sp, wide, &m.scratch)
	layout.Take(sp, 4*C, &m.sums)
	layout.Take(sp, max(ops.NormRows*3*C, ops.SplitRows(N)*C), &m.parts.Partial)
	layout.Take(sp, max((4*C+31)/32, ops.NormRows, ops.MostSplits(N)*ops.ChunksOf(C)), &m.parts.Arrived)
	if cfg.FP8 != layout.FP8Off {
		m.FP8 = new(ops.FP8)
		m.FP8.TakeAll(sp, cfg, m.Params, m.Groups, cfg.Shard.Turns(), N, rows, &m.parts.Columns)
	}
}

// bytes returns how many bytes the model takes.
func (m *Model[A]) bytes() int {
	return m.space.Bytes + m.pipelineBytes() + attention.Workspace[A](m.most, attentionOptions)
}

// bind finds the parameters in the memory.
func (m *Model[A]) bind() error {
	if err := m.open(); err != nil {
		return err
	}
	m.logits, m.dwide = m.scratch, m.scratch // never needed at once
	if m.partial.Len() == 0 {
		m.partial = m.tmp
	}
	m.par = Bind(m.Cfg, m.Params, m.Groups, m.at.Places)
	if m.FP8 == nil {
		return nil
	}
	m.par.Head.eight = m.FP8.Head(m.Cfg.HeadName(), 0)
	first, _ := m.Cfg.Own()
	for l := range m.par.Layers {
		q, of := &m.par.Layers[l], m.FP8.Layer(first+l)
		q.QKV.eight, q.Proj.eight, q.FC.eight, q.Proj2.eight = of[0], of[1], of[2], of[3]
	}
	return m.FP8.Begin()
}

// Logits enqueues on s the forward pass of one sequence. It returns the buffer for the (Vocab)
// logits of the next token, which stay until the next call. The rank must have the whole model.
func (m *Model[A]) Logits(s *spmd.Stream, tokens spmd.Buffer[int32], _ int) (spmd.Buffer[float32], error) {
	t := tokens.Len()
	batch := Batch{In: tokens, Targets: tokens, B: 1, T: t}
	if err := m.checkBatch(batch); err != nil {
		return spmd.Buffer[float32]{}, err
	}
	e := m.on(s, batch, FromZero, ops.Mode{})
	if m.tensor != nil || !m.Cfg.Begins() || !m.Cfg.Ends() {
		return spmd.Buffer[float32]{}, errors.New("model: Logits is for a rank that has the whole model")
	}
	e.forward()
	C, Vp := m.Cfg.Channels, m.Cfg.PaddedVocab()
	gemm(&e.pass, m.next, 1, Vp, m.lnf.Slice((t-1)*C, t*C), 1, C, m.par.Head.W, Vp, C, blas.Options{TransB: true})
	return m.next.Slice(0, m.Cfg.Vocab), e.Err
}

// enqueue is the pass of a Model.
type enqueue[A ops.Act] struct {
	pass[A]
	m    *Model[A]
	rows parallel.Rows // of the micro-batch
}

func (m *Model[A]) on(s *spmd.Stream, b Batch, start Start, mode ops.Mode) *enqueue[A] {
	return &enqueue[A]{pass: m.pass(s, b, start, mode), m: m, rows: m.rowsOf(b.B * b.T)}
}

// forward runs the decoder up to the final LayerNorm, or to the last layer of a stage.
func (e *enqueue[A]) forward() {
	m := e.m
	if m.Cfg.Begins() {
		e.call(m.Need, m.Cfg.Embeddings())
		e.embed(m.emb, e.batch.In)
	}
	x := m.emb
	e.norm(m.act[0].ln1, m.act[0].mean1, m.act[0].rstd1, x, &m.par.Layers[0].LN1, e.inputCast(&m.par.Layers[0].QKV))
	for l := range m.act {
		e.attentionPart(l, x)
		e.mlpPart(l, wholeMLP)
		x = m.act[l].res3
		if l+1 == len(m.act) && !m.Cfg.Ends() {
			return // it is the next stage's
		}
		// The next layer's first LayerNorm reads this layer's output.
		out, mean, rstd, ln, to := m.lnf, m.lnfMean, m.lnfRstd, &m.par.LNF, ops.Cast{}
		if l+1 < len(m.act) {
			o, q := &m.act[l+1], &m.par.Layers[l+1]
			out, mean, rstd, ln, to = o.ln1, o.mean1, o.rstd1, &q.LN1, e.inputCast(&q.QKV)
		}
		e.norm(out, mean, rstd, x, ln, to)
	}
}

// head adds the loss. For gradients it also computes those of the head's weights, and into tmp
// the gradient of the final LayerNorm's output.
//
// If ranks divide the head, each has the logits of its rows. The sums over the ranks go on beside
// the products.
func (e *enqueue[A]) head(scale float32) {
	m, C, head := e.m, e.m.Cfg.Channels, &e.m.par.Head
	e.eachPiece(m.lnf, func(i, from, to int, x spmd.Buffer[A]) {
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
// dres if another stage has the final LayerNorm. It leaves the gradient of the first residual
// stream in dres.
func (e *enqueue[A]) backward(ready func(section int) error) {
	m, done := e.m, e.sections(ready)
	last := &m.par.Layers[len(m.act)-1]
	if m.Cfg.Ends() {
		e.normBackward(ops.NormGrad[A]{DX: m.dres, DOut: m.tmp, X: m.act[len(m.act)-1].res3,
			Mean: m.lnfMean, Rstd: m.lnfRstd, Norm: &m.par.LNF, DColumns: last.Proj2.DB,
			To: e.residualCast(len(m.act) - 1)})
	}
	done()
	for l := len(m.act) - 1; l >= 0; l-- {
		a, p := &m.act[l], &m.par.Layers[l]
		// These are the residual stream that the layer read, the bias of the linear that wrote it,
		// and where its gradient goes.
		var below spmd.Buffer[float32]
		var to ops.Cast
		x := m.emb
		if l > 0 {
			x, below, to = m.act[l-1].res3, m.par.Layers[l-1].Proj2.DB, e.residualCast(l-1)
		}
		e.again(l, x)
		mlp, attn := m.Cfg.Sections(l)
		e.call(m.Need, mlp)
		e.call(m.Write, mlp)
		fresh := l+1 == len(m.act) && !m.Cfg.Ends() // no LayerNorm has written dres
		e.backThroughGELU(m.dwide, &p.Proj2, a.fc, &p.FC, fresh || m.Cfg.Recomputes(l))
		e.proj2Grad(a.gelu, &p.Proj2, fresh)
		e.gatherBeside(a.ln2)
		e.grads(m.tmp, m.dwide, a.ln2, &p.FC, toSum)
		e.call(m.Done, mlp)
		e.normBackward(ops.NormGrad[A]{DX: m.dres, DOut: m.tmp, X: a.res2, Mean: a.mean2, Rstd: a.rstd2, Norm: &p.LN2,
			DColumns: p.Proj.DB, Adds: true, To: e.gradCast(&p.Proj)})
		done()

		e.call(m.Need, attn)
		e.call(m.Write, attn)
		e.backThrough(m.partial, &p.Proj)
		e.weightGrad(e.all(m.dres), a.att, &p.Proj)
		e.gatherBeside(a.ln1)
		bias := e.attentionBackward(m.dwide, m.partial, a.att, a.lse, a.qkv, &p.QKV)
		e.CastColumns(m.dwide, spmd.Buffer[A]{}, e.gradCast(&p.QKV), p.QKV.DB)
		e.grads(m.tmp, m.dwide, a.ln1, &p.QKV, bias)
		e.call(m.Done, attn)
		e.normBackward(ops.NormGrad[A]{DX: m.dres, DOut: m.tmp, X: x, Mean: a.mean1, Rstd: a.rstd1, Norm: &p.LN1,
			DColumns: below, Adds: true, To: to})
		done()
	}
	e.embeddingsBackward()
	done()
}
