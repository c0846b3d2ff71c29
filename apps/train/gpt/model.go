package gpt

import (
	"errors"
	"fmt"
	"math"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
	"lockstep/spmd/attention"
	"lockstep/spmd/parallel"
)

// Model is a decoder with activations of type A on the rank's device. Methods with a stream only
// enqueue. One stream at a time may use a model.
//
// With BF16 the activations, their gradients and the operands of matrix products are bfloat16.
// These stay float32: weights, biases, gradients of both, moments, sums of products, statistics of
// norms and attention, losses.
type Model[A ops.Act] struct {
	State
	at      Memory[A]
	rows    int             // N: most tokens of a micro-batch
	longest int             // most tokens of a sequence
	most    attention.Shape // of a micro-batch
	att     *attention.Attention[A]
	near    *attention.Attention[A] // for layers with a window; nil if no sequence is longer than the window
	heads   ops.HeadShape
	parts   ops.Scratch // of kernels

	par  *Weights[A]
	kept []microActs[A] // of each micro-batch in flight
	act  []layerActs[A] // of each layer, of one of them

	pipe   *parallel.Pipeline[A] // nil without --pp
	tensor *tensorParts[A]       // nil without --tp

	emb spmd.Buffer[A] // (n,C): the first residual stream, of the same micro-batch as act
	lnf normed[A]      // the input of the head
	// (HeadRows,v): logits of this rank's v rows of the head, then their gradient
	logits    spmd.Buffer[A]
	next      spmd.Buffer[float32] // (Vp): logits of the next token, for Logits
	losses    spmd.Buffer[float32] // (N)
	tmp, dres spmd.Buffer[A]       // (n,C): gradient of a norm's output; gradient of the residual stream
	dkept     []spmd.Buffer[A]     // (N,C): gradient of what a layer keeps for a later one
	dout      spmd.Buffer[A]       // (n,C): gradient of the output of a layer whose parts are side by side
	drows     []spmd.Buffer[A]     // (N,C): gradient of the rows that were looked up in each of par.tables
	// (N,C): this rank's part of a sum, see sequence.go; tmp without --tp
	partial spmd.Buffer[A]
	dwide   spmd.Buffer[A]       // (N,4c): gradient inside the MLP, and of qkv; shares the memory of logits
	scratch spmd.Buffer[A]       // of logits and dwide
	sums    spmd.Buffer[float32] // (4C): sums over rows, to be added to a gradient
	numbers spmd.Buffer[float32] // parts of sums that are numbers
	lists   spmd.Buffer[int32]   // the tokens of all ranks, each as ops.Sorter.Sort leaves them
}

// normed is the output of a norm, (n,C), and what a LayerNorm keeps, (n).
type normed[A ops.Act] struct {
	out        spmd.Buffer[A]
	mean, rstd spmd.Buffer[float32]
}

// layerActs are the activations of one layer that forward keeps for backward. It holds this rank's
// part of NH heads, C channels and N rows: nh heads of c channels, and n rows. Without --tp these
// are all.
type layerActs[A ops.Act] struct {
	res1     spmd.Buffer[A] // (n,C): the residual stream that the layer reads, empty if it is the last one's output
	ln1      normed[A]
	raw      spmd.Buffer[A]       // (N,3c): queries, keys, values from the product, each (nh,HS)
	qkv      spmd.Buffer[A]       // (N,3c): the same for attention; raw if no part comes between
	lse      spmd.Buffer[float32] // (B,nh,T): log of the softmax's denominator
	att      spmd.Buffer[A]       // (N,c)
	res2     spmd.Buffer[A]       // (n,C): residual stream after attention
	ln2      normed[A]
	fc, gelu spmd.Buffer[A] // (N,4c): before and after the activation; one buffer for ReLU2
	res3     spmd.Buffer[A] // (n,C): residual stream after the MLP
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

// attentionOptions give equal bits for equal inputs.
var attentionOptions = attention.Options{Deterministic: true}

// takeModel checks the shape, and returns a model with its memory, which is only counted without a
// world.
func takeModel[A ops.Act](w *spmd.World, cfg layout.Config, maxBatch, maxSeq int) (*Model[A], error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	longest, heads := cfg.SeqMax, 1 // heads: that a number of attention's input is counted for
	if cfg.Has(layout.ByHead) {
		longest, heads = maxSeq, 3*cfg.Heads
	}
	switch {
	case maxBatch <= 0 || maxSeq <= 0 || maxSeq > cfg.SeqMax:
		return nil, fmt.Errorf("model: micro-batches of %d sequences of %d tokens, model takes up to %d",
			maxBatch, maxSeq, cfg.SeqMax)
	case maxBatch > math.MaxInt32/maxSeq/heads:
		return nil, fmt.Errorf("model: micro-batches of %d sequences of %d tokens are too large", maxBatch, maxSeq)
	case cfg.Has(layout.RMSNorms) && (cfg.Tensor.Parts() > 1 || cfg.Stage.Stages > 1):
		return nil, errors.New("model: the layers of a modern one are whole, and all on each rank")
	case cfg.FP8 != layout.FP8Off && !ops.IsHalf[A]():
		return nil, errors.New("model: products of 8-bit floats are of bfloat16 activations")
	}
	m := &Model[A]{State: State{Cfg: cfg, World: w, space: layout.Space{W: w}}, rows: maxBatch * maxSeq,
		longest: longest, most: attention.Shape{Batch: maxBatch, Tokens: maxSeq, Heads: cfg.OwnHeads(),
			Size: cfg.Channels / cfg.Heads}}
	m.heads = ops.HeadShape{Heads: m.most.Heads, Size: m.most.Size, Norm: cfg.Has(layout.NormQK), Scale: 1}
	if cfg.Has(layout.Scaled) {
		m.heads.Scale = float32(0.12 * math.Sqrt(float64(m.most.Size)))
	}
	var n int
	m.Params, m.Groups, n = layout.Of(cfg)
	m.at.take(&m.State, n)
	m.takeAll()
	return m, nil
}

// windowed returns the shape of the attention of layers with a window, and whether a
// window bounds any.
func (m *Model[A]) windowed() (s attention.Shape, some bool) {
	s = m.most
	for l := range m.Cfg.Layers {
		s.Window = max(s.Window, m.Cfg.Window(l))
	}
	return s, s.Window > 0 && s.Tokens > s.Window
}

// takeAll allocates, or counts, the memory of the activations.
func (m *Model[A]) takeAll() {
	sp, cfg, N, C := &m.space, m.Cfg, m.rows, m.Cfg.Channels
	_, own, _ := cfg.OwnVocab()
	rows := m.rowsOf(N)
	m.dkept, m.drows = make([]spmd.Buffer[A], cfg.Layers), make([]spmd.Buffer[A], cfg.Tables())
	m.takeActs()
	layout.Take(sp, rows.Held()*C, &m.tmp, &m.dres)
	if cfg.Has(layout.Beside) {
		layout.Take(sp, rows.Held()*C, &m.dout)
	}
	for i := range m.drows {
		layout.Take(sp, N*C, &m.drows[i])
	}
	if cfg.Tensor.Parts() > 1 {
		m.tensor = &tensorParts[A]{}
		layout.Take(sp, rows.All()*C, &m.tensor.whole, &m.partial)
	}
	wide := 4 * N * cfg.OwnChannels()
	if cfg.Ends() {
		m.takeNorms(&m.lnf)
		layout.Take(sp, N, &m.losses)
		layout.Take(sp, own, &m.next)
		wide = max(wide, min(N, layout.HeadRows)*own)
		if m.tensor != nil {
			layout.Take(sp, cfg.Tensor.Parts()*ops.LogitNumbers*min(N, layout.HeadRows), &m.tensor.maxima)
		}
	}
	layout.Take(sp, wide, &m.scratch)
	partial, arrived, columns := ops.SplitRows(N)*C, ops.MostSplits(N)*ops.ChunksOf(C), &m.parts.Columns
	if cfg.Has(layout.RMSNorms) {
		columns = nil
	} else {
		layout.Take(sp, 4*C, &m.sums)
		partial, arrived = max(ops.NormRows*3*C, partial), max((4*C+31)/32, ops.NormRows, arrived)
	}
	if cfg.Has(layout.ByHead) {
		layout.Take(sp, ops.SumsLen(N), &m.numbers)
		layout.Take(sp, m.most.Tokens*m.heads.Size/2, &m.heads.Turn)
		arrived = max(1+ops.SumSets, arrived)
	}
	layout.Take(sp, partial, &m.parts.Partial)
	layout.Take(sp, arrived, &m.parts.Arrived)
	if cfg.Has(layout.RMSNorms) && cfg.Shard.Mode == layout.ShardOff && cfg.Shard.Ranks > 1 {
		layout.Take(sp, cfg.Shard.Ranks*ops.SortedLen(N, cfg.Vocab), &m.lists)
	}
	if cfg.FP8 != layout.FP8Off {
		m.FP8 = new(ops.FP8)
		m.FP8.TakeAll(sp, cfg, m.Params, m.Groups, cfg.Shard.Turns(), N, rows, columns)
	}
}

// bind finds the parameters in the memory, and makes what goes with them.
func (m *Model[A]) bind() (err error) {
	if m.space.Err != nil {
		return m.space.Err
	}
	near, some := m.windowed()
	for _, x := range []struct {
		to    **attention.Attention[A]
		shape attention.Shape
		here  bool
	}{{&m.att, m.most, true}, {&m.near, near, some}} {
		if !x.here {
			continue
		}
		if *x.to, err = attention.New[A](m.World, x.shape, attentionOptions); err != nil {
			return err
		}
		m.space.Frees = append(m.space.Frees, (*x.to).Close)
	}
	m.at.place(&m.State)
	m.logits, m.dwide = m.scratch, m.scratch // never needed at once
	if m.partial.Len() == 0 {
		m.partial = m.tmp
	}
	m.par = Bind(m.Cfg, m.Params, m.Groups, m.at.Places)
	if m.FP8 != nil {
		m.par.Head.eight = m.FP8.Head(m.Cfg.HeadName(), 0)
		first, _ := m.Cfg.Own()
		for l := range m.par.Layers {
			q, of := &m.par.Layers[l], m.FP8.Layer(first+l)
			q.QKV.eight, q.Proj.eight, q.FC.eight, q.Proj2.eight = of[0], of[1], of[2], of[3]
		}
		if err := m.FP8.Begin(); err != nil {
			return err
		}
	}
	if !m.Cfg.Has(layout.ByHead) {
		return nil
	}
	return m.heads.Turn.CopyFrom(turns(m.most.Tokens, m.heads.Size))
}

// turns returns the cosines and sines of the angles by which positions turn pairs of a
// head's numbers. A quarter of the pairs' frequencies fall from 1 to 1/1024 geometrically.
// The other pairs stay.
func turns(tokens, size int) []float32 {
	n := size / 4
	x := make([]float32, 0, 2*tokens*n)
	for t := range tokens {
		for i := range n {
			sin, cos := math.Sincos(float64(t) * math.Pow(1024, -float64(i)/float64(n-1)))
			x = append(x, float32(cos), float32(sin))
		}
	}
	return x
}
