package modern

import (
	"errors"
	"fmt"
	"math"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
	"lockstep/spmd/attention"
	"lockstep/spmd/parallel"
)

// Model is a decoder with activations of type A on the rank's device, as gpt.Model is.
type Model[A ops.Act] struct {
	*gpt.State
	at    *gpt.Memory[A]
	rows  int             // N: most tokens of a micro-batch
	most  attention.Shape // of a micro-batch
	att   *attention.Attention[A]
	near  *attention.Attention[A] // for layers with a window; nil if no sequence is longer than the window
	heads headShape
	layer []layer[A]

	head, wte  linear[A] // of wte W is not used: rows are looked up in float32
	wteWeights spmd.Buffer[float32]
	tables     []table[A]
	first      spmd.Buffer[A]       // (N,C): the first residual stream
	lnf        spmd.Buffer[A]       // (N,C): what the head reads
	logits     spmd.Buffer[A]       // (HeadRows,Vp): then their gradient; in scratch
	wide       spmd.Buffer[A]       // (N,4C): gradient inside an MLP, and of qkv; in scratch
	scratch    spmd.Buffer[A]       // of logits and wide, which are never needed at once
	tmp, dres  spmd.Buffer[A]       // (N,C): gradient of a norm's output; of the residual stream
	dkept      []spmd.Buffer[A]     // (N,C): gradient of what a layer keeps for a later one
	next       spmd.Buffer[float32] // (Vp): logits of the next token, for Logits
	losses     spmd.Buffer[float32] // (N)
	partial    spmd.Buffer[float32] // of sums of numbers
	parts      ops.Scratch          // of kernels
	lists      spmd.Buffer[int32]   // the tokens of all ranks, each as ops.Sorter.Sort leaves them
}

// linear is the parameters of y(n,out) = x(n,in)·wᵀ, and their gradient.
type linear[A ops.Act] struct {
	in, out int
	w       spmd.Buffer[A]
	dw      spmd.Buffer[float32]
	eight   *ops.FP8Linear // nil if products are not of 8-bit floats
}

// table is embeddings that are mixed into values, and the gradient of the rows that a micro-batch
// has looked up.
type table[A ops.Act] struct {
	w, dw spmd.Buffer[float32] // (Vp,C)
	drows spmd.Buffer[A]       // (N,C)
}

// layer is the parameters of one layer, and what forward keeps of it for backward.
type layer[A ops.Act] struct {
	qkv, proj, fc, proj2 linear[A]
	skip, values         number
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

// Open makes a model of this package or of gpt, with bfloat16 or float32 activations. It is
// collective over w.
func Open(w *spmd.World, half bool, cfg layout.Config, maxBatch, maxSeq int) (*gpt.State, gpt.Passes, error) {
	switch {
	case cfg.Parts == 0:
		return gpt.Open(w, half, cfg, maxBatch, maxSeq)
	case half:
		return passesOf(NewModel[spmd.BF16](w, cfg, maxBatch, maxSeq))
	}
	return passesOf(NewModel[float32](w, cfg, maxBatch, maxSeq))
}

func passesOf[A ops.Act](m *Model[A], err error) (*gpt.State, gpt.Passes, error) {
	if err != nil {
		return nil, nil, err
	}
	return m.State, m, nil
}

// MemoryNeeded is gpt.MemoryNeeded for either kind of model.
func MemoryNeeded(cfg layout.Config, batch, seq int, half bool) (int, error) {
	switch {
	case cfg.Parts == 0:
		return gpt.MemoryNeeded(cfg, batch, seq, half)
	case half:
		return bytesOf[spmd.BF16](cfg, batch, seq)
	}
	return bytesOf[float32](cfg, batch, seq)
}

func bytesOf[A ops.Act](cfg layout.Config, batch, seq int) (int, error) {
	m, err := shapeOf[A](nil, cfg, batch, seq)
	if err != nil {
		return 0, err
	}
	n := m.Space().Bytes + attention.Workspace[A](m.most, attentionOptions)
	if s, some := m.windowed(); some {
		n += attention.Workspace[A](s, attentionOptions)
	}
	return n, nil
}

// NewModel is gpt.NewModel for a modern model.
func NewModel[A ops.Act](w *spmd.World, cfg layout.Config, maxBatch, maxSeq int) (*Model[A], error) {
	m, err := shapeOf[A](w, cfg, maxBatch, maxSeq)
	if err != nil {
		return nil, err
	}
	if err := m.open(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// attentionOptions give equal bits for equal inputs.
var attentionOptions = attention.Options{Deterministic: true}

// shapeOf returns a model with its memory, which is only counted without a world.
func shapeOf[A ops.Act](w *spmd.World, cfg layout.Config, maxBatch, maxSeq int) (*Model[A], error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	switch {
	case maxBatch <= 0 || maxSeq <= 0 || maxSeq > cfg.SeqMax:
		return nil, fmt.Errorf("model: micro-batches of %d sequences of %d tokens, model takes up to %d",
			maxBatch, maxSeq, cfg.SeqMax)
	case maxBatch > math.MaxInt32/maxSeq/(3*cfg.Heads):
		return nil, fmt.Errorf("model: micro-batches of %d sequences of %d tokens are too large", maxBatch, maxSeq)
	case cfg.Tensor.Parts() > 1 || cfg.Stage.Stages > 1:
		return nil, errWhole
	case cfg.FP8 != layout.FP8Off && !ops.IsHalf[A]():
		return nil, errors.New("model: products of 8-bit floats are of bfloat16 activations")
	}
	size := cfg.Channels / cfg.Heads
	state, at := gpt.NewState[A](w, cfg)
	m := &Model[A]{State: state, at: at, rows: maxBatch * maxSeq, layer: make([]layer[A], cfg.Layers),
		most: attention.Shape{Batch: maxBatch, Tokens: maxSeq, Heads: cfg.Heads, Size: size},
		heads: headShape{heads: cfg.Heads, size: size, norm: cfg.Has(layout.NormQK),
			scale: float32(0.12 * math.Sqrt(float64(size)))}}
	m.takeAll(maxSeq)
	return m, nil
}

// windowed returns the shape of the attention of layers with a window, and whether a
// window bounds any.
func (m *Model[A]) windowed() (s attention.Shape, some bool) {
	s = m.most
	for l := range m.layer {
		s.Window = max(s.Window, m.Cfg.Window(l))
	}
	return s, s.Window > 0 && s.Tokens > s.Window
}

// takeAll allocates, or counts, the memory of activations.
func (m *Model[A]) takeAll(seq int) {
	sp, cfg, N, C := m.Space(), m.Cfg, m.rows, m.Cfg.Channels
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
	layout.Take(sp, 2*max(N, sumBlocks+sumSets), &m.partial)
	layout.Take(sp, ops.SplitRows(N)*C, &m.parts.Partial)
	layout.Take(sp, max(1+sumSets, ops.MostSplits(N)*ops.ChunksOf(C)), &m.parts.Arrived)
	layout.Take(sp, seq*m.heads.size/2, &m.heads.turn)
	if cfg.Shard.Mode == layout.ShardOff && cfg.Shard.Ranks > 1 {
		layout.Take(sp, cfg.Shard.Ranks*ops.SortedLen(N, cfg.Vocab), &m.lists)
	}
	if cfg.FP8 != layout.FP8Off {
		m.FP8 = new(ops.FP8)
		m.FP8.TakeAll(sp, cfg, m.Params, m.Groups, cfg.Shard.Turns(), N, parallel.Rows{}, nil)
	}
}

func (m *Model[A]) open() (err error) {
	if err := m.at.Place(m.State); err != nil {
		return err
	}
	m.logits, m.wide = m.scratch, m.scratch
	if m.att, err = attention.New[A](m.World, m.most, attentionOptions); err != nil {
		return err
	}
	m.Space().Frees = append(m.Space().Frees, m.att.Close)
	if s, some := m.windowed(); some {
		if m.near, err = attention.New[A](m.World, s, attentionOptions); err != nil {
			return err
		}
		m.Space().Frees = append(m.Space().Frees, m.near.Close)
	}
	m.bind()
	if m.FP8 != nil {
		m.head.eight = m.FP8.Head(m.Cfg.HeadName(), 0)
		for l := range m.layer {
			a, of := &m.layer[l], m.FP8.Layer(l)
			a.qkv.eight, a.proj.eight, a.fc.eight, a.proj2.eight = of[0], of[1], of[2], of[3]
		}
		if err := m.FP8.Begin(); err != nil {
			return err
		}
	}
	return m.heads.turn.CopyFrom(turns(m.most.Tokens, m.heads.size))
}

// bind finds the parameters.
func (m *Model[A]) bind() {
	at := m.at
	for _, p := range m.Params {
		w, dw := layout.InGroup(m.Groups, at.Weights, p), layout.InGroup(m.Groups, at.Grads, p)
		matrix := func() linear[A] {
			return linear[A]{in: p.Shape[1], out: p.Shape[0], w: layout.InGroup(m.Groups, at.Mats, p), dw: dw}
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
				a.values = number{w, dw}
			case "skip":
				a.skip = number{w, dw}
			}
		} else if n, _ := fmt.Sscanf(p.Name, "values.%d.weight", &l); n == 1 {
			m.tables[l].w, m.tables[l].dw = w, dw
		} else if p.Name == "wte.weight" {
			m.wte, m.wteWeights = matrix(), w
		} else {
			m.head = matrix()
		}
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

// Attention returns the way that attention is computed, and the reason.
func (m *Model[A]) Attention() (path, why string) { return m.att.Path(), m.att.Why() }

// NewSharder is gpt.Model's.
func (m *Model[A]) NewSharder(c spmd.Comm) (*gpt.Sharder, error) {
	return gpt.NewSharder(m.State, m.at, c, m.Cfg.GroupsOfStep())
}

var errWhole = errors.New("model: the layers of a modern one are whole, and all on each rank")
