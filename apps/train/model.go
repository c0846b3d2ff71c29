package main

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"sort"
	"strings"

	"lockstep/host"
	"lockstep/spmd"
)

// Config is the shape of a GPT-2-style decoder.
type Config struct {
	Layers   int // transformer blocks
	Heads    int // attention heads of a block; divides Channels
	Channels int // width of the residual stream
	SeqMax   int // longest sequence, in tokens
	Vocab    int // number of different tokens
}

// presets are the shapes known by name; Vocab comes with the tokens.
var presets = map[string]Config{
	"tiny":        {Layers: 4, Heads: 4, Channels: 128, SeqMax: 128},
	"gpt2":        {Layers: 12, Heads: 12, Channels: 768, SeqMax: 1024},
	"gpt2-medium": {Layers: 24, Heads: 16, Channels: 1024, SeqMax: 1024},
	"gpt2-large":  {Layers: 36, Heads: 20, Channels: 1280, SeqMax: 1024},
	"gpt2-xl":     {Layers: 48, Heads: 25, Channels: 1600, SeqMax: 1024},
}

// Preset returns the shape with the given name, without a vocabulary.
func Preset(name string) (Config, error) {
	if c, ok := presets[name]; ok {
		return c, nil
	}
	names := make([]string, 0, len(presets))
	for n := range presets {
		names = append(names, n)
	}
	sort.Strings(names)
	return Config{}, fmt.Errorf("model %q: known are %s", name, strings.Join(names, ", "))
}

// Validate says what is wrong with c, or returns nil.
func (c Config) Validate() error {
	for _, d := range []struct {
		name string
		n    int
	}{{"layers", c.Layers}, {"heads", c.Heads}, {"channels", c.Channels}, {"sequence length", c.SeqMax}, {"vocabulary", c.Vocab}} {
		if d.n <= 0 {
			return fmt.Errorf("model: %s is %d, must be above 0", d.name, d.n)
		}
		if d.n > 1<<24 {
			return fmt.Errorf("model: %s is %d, must be at most %d", d.name, d.n, 1<<24)
		}
	}
	if c.Channels%c.Heads != 0 {
		return fmt.Errorf("model: %d channels do not divide into %d heads", c.Channels, c.Heads)
	}
	return nil
}

// PaddedVocab is Vocab rounded up to a multiple of 128: the rows of the token
// embedding, so that the largest products have even sizes. The rows beyond Vocab
// stay zero.
func (c Config) PaddedVocab() int { return (c.Vocab + 127) / 128 * 128 }

// ParamCount is the number of trained parameters, padding not counted.
func (c Config) ParamCount() int {
	C := c.Channels
	return c.Layers*(12*C*C+13*C) + 2*C + (c.Vocab+c.SeqMax)*C
}

// FlopsPerToken is the arithmetic of training on one token of a sequence of t:
// 6 for each weight of a product, and causal attention counted in full, as
// PaLM's and nanoGPT's MFU do (12·L·t·C).
func (c Config) FlopsPerToken(t int) float64 {
	C, L := float64(c.Channels), float64(c.Layers)
	return 6*(12*L*C*C+float64(c.PaddedVocab())*C) + 12*L*float64(t)*C
}

// Param is one tensor of the model: elements [Off, Off+Len) of each arena.
type Param struct {
	Name  string // GPT-2's name, such as h.0.attn.c_attn.weight
	Off   int    // elements; a multiple of arenaAlign
	Len   int    // elements
	Shape []int  // row-major; a weight is (outputs, inputs)
	Decay bool   // whether weight decay applies: matrices only
}

// Group is a contiguous range of the arenas whose gradients become complete
// together. The groups follow each other without gaps, in backward order.
type Group struct {
	Name     string
	Off, Len int // elements
}

// arenaAlign is the alignment of a tensor in an arena, in float32 elements: 256
// bytes, what the fastest matrix products ask for.
const arenaAlign = 64

// Indices into the twelve tensors of a layer, in the order in which backward
// completes them.
const (
	projB2 = iota // mlp.c_proj.bias
	projW2
	fcB
	fcW
	ln2W
	ln2B
	projB // attn.c_proj.bias
	projW
	qkvB
	qkvW
	ln1W
	ln1B
	layerTensors
)

// layout lists the parameters in backward order, the groups, and the length of
// an arena in elements.
func layout(cfg Config) (params []Param, groups []Group, n int) {
	C := cfg.Channels
	add := func(name string, shape ...int) {
		p := Param{Name: name, Off: n, Len: shape[0], Shape: shape, Decay: len(shape) == 2}
		if len(shape) == 2 {
			p.Len *= shape[1]
		}
		params = append(params, p)
		n += (p.Len + arenaAlign - 1) / arenaAlign * arenaAlign
	}
	start := 0
	group := func(name string) {
		groups = append(groups, Group{name, start, n - start})
		start = n
	}
	add("ln_f.weight", C)
	add("ln_f.bias", C)
	group("ln_f")
	for l := cfg.Layers - 1; l >= 0; l-- {
		h := fmt.Sprintf("h.%d.", l)
		add(h+"mlp.c_proj.bias", C)
		add(h+"mlp.c_proj.weight", C, 4*C)
		add(h+"mlp.c_fc.bias", 4*C)
		add(h+"mlp.c_fc.weight", 4*C, C)
		add(h+"ln_2.weight", C)
		add(h+"ln_2.bias", C)
		group(h + "mlp")
		add(h+"attn.c_proj.bias", C)
		add(h+"attn.c_proj.weight", C, C)
		add(h+"attn.c_attn.bias", 3*C)
		add(h+"attn.c_attn.weight", 3*C, C)
		add(h+"ln_1.weight", C)
		add(h+"ln_1.bias", C)
		group(h + "attn")
	}
	// The token embedding is also the head: its gradient is complete only when
	// that of the embeddings is.
	add("wpe.weight", cfg.SeqMax, C)
	add("wte.weight", cfg.PaddedVocab(), C)
	group("embeddings")
	return params, groups, n
}

// State is the weights of a model and their gradients, on the rank's device: what
// is float32 whatever the type of the activations.
type State struct {
	Cfg     Config
	Params  []Param                // in backward order
	Groups  []Group                // in backward order; what ready of ForwardBackward counts
	Weights spmd.Buffer[float32]   // all parameters; Params says what is where, the rest is zero
	Grads   spmd.Buffer[float32]   // their gradients, in the same places
	Totals  spmd.Buffer[float64]   // (2): Loss, and a number of the program's own: one all-reduce sums both over the ranks
	Loss    spmd.Buffer[float64]   // (1): sum over the micro-batches of scale times the tokens' losses
	half    spmd.Buffer[spmd.BF16] // Weights rounded, for the products of bfloat16 activations; else empty
	p, g    []spmd.Buffer[float32] // weight and gradient of each of Params
	w       *spmd.World            // where the buffers are
	free    []func() error         // frees every buffer
}

// Model is a decoder with activations of type A on the rank's device. Its methods
// that take a stream only enqueue; one stream at a time may use a Model.
//
// With BF16 the activations, their gradients and the operands of the matrix products
// are bfloat16; the weights and their gradients, moments, the products' sums, the
// statistics of LayerNorm and attention, biases and losses stay float32.
type Model[A Act] struct {
	State
	rows int              // most tokens of a micro-batch
	act  []layerActs[A]   // of each layer
	mats []spmd.Buffer[A] // each of Params as products take it

	emb, lnf         spmd.Buffer[A]       // (B·T,C)
	lnfMean, lnfRstd spmd.Buffer[float32] // (B·T)
	logits           spmd.Buffer[A]       // (B·T,Vp): logits, then their gradient
	next             spmd.Buffer[float32] // (Vp): logits of the next token, for Logits
	losses           spmd.Buffer[float32] // (B·T)
	tmp, dres        spmd.Buffer[A]       // (B·T,C): output of a product; gradient of the residual stream
	dwide            spmd.Buffer[A]       // (B·T,4C): gradient inside the MLP, and of qkv
	delta            spmd.Buffer[float32] // (B,NH,T): attention backward's row sums
	partial          spmd.Buffer[float32] // (sumParts,4C): parts of sums over rows, on a GPU
	arrived          spmd.Buffer[uint32]  // (4C/32): of how many parts there are, between two sums 0
}

// layerActs is what forward keeps of one layer for backward.
type layerActs[A Act] struct {
	ln1, att, res2, ln2        spmd.Buffer[A]       // (B·T,C); res2: residual stream after attention
	res3                       spmd.Buffer[A]       // (B·T,C): residual stream after the MLP
	mean1, rstd1, mean2, rstd2 spmd.Buffer[float32] // (B·T)
	qkv                        spmd.Buffer[A]       // (B·T,3C): queries, keys, values, each (NH,HS)
	lse                        spmd.Buffer[float32] // (B,NH,T): log of the softmax's denominator
	fc, gelu                   spmd.Buffer[A]       // (B·T,4C): before and after the GELU
}

// NewModel allocates a model for micro-batches of up to maxBatch sequences of
// maxSeq tokens. The weights are zero: call Init, or fill Weights and call Refresh.
func NewModel[A Act](w *spmd.World, cfg Config, maxBatch, maxSeq int) (*Model[A], error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if maxBatch <= 0 || maxSeq <= 0 || maxSeq > cfg.SeqMax {
		return nil, fmt.Errorf("model: micro-batches of %d sequences of %d tokens, model takes up to %d", maxBatch, maxSeq, cfg.SeqMax)
	}
	if maxBatch > math.MaxInt32/maxSeq {
		return nil, fmt.Errorf("model: micro-batches of %d sequences of %d tokens are too large", maxBatch, maxSeq)
	}
	m := &Model[A]{State: State{Cfg: cfg, w: w}, rows: maxBatch * maxSeq, act: make([]layerActs[A], cfg.Layers)}
	if err := m.alloc(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Model[A]) alloc() error {
	var n int
	m.Params, m.Groups, n = layout(m.Cfg)
	var err error
	C, N := m.Cfg.Channels, m.rows
	allocate(&m.State, &err, n, &m.Weights, &m.Grads)
	for l := range m.act {
		a := &m.act[l]
		allocate(&m.State, &err, N*C, &a.ln1, &a.att, &a.res2, &a.ln2, &a.res3)
		allocate(&m.State, &err, N, &a.mean1, &a.rstd1, &a.mean2, &a.rstd2)
		allocate(&m.State, &err, 3*N*C, &a.qkv)
		allocate(&m.State, &err, N*m.Cfg.Heads, &a.lse)
		allocate(&m.State, &err, 4*N*C, &a.fc, &a.gelu)
	}
	allocate(&m.State, &err, N*C, &m.emb, &m.lnf, &m.tmp, &m.dres)
	allocate(&m.State, &err, N, &m.lnfMean, &m.lnfRstd, &m.losses)
	allocate(&m.State, &err, N*m.Cfg.PaddedVocab(), &m.logits)
	allocate(&m.State, &err, m.Cfg.PaddedVocab(), &m.next)
	allocate(&m.State, &err, 4*N*C, &m.dwide)
	allocate(&m.State, &err, N*m.Cfg.Heads, &m.delta)
	allocate(&m.State, &err, sumParts*4*C, &m.partial)
	allocate(&m.State, &err, (4*C+31)/32, &m.arrived)
	allocate(&m.State, &err, 2, &m.Totals)
	mats, half := any(&m.mats).(*[]spmd.Buffer[spmd.BF16])
	if half {
		allocate(&m.State, &err, n, &m.half)
	}
	if err != nil {
		return err
	}
	m.Loss = m.Totals.Slice(0, 1)
	for _, p := range m.Params {
		m.p = append(m.p, m.Weights.Slice(p.Off, p.Off+p.Len))
		m.g = append(m.g, m.Grads.Slice(p.Off, p.Off+p.Len))
		if half {
			*mats = append(*mats, m.half.Slice(p.Off, p.Off+p.Len))
		}
	}
	if !half {
		*any(&m.mats).(*[]spmd.Buffer[float32]) = m.p
	}
	// The gaps between tensors are never written: they must not hold a NaN that
	// would reach the norm.
	return errors.Join(m.Weights.Fill(0), m.Grads.Fill(0), m.half.Fill(0), m.Totals.Fill(0), m.arrived.Fill(0))
}

// allocate makes each of bufs n elements long, unless *err tells of a failure, and
// leaves its own there.
func allocate[T spmd.Elem](s *State, err *error, n int, bufs ...*spmd.Buffer[T]) {
	for _, b := range bufs {
		if *err != nil {
			return
		}
		if *b, *err = spmd.Alloc[T](s.w, n); *err == nil {
			s.free = append(s.free, b.Free)
		}
	}
}

// Close frees the buffers, those of the activations too.
func (m *State) Close() error {
	var errs []error
	for _, f := range m.free {
		errs = append(errs, f())
	}
	m.free = nil
	return errors.Join(errs...)
}

// GradGroups returns the gradients of each of Groups.
func (m *State) GradGroups() []spmd.Buffer[float32] {
	bs := make([]spmd.Buffer[float32], len(m.Groups))
	for i, g := range m.Groups {
		bs[i] = m.Grads.Slice(g.Off, g.Off+g.Len)
	}
	return bs
}

// Refresh enqueues on s what lets the passes see the present Weights: call it when
// anything but AdamW has written there.
func (m *State) Refresh(s *spmd.Stream) error {
	if m.half.Len() == 0 {
		return nil
	}
	return roundWeights(s, m.half, m.Weights)
}

// Init sets the weights as GPT-2 does: matrices normal with deviation 0.02,
// those that write to the residual stream 0.02/√(2·Layers), biases 0, LayerNorm
// weights 1. They depend on the seed and the tensors' names alone. It returns
// when they are in place; Refresh is to follow.
func (m *State) Init(seed uint64) error {
	for i, p := range m.Params {
		x := make([]float32, p.Len)
		initParam(x, p, m.Cfg, seed)
		if err := m.p[i].CopyFrom(x); err != nil {
			return err
		}
	}
	return nil
}

// initChunk is how many elements one generator draws: a constant, so that the
// values do not depend on the number of threads.
const initChunk = 1 << 16

func initParam(x []float32, p Param, cfg Config, seed uint64) {
	if !p.Decay {
		if strings.HasSuffix(p.Name, ".weight") { // a LayerNorm
			for i := range x {
				x[i] = 1
			}
		}
		return
	}
	std := 0.02
	if strings.HasSuffix(p.Name, "c_proj.weight") {
		std /= math.Sqrt(2 * float64(cfg.Layers))
	}
	if p.Name == "wte.weight" {
		x = x[:cfg.Vocab*cfg.Channels]
	}
	h := fnv.New64a()
	h.Write([]byte(p.Name)) // never fails
	name := h.Sum64()
	host.Parallel((len(x)+initChunk-1)/initChunk, 1, func(lo, hi int) {
		for k := lo; k < hi; k++ {
			rng := rand.New(rand.NewPCG(seed, name+uint64(k)))
			c := x[k*initChunk : min((k+1)*initChunk, len(x))]
			for i := range c {
				c[i] = float32(std * rng.NormFloat64())
			}
		}
	})
}

// layer returns the index in Params of the first tensor of layer l.
func (m *State) layer(l int) int { return 2 + (m.Cfg.Layers-1-l)*layerTensors }

// wpe and wte are the indices of the embeddings in Params.
func (m *State) wpe() int { return len(m.Params) - 2 }
func (m *State) wte() int { return len(m.Params) - 1 }

// ForwardBackward enqueues on s a micro-batch of b sequences of t tokens: its
// loss and the gradients of all parameters. in and targets are (b,t), each token
// from 0 to below Vocab; they may be reused once s has passed this point.
//
// scale is 1 over the number of tokens of the whole batch, over all micro-batches
// and ranks: gradients and Loss are then to be summed. With first they start from
// zero, otherwise they are added to what is there.
//
// ready, if not nil, is called as soon as everything that Groups[i]'s gradients
// depend on is enqueued, i counting up from 0: pass it with the last micro-batch.
func (m *Model[A]) ForwardBackward(s *spmd.Stream, in, targets spmd.Buffer[int32], b, t int, scale float32, first bool, ready func(group int) error) error {
	if err := m.checkBatch(in, targets, b, t); err != nil {
		return err
	}
	if ready == nil {
		ready = func(int) error { return nil }
	}
	e := &enqueue[A]{s: s, m: m, b: b, t: t, n: b * t, acc: !first}
	e.forward(in)
	e.head()
	e.classify(targets, scale, true)
	e.backward(in, ready)
	return e.err
}

// Evaluate enqueues on s the loss of a micro-batch, as ForwardBackward does, and
// no gradient.
func (m *Model[A]) Evaluate(s *spmd.Stream, in, targets spmd.Buffer[int32], b, t int, scale float32, first bool) error {
	if err := m.checkBatch(in, targets, b, t); err != nil {
		return err
	}
	e := &enqueue[A]{s: s, m: m, b: b, t: t, n: b * t, acc: !first}
	e.forward(in)
	e.head()
	e.classify(targets, scale, false)
	return e.err
}

// Logits enqueues on s the forward pass of one sequence, and returns where the
// (Vocab) logits of the token after it will be. They stand until the next call.
func (m *Model[A]) Logits(s *spmd.Stream, tokens spmd.Buffer[int32]) (spmd.Buffer[float32], error) {
	t := tokens.Len()
	if err := m.checkBatch(tokens, tokens, 1, t); err != nil {
		return spmd.Buffer[float32]{}, err
	}
	e := &enqueue[A]{s: s, m: m, b: 1, t: t, n: t}
	e.forward(tokens)
	C, Vp := m.Cfg.Channels, m.Cfg.PaddedVocab()
	gemm(e, m.next, 1, Vp, m.lnf.Slice((t-1)*C, t*C), 1, C, m.mats[m.wte()], Vp, C, spmd.GemmOpt{TransB: true})
	return m.next.Slice(0, m.Cfg.Vocab), e.err
}

func (m *Model[A]) checkBatch(in, targets spmd.Buffer[int32], b, t int) error {
	switch {
	case b <= 0 || t <= 0 || t > m.Cfg.SeqMax || b*t > m.rows:
		return fmt.Errorf("model: micro-batch of %d sequences of %d tokens, made for up to %d positions and %d tokens", b, t, m.Cfg.SeqMax, m.rows)
	case in.Len() != b*t || targets.Len() != b*t:
		return fmt.Errorf("model: micro-batch of %d×%d, but %d tokens and %d targets", b, t, in.Len(), targets.Len())
	}
	return nil
}

// enqueue puts the passes of one micro-batch on a stream. After the first error
// it enqueues nothing more, and keeps the error.
type enqueue[A Act] struct {
	s       *spmd.Stream
	m       *Model[A]
	b, t, n int  // sequences, tokens of each, tokens in all
	acc     bool // add to the gradients and the loss instead of setting them
	err     error
}

// forward runs the decoder up to and with the final LayerNorm.
func (e *enqueue[A]) forward(in spmd.Buffer[int32]) {
	m, C := e.m, e.m.Cfg.Channels
	e.encoderForward(m.emb, in, m.p[m.wte()], m.p[m.wpe()])
	x := m.emb
	p := m.p[m.layer(0):]
	e.layerNormForward(m.act[0].ln1, m.act[0].mean1, m.act[0].rstd1, x, p[ln1W], p[ln1B])
	for l := range m.act {
		a, at := &m.act[l], m.layer(l)
		p := m.p[at:]
		e.linear(a.qkv, a.ln1, at+qkvW, C, 3*C)
		e.biasForward(a.qkv, p[qkvB], 3*C)
		e.attentionForward(a.att, a.lse, a.qkv)
		e.linear(m.tmp, a.att, at+projW, C, C)
		e.residualLayerNormForward(a.res2, a.ln2, a.mean2, a.rstd2, x, m.tmp, p[projB], p[ln2W], p[ln2B])
		e.linear(a.fc, a.ln2, at+fcW, C, 4*C)
		e.biasGeluForward(a.gelu, a.fc, p[fcB], 4*C)
		e.linear(m.tmp, a.gelu, at+projW2, 4*C, C)
		// The LayerNorm that reads this layer's output is the next layer's first.
		out, mean, rstd, w, b := m.lnf, m.lnfMean, m.lnfRstd, m.p[0], m.p[1]
		if l+1 < len(m.act) {
			o, q := &m.act[l+1], m.p[m.layer(l+1):]
			out, mean, rstd, w, b = o.ln1, o.mean1, o.rstd1, q[ln1W], q[ln1B]
		}
		e.residualLayerNormForward(a.res3, out, mean, rstd, a.res2, m.tmp, p[projB2], w, b)
		x = a.res3
	}
}

// head computes the logits of all tokens.
func (e *enqueue[A]) head() {
	e.linear(e.m.logits, e.m.lnf, e.m.wte(), e.m.Cfg.Channels, e.m.Cfg.PaddedVocab())
}

// classify adds the loss and, with grad, turns the logits into their gradient.
func (e *enqueue[A]) classify(targets spmd.Buffer[int32], scale float32, grad bool) {
	e.classifier(e.m.losses, e.m.logits, targets, scale, grad)
	e.lossSum(e.m.Loss, e.m.losses, scale)
}

// backward computes the gradients from that of the logits.
func (e *enqueue[A]) backward(in spmd.Buffer[int32], ready func(int) error) {
	m, C, Vp := e.m, e.m.Cfg.Channels, e.m.Cfg.PaddedVocab()
	group := 0
	done := func() {
		if e.err == nil {
			e.err = ready(group)
		}
		group++
	}
	wte, wpe := m.wte(), m.wpe()
	e.weightGrad(m.logits, m.lnf, wte, C, Vp)
	e.inputGrad(m.tmp, m.logits, wte, C, Vp)
	last := m.act[len(m.act)-1].res3
	e.layerNormBackward(m.dres, m.g[0], m.g[1], m.tmp, last, m.p[0], m.lnfMean, m.lnfRstd, false)
	done()
	for l := len(m.act) - 1; l >= 0; l-- {
		a, at := &m.act[l], m.layer(l)
		p, g := m.p[at:], m.g[at:]
		e.biasBackward(g[projB2], m.dres, C)
		e.weightGrad(m.dres, a.gelu, at+projW2, 4*C, C)
		e.inputGrad(m.dwide, m.dres, at+projW2, 4*C, C)
		e.geluBackward(m.dwide, a.fc, 4*C)
		e.biasBackward(g[fcB], m.dwide, 4*C)
		e.weightGrad(m.dwide, a.ln2, at+fcW, C, 4*C)
		e.inputGrad(m.tmp, m.dwide, at+fcW, C, 4*C)
		e.layerNormBackward(m.dres, g[ln2W], g[ln2B], m.tmp, a.res2, p[ln2W], a.mean2, a.rstd2, true)
		done()

		e.biasBackward(g[projB], m.dres, C)
		e.weightGrad(m.dres, a.att, at+projW, C, C)
		e.inputGrad(m.tmp, m.dres, at+projW, C, C)
		e.attentionBackward(m.dwide, m.delta, m.tmp, a.att, a.lse, a.qkv)
		e.biasBackward(g[qkvB], m.dwide, 3*C)
		e.weightGrad(m.dwide, a.ln1, at+qkvW, C, 3*C)
		e.inputGrad(m.tmp, m.dwide, at+qkvW, C, 3*C)
		x := m.emb
		if l > 0 {
			x = m.act[l-1].res3
		}
		e.layerNormBackward(m.dres, g[ln1W], g[ln1B], m.tmp, x, p[ln1W], a.mean1, a.rstd1, true)
		done()
	}
	e.encoderBackward(m.g[wte], m.g[wpe], m.dres, in)
	done()
}

// linear enqueues y(n,out) = x(n,in) · w(out,in)ᵀ, w the matrix of Params[p].
func (e *enqueue[A]) linear(y, x spmd.Buffer[A], p, in, out int) {
	gemm(e, y, e.n, out, x, e.n, in, e.m.mats[p], out, in, spmd.GemmOpt{TransB: true})
}

// inputGrad enqueues dx(n,in) = dy(n,out) · w(out,in).
func (e *enqueue[A]) inputGrad(dx, dy spmd.Buffer[A], p, in, out int) {
	gemm(e, dx, e.n, in, dy, e.n, out, e.m.mats[p], out, in, spmd.GemmOpt{})
}

// weightGrad enqueues dw(out,in) (+)= dy(n,out)ᵀ · x(n,in).
func (e *enqueue[A]) weightGrad(dy, x spmd.Buffer[A], p, in, out int) {
	gemm(e, e.m.g[p], out, in, dy, e.n, out, x, e.n, in, spmd.GemmOpt{TransA: true, Accumulate: e.acc})
}

// gemm enqueues a product of the first rows of buffers: c(cr,cc) from a(ar,ac) and b(br,bc).
func gemm[C, A Act](e *enqueue[A], c spmd.Buffer[C], cr, cc int, a spmd.Buffer[A], ar, ac int, b spmd.Buffer[A], br, bc int, o spmd.GemmOpt) {
	if e.err == nil {
		e.err = spmd.Gemm(e.s, spmd.MatrixOf(c, cr, cc), spmd.MatrixOf(a, ar, ac), spmd.MatrixOf(b, br, bc), o)
	}
}
