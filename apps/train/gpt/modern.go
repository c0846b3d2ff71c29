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

// Modern is a decoder with the parts of layout.Parts in place of GPT-2's. Each rank has the whole
// model.
type Modern[A ops.Act] struct {
	decoder[A]
	near  *attention.Attention[A] // for layers with a window; nil if no sequence is longer than the window
	heads ops.HeadShape
	layer []modernLayer[A]

	output, wte Linear[A] // the head; of wte W is not used: rows are looked up in float32
	wteWeights  spmd.Buffer[float32]
	tables      []table[A]
	first       spmd.Buffer[A]       // (N,C): the first residual stream
	lnf         spmd.Buffer[A]       // (N,C): what the head reads
	logits      spmd.Buffer[A]       // (HeadRows,Vp): then their gradient; in scratch
	wide        spmd.Buffer[A]       // (N,4C): gradient inside an MLP, and of qkv; in scratch
	scratch     spmd.Buffer[A]       // of logits and wide, which are never needed at once
	tmp, dres   spmd.Buffer[A]       // (N,C): gradient of a norm's output; of the residual stream
	dkept       []spmd.Buffer[A]     // (N,C): gradient of what a layer keeps for a later one
	next        spmd.Buffer[float32] // (Vp): logits of the next token, for Logits
	losses      spmd.Buffer[float32] // (N)
	sums        spmd.Buffer[float32] // parts of sums of numbers
	lists       spmd.Buffer[int32]   // the tokens of all ranks, each as ops.Sorter.Sort leaves them
}

// table is embeddings that are mixed into values, and the gradient of the rows that a micro-batch
// has looked up.
type table[A ops.Act] struct {
	w, dw spmd.Buffer[float32] // (Vp,C)
	drows spmd.Buffer[A]       // (N,C)
}

// modernLayer is the parameters of one layer, and what forward keeps of it for backward.
type modernLayer[A ops.Act] struct {
	qkv, proj, fc, proj2 Linear[A]
	skip, values         ops.Number
	table                int // of tables; -1 is none
	from                 int // the layer whose output is added; -1 is none

	// (N,C): the residual stream that the layer reads, empty if it is the last one's
	// output; its norm
	res1, ln1 spmd.Buffer[A]
	// (N,3C): queries, keys and values from the product, and for attention
	raw, att3 spmd.Buffer[A]
	lse       spmd.Buffer[float32] // (B,NH,T)
	att       spmd.Buffer[A]       // (N,C)
	res2, ln2 spmd.Buffer[A]       // (N,C)
	act       spmd.Buffer[A]       // (N,4C): squared ReLU
	res3      spmd.Buffer[A]       // (N,C)
}

// NewModern is NewModel for a modern model.
func NewModern[A ops.Act](w *spmd.World, cfg layout.Config, maxBatch, maxSeq int) (*Modern[A], error) {
	m, err := takeModern[A](w, cfg, maxBatch, maxSeq)
	if err != nil {
		return nil, err
	}
	if err := m.bind(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// takeModern returns a model with its memory, which is only counted without a world.
func takeModern[A ops.Act](w *spmd.World, cfg layout.Config, maxBatch, maxSeq int) (*Modern[A], error) {
	m := &Modern[A]{}
	m.begin = func(s *spmd.Stream, b Batch, start Start, mode ops.Mode) work { return m.on(s, b, start, mode) }
	if err := m.take(w, cfg, maxBatch, maxSeq); err != nil {
		return nil, err
	}
	m.longest, m.layer = maxSeq, make([]modernLayer[A], cfg.Layers)
	m.heads = ops.HeadShape{Heads: cfg.Heads, Size: m.most.Size, Norm: cfg.Has(layout.NormQK),
		Scale: float32(0.12 * math.Sqrt(float64(m.most.Size)))}
	m.takeAll()
	return m, nil
}

// bytes returns how many bytes the model takes.
func (m *Modern[A]) bytes() int {
	n := m.space.Bytes + attention.Workspace[A](m.most, attentionOptions)
	if s, some := m.windowed(); some {
		n += attention.Workspace[A](s, attentionOptions)
	}
	return n
}

// windowed returns the shape of the attention of layers with a window, and whether a
// window bounds any.
func (m *Modern[A]) windowed() (s attention.Shape, some bool) {
	s = m.most
	for l := range m.layer {
		s.Window = max(s.Window, m.Cfg.Window(l))
	}
	return s, s.Window > 0 && s.Tokens > s.Window
}

// takeAll allocates, or counts, the memory of activations.
func (m *Modern[A]) takeAll() {
	sp, cfg, N, C := &m.space, m.Cfg, m.rows, m.Cfg.Channels
	layout.Take(sp, N*C, &m.first, &m.lnf, &m.tmp, &m.dres)
	m.dkept = make([]spmd.Buffer[A], cfg.Layers)
	m.takeLayers()
	m.tables = make([]table[A], cfg.Tables())
	for i := range m.tables {
		layout.Take(sp, N*C, &m.tables[i].drows)
	}
	layout.Take(sp, max(4*N*C, min(N, layout.HeadRows)*cfg.PaddedVocab()), &m.scratch)
	layout.Take(sp, cfg.PaddedVocab(), &m.next)
	layout.Take(sp, N, &m.losses)
	layout.Take(sp, ops.SumsLen(N), &m.sums)
	layout.Take(sp, ops.SplitRows(N)*C, &m.parts.Partial)
	layout.Take(sp, max(1+ops.SumSets, ops.MostSplits(N)*ops.ChunksOf(C)), &m.parts.Arrived)
	layout.Take(sp, m.most.Tokens*m.heads.Size/2, &m.heads.Turn)
	if cfg.Shard.Mode == layout.ShardOff && cfg.Shard.Ranks > 1 {
		layout.Take(sp, cfg.Shard.Ranks*ops.SortedLen(N, cfg.Vocab), &m.lists)
	}
	if cfg.FP8 != layout.FP8Off {
		m.FP8 = new(ops.FP8)
		m.FP8.TakeAll(sp, cfg, m.Params, m.Groups, cfg.Shard.Turns(), N, parallel.Rows{}, nil)
	}
}

// bind finds the parameters in the memory, and makes what goes with them.
func (m *Modern[A]) bind() (err error) {
	if err := m.open(); err != nil {
		return err
	}
	m.logits, m.wide = m.scratch, m.scratch
	if s, some := m.windowed(); some {
		if m.near, err = attention.New[A](m.World, s, attentionOptions); err != nil {
			return err
		}
		m.space.Frees = append(m.space.Frees, m.near.Close)
	}
	for _, p := range m.Params {
		m.bindParam(p)
	}
	if m.FP8 != nil {
		m.output.eight = m.FP8.Head(m.Cfg.HeadName(), 0)
		for l := range m.layer {
			a, of := &m.layer[l], m.FP8.Layer(l)
			a.qkv.eight, a.proj.eight, a.fc.eight, a.proj2.eight = of[0], of[1], of[2], of[3]
		}
		if err := m.FP8.Begin(); err != nil {
			return err
		}
	}
	return m.heads.Turn.CopyFrom(turns(m.most.Tokens, m.heads.Size))
}

func (m *Modern[A]) bindParam(p layout.Param) {
	w, dw := layout.InGroup(m.Groups, m.at.Weights, p), layout.InGroup(m.Groups, m.at.Grads, p)
	matrix := func() Linear[A] {
		return Linear[A]{In: p.Shape[1], Out: p.Shape[0], W: layout.InGroup(m.Groups, m.at.Mats, p), DW: dw}
	}
	var l int
	var what string
	if n, _ := fmt.Sscanf(p.Name, "h.%d.%s", &l, &what); n == 2 {
		a := &m.layer[l]
		switch what {
		case "attn.c_attn.weight":
			a.qkv = matrix()
		case "attn.c_proj.weight":
			a.proj = matrix()
		case "mlp.c_fc.weight":
			a.fc = matrix()
		case "mlp.c_proj.weight":
			a.proj2 = matrix()
		case "attn.values":
			a.values = ops.Number{W: w, DW: dw}
		case "skip":
			a.skip = ops.Number{W: w, DW: dw}
		}
	} else if n, _ := fmt.Sscanf(p.Name, "values.%d.weight", &l); n == 1 {
		m.tables[l].w, m.tables[l].dw = w, dw
	} else if p.Name == "wte.weight" {
		m.wte, m.wteWeights = matrix(), w
	} else {
		m.output = matrix()
	}
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
