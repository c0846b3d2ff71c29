package main

import (
	"errors"
	"fmt"
	"math"
	"sort"
	"strings"

	"lockstep/spmd"
	"lockstep/spmd/attention"
	"lockstep/spmd/blas"
)

// Config is the shape of a GPT-2-style decoder.
type Config struct {
	Layers   int // transformer blocks
	Heads    int // attention heads of a block; divides Channels
	Channels int // width of the residual stream
	SeqMax   int // longest sequence, in tokens
	Vocab    int // number of different tokens

	// Nothing that lasts depends on these.
	FP8   fp8Level // which products of bfloat16 activations are of 8-bit floats
	Shard sharding // which part of the training state the ranks share

	Recompute recomputation // which activations are not kept
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
	if c.FP8 != fp8Off && c.Channels%16 != 0 {
		return fmt.Errorf("model: %d channels, which products of 8-bit floats take in multiples of 16", c.Channels)
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

// Model is a decoder with activations of type A on the rank's device. Its methods
// that take a stream only enqueue; one stream at a time may use a Model.
//
// With BF16 the activations, their gradients and the operands of the matrix products
// are bfloat16; the weights and their gradients, moments, the products' sums, the
// statistics of LayerNorm and attention, biases and losses stay float32.
type Model[A Act] struct {
	State
	rows int             // N: most tokens of a micro-batch
	most attention.Shape // of a micro-batch
	att  *attention.Attention[A]
	at   places[A]
	par  *weights[A]
	act  []layerActs[A] // of each layer

	operands slots[A] // with --shard parameters: the operands of products

	emb, lnf         spmd.Buffer[A]       // (N,C): the first residual stream; what the head reads
	lnfMean, lnfRstd spmd.Buffer[float32] // (N)
	logits           spmd.Buffer[A]       // (headRows,Vp): logits, then their gradient
	next             spmd.Buffer[float32] // (Vp): logits of the next token, for Logits
	losses           spmd.Buffer[float32] // (N)
	tmp, dres        spmd.Buffer[A]       // (N,C): output of a product; gradient of the residual stream
	dwide            spmd.Buffer[A]       // (N,4C): gradient inside the MLP, and of qkv; in the memory of logits
	scratch          spmd.Buffer[A]       // of logits and dwide
	sums             spmd.Buffer[float32] // (4C): sums over rows, to be added to a gradient
	parts            scratch              // of kernels
}

// layerActs is what forward keeps of one layer for backward.
type layerActs[A Act] struct {
	ln1                        spmd.Buffer[A]       // (N,C)
	qkv                        spmd.Buffer[A]       // (N,3C): queries, keys, values, each (NH,HS)
	lse                        spmd.Buffer[float32] // (B,NH,T): log of the softmax's denominator
	att                        spmd.Buffer[A]       // (N,C)
	res2, ln2                  spmd.Buffer[A]       // (N,C); res2: residual stream after attention
	fc, gelu                   spmd.Buffer[A]       // (N,4C): before and after the GELU
	res3                       spmd.Buffer[A]       // (N,C): residual stream after the MLP
	mean1, rstd1, mean2, rstd2 spmd.Buffer[float32] // (N)
}

// NewModel allocates a model for micro-batches of up to maxBatch sequences of
// maxSeq tokens. The weights are zero: call Init, or fill Weights and call Refresh.
// Collective over w: all ranks compute attention the same way.
func NewModel[A Act](w *spmd.World, cfg Config, maxBatch, maxSeq int) (*Model[A], error) {
	m, err := shapeOf[A](w, cfg, maxBatch, maxSeq)
	if err != nil {
		return nil, err
	}
	if err := m.alloc(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// shapeOf is a model that has no memory yet.
func shapeOf[A Act](w *spmd.World, cfg Config, maxBatch, maxSeq int) (*Model[A], error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if maxBatch <= 0 || maxSeq <= 0 || maxSeq > cfg.SeqMax {
		return nil, fmt.Errorf("model: micro-batches of %d sequences of %d tokens, model takes up to %d", maxBatch, maxSeq, cfg.SeqMax)
	}
	if maxBatch > math.MaxInt32/maxSeq {
		return nil, fmt.Errorf("model: micro-batches of %d sequences of %d tokens are too large", maxBatch, maxSeq)
	}
	if cfg.FP8 != fp8Off && !isHalf[A]() {
		return nil, errors.New("model: products of 8-bit floats are of bfloat16 activations")
	}
	return &Model[A]{State: State{Cfg: cfg, w: w, space: space{w: w}}, rows: maxBatch * maxSeq,
		most: attention.Shape{Batch: maxBatch, Tokens: maxSeq, Heads: cfg.Heads, Size: cfg.Channels / cfg.Heads}, act: make([]layerActs[A], cfg.Layers)}, nil
}

// takeAll takes, or counts, all memory of the model.
func (m *Model[A]) takeAll() {
	sp, cfg, N, C, Vp := &m.space, m.Cfg, m.rows, m.Cfg.Channels, m.Cfg.PaddedVocab()
	var n int
	m.Params, m.Groups, n = layout(cfg)
	m.takeWeights(n)
	m.takeActs()
	take(sp, N*C, &m.emb, &m.lnf, &m.tmp, &m.dres)
	take(sp, N, &m.lnfMean, &m.lnfRstd, &m.losses)
	take(sp, max(min(N, headRows)*Vp, 4*N*C), &m.scratch)
	take(sp, Vp, &m.next)
	take(sp, 4*C, &m.sums)
	take(sp, max(normRows*3*C, splitRows(N)*C), &m.parts.partial)
	take(sp, max((4*C+31)/32, normRows, mostSplits(N)*chunksOf(C)), &m.parts.arrived)
	take(sp, 2, &m.Totals)
	if cfg.FP8 != fp8Off {
		m.fp8 = new(fp8State)
		m.fp8.takeAll(sp, cfg, m.Params, N, &m.parts.columns)
	}
}

// attentionOptions have equal inputs give equal bits.
var attentionOptions = attention.Options{Deterministic: true}

func (m *Model[A]) alloc() error {
	m.takeAll()
	if m.space.err != nil {
		return m.space.err
	}
	att, err := attention.New[A](m.w, m.most, attentionOptions)
	if err != nil {
		return err
	}
	m.att = att
	m.space.frees = append(m.space.frees, att.Close)
	m.Loss = m.Totals.Slice(0, 1)
	m.logits, m.dwide = m.scratch, m.scratch // never needed at once
	if err := m.place(); err != nil {
		return err
	}
	m.par = bind(m.Cfg, m.Params, m.Groups, m.at)
	if m.fp8 != nil {
		bindFP8(&m.State, m.par)
		if err := m.fp8.begin(); err != nil {
			return err
		}
	}
	// The gaps between tensors are never written: they must not hold a NaN that
	// would reach the norm.
	return errors.Join(m.Weights.SetAll(0), m.Grads.SetAll(0), m.half.SetAll(0), m.Totals.SetAll(0), m.parts.arrived.SetAll(0))
}

// Attention returns how attention is computed, and why so.
func (m *Model[A]) Attention() (path, why string) { return m.att.Path(), m.att.Why() }

// memoryNeeded is how many bytes of the device a model takes, nothing rounded up by the
// allocator and without what libraries need for themselves.
func memoryNeeded(cfg Config, batch, seq int, half bool) (int, error) {
	if half {
		return bytesOf[spmd.BF16](cfg, batch, seq)
	}
	return bytesOf[float32](cfg, batch, seq)
}

func bytesOf[A Act](cfg Config, batch, seq int) (int, error) {
	m, err := shapeOf[A](nil, cfg, batch, seq)
	if err != nil {
		return 0, err
	}
	m.takeAll()
	return m.space.bytes + attention.Workspace[A](m.most, attentionOptions), nil
}

// Batch is a micro-batch on the device: B sequences of T tokens, each from 0 to
// below Vocab.
type Batch struct {
	In, Targets spmd.Buffer[int32] // (B,T)
	Sorted      spmd.Buffer[int32] // In as sorter.sort leaves it, for gradients
	B, T        int
}

// ForwardBackward enqueues on s a micro-batch: its loss and the gradients of all
// parameters. The batch's buffers may be reused once s has passed this point.
//
// scale is 1 over the number of tokens of the whole batch, over all micro-batches
// and ranks: gradients and Loss are then to be summed. With first they start from
// zero, otherwise they are added to what is there.
//
// ready, if not nil, is called as soon as everything that Groups[i]'s gradients
// depend on is enqueued, i counting up from 0: pass it with the last micro-batch.
func (m *Model[A]) ForwardBackward(s *spmd.Stream, batch Batch, scale float32, first bool, ready func(group int) error) error {
	if err := m.checkBatch(batch); err != nil {
		return err
	}
	if n := sortedLen(batch.B*batch.T, m.Cfg.Vocab); batch.Sorted.Len() != n {
		return fmt.Errorf("model: micro-batch of %d×%d with %d numbers in the order of its tokens, want %d", batch.B, batch.T, batch.Sorted.Len(), n)
	}
	if ready == nil {
		ready = func(int) error { return nil }
	}
	return m.learn(s, batch, scale, !first, mode8{casts: true, records: true, products: true}, ready)
}

// Calibrate enqueues on s what ForwardBackward does, with products of bfloat16 alone: the
// largest sizes of what it casts say what the scales are to be. It changes nothing else
// that lasts but the gradients and the loss.
func (m *Model[A]) Calibrate(s *spmd.Stream, batch Batch, scale float32) error {
	if err := m.checkBatch(batch); err != nil {
		return err
	}
	return m.learn(s, batch, scale, false, mode8{casts: true, records: true}, func(int) error { return nil })
}

// learn enqueues both passes.
func (m *Model[A]) learn(s *spmd.Stream, batch Batch, scale float32, acc bool, mode mode8, ready func(group int) error) error {
	e := enqueueOn(s, m, batch, acc, mode)
	if m.Cfg.Shard.scattersGrads() {
		e.acc, e.accLoss = false, acc // gradients are added where they are reduced to
	}
	e.forward(batch.In)
	e.head(batch.Targets, scale, true)
	e.backward(batch, ready)
	return e.err
}

// Evaluate enqueues on s the loss of a micro-batch, as ForwardBackward does, and
// no gradient.
func (m *Model[A]) Evaluate(s *spmd.Stream, batch Batch, scale float32, first bool) error {
	if err := m.checkBatch(batch); err != nil {
		return err
	}
	e := enqueueOn(s, m, batch, !first, mode8{casts: true, products: true})
	e.forward(batch.In)
	e.head(batch.Targets, scale, false)
	return e.err
}

// Logits enqueues on s the forward pass of one sequence, and returns where the
// (Vocab) logits of the token after it will be. They stand until the next call.
func (m *Model[A]) Logits(s *spmd.Stream, tokens spmd.Buffer[int32]) (spmd.Buffer[float32], error) {
	t := tokens.Len()
	batch := Batch{In: tokens, Targets: tokens, B: 1, T: t}
	if err := m.checkBatch(batch); err != nil {
		return spmd.Buffer[float32]{}, err
	}
	e := enqueueOn(s, m, batch, false, mode8{})
	e.forward(tokens)
	C, Vp := m.Cfg.Channels, m.Cfg.PaddedVocab()
	gemm(e, m.next, 1, Vp, m.lnf.Slice((t-1)*C, t*C), 1, C, m.par.head.w, Vp, C, blas.Options{TransB: true})
	return m.next.Slice(0, m.Cfg.Vocab), e.err
}

func (m *Model[A]) checkBatch(b Batch) error {
	switch {
	case b.B <= 0 || b.T <= 0 || b.T > m.Cfg.SeqMax || b.B*b.T > m.rows:
		return fmt.Errorf("model: micro-batch of %d sequences of %d tokens, made for up to %d positions and %d tokens", b.B, b.T, m.Cfg.SeqMax, m.rows)
	case b.In.Len() != b.B*b.T || b.Targets.Len() != b.B*b.T:
		return fmt.Errorf("model: micro-batch of %d×%d, but %d tokens and %d targets", b.B, b.T, b.In.Len(), b.Targets.Len())
	}
	return nil
}

// enqueue puts the passes of one micro-batch on a stream. After the first error
// it enqueues nothing more, and keeps the error.
type enqueue[A Act] struct {
	launcher[A]
	m     *Model[A]
	b     int // sequences
	mode8 mode8
}

func enqueueOn[A Act](s *spmd.Stream, m *Model[A], b Batch, acc bool, mode mode8) *enqueue[A] {
	return &enqueue[A]{launcher: launcher[A]{s: s, cfg: m.Cfg, n: b.B * b.T, t: b.T, acc: acc, scratch: m.parts}, m: m, b: b.B, mode8: mode}
}

// forward runs the decoder up to and with the final LayerNorm.
func (e *enqueue[A]) forward(in spmd.Buffer[int32]) {
	m := e.m
	e.call(m.around.need, m.Cfg.embeddings())
	e.encoderForward(m.emb, in, m.par.wte.w, m.par.wpe.w)
	x := m.emb
	e.layerNormForward(m.act[0].ln1, m.act[0].mean1, m.act[0].rstd1, x, &m.par.layers[0].ln1, e.inputCast(&m.par.layers[0].qkv))
	for l := range m.act {
		e.attentionPart(l, x)
		e.mlpPart(l, true)
		x = m.act[l].res3
		// The LayerNorm that reads this layer's output is the next layer's first.
		out, mean, rstd, ln, to := m.lnf, m.lnfMean, m.lnfRstd, &m.par.lnf, cast{}
		if l+1 < len(m.act) {
			o, q := &m.act[l+1], &m.par.layers[l+1]
			out, mean, rstd, ln, to = o.ln1, o.mean1, o.rstd1, &q.ln1, e.inputCast(&q.qkv)
		}
		e.layerNormForward(out, mean, rstd, x, ln, to)
	}
}

// headRows is how many rows the head works on at a time: the logits of all rows never
// exist at once. Products of so many rows are as fast as those of more.
const headRows = 8192

// head adds the loss. With grad it also computes the gradients of the head's weights,
// and in tmp that of the final LayerNorm's output.
func (e *enqueue[A]) head(targets spmd.Buffer[int32], scale float32, grad bool) {
	m, C, Vp, head := e.m, e.m.Cfg.Channels, e.m.Cfg.PaddedVocab(), &e.m.par.head
	for lo := 0; lo < e.n; lo += headRows {
		hi := min(lo+headRows, e.n)
		part := *e // of these rows
		part.n, part.acc = hi-lo, e.acc || lo > 0
		lnf, logits := m.lnf.Slice(lo*C, hi*C), m.logits.Slice(0, part.n*Vp)
		part.cast(lnf, part.n*C, e.inputCast(head))
		part.linear(logits, lnf, head)
		part.classifier(m.losses.Slice(lo, hi), logits, targets.Slice(lo, hi), scale, grad, e.gradCast(head))
		if grad {
			part.weightGrad(logits, lnf, head)
			part.inputGrad(m.tmp.Slice(lo*C, hi*C), logits, head)
		}
		e.err = part.err
	}
	e.lossSum(m.Loss, m.losses, scale)
}

// backward computes the other gradients from that in tmp.
func (e *enqueue[A]) backward(batch Batch, ready func(int) error) {
	m := e.m
	group := 0
	done := func() {
		if e.err == nil {
			e.err = ready(group)
		}
		group++
	}
	last := &m.par.layers[len(m.act)-1]
	e.layerNormBackward(m.dres, m.tmp, m.act[len(m.act)-1].res3, m.lnfMean, m.lnfRstd, &m.par.lnf, last.proj2.db, false, e.gradCast(&last.proj2))
	done()
	for l := len(m.act) - 1; l >= 0; l-- {
		a, p := &m.act[l], &m.par.layers[l]
		// The residual stream that the layer read, the bias of what wrote it, and what takes its gradient.
		var below spmd.Buffer[float32]
		var to cast
		x := m.emb
		if l > 0 {
			wrote := &m.par.layers[l-1].proj2
			x, below, to = m.act[l-1].res3, wrote.db, e.gradCast(wrote)
		}
		e.again(l, x)
		mlp, attn := m.Cfg.sections(l)
		e.call(m.around.need, mlp)
		e.call(m.around.write, mlp)
		e.weightGrad(m.dres, a.gelu, &p.proj2)
		e.inputGradGELU(m.dwide, m.dres, &p.proj2, a.fc, &p.fc)
		e.weightBiasGrad(m.dwide, a.ln2, &p.fc)
		e.inputGrad(m.tmp, m.dwide, &p.fc)
		e.call(m.around.done, mlp)
		e.layerNormBackward(m.dres, m.tmp, a.res2, a.mean2, a.rstd2, &p.ln2, p.proj.db, true, e.gradCast(&p.proj))
		done()

		e.call(m.around.need, attn)
		e.call(m.around.write, attn)
		e.weightGrad(m.dres, a.att, &p.proj)
		e.inputGrad(m.tmp, m.dres, &p.proj)
		e.attentionBackward(m.dwide, m.tmp, a.att, a.lse, a.qkv)
		e.castColumns(m.dwide, spmd.Buffer[A]{}, e.gradCast(&p.qkv), p.qkv.db)
		e.weightBiasGrad(m.dwide, a.ln1, &p.qkv)
		e.inputGrad(m.tmp, m.dwide, &p.qkv)
		e.call(m.around.done, attn)
		e.layerNormBackward(m.dres, m.tmp, x, a.mean1, a.rstd1, &p.ln1, below, true, to)
		done()
	}
	e.encoderBackward(m.par.wte.dw, m.par.wpe.dw, m.dres, batch.Sorted)
	done()
}

// linear enqueues y(n,out) = x(n,in)·wᵀ + b.
func (e *enqueue[A]) linear(y, x spmd.Buffer[A], p *linear[A]) {
	e.product(y, x, p, blas.Options{Bias: argOf(p.bias)})
}

// linearResidual enqueues y(n,out) = x(n,in)·wᵀ + b + res(n,out).
func (e *enqueue[A]) linearResidual(y, x spmd.Buffer[A], p *linear[A], res spmd.Buffer[A]) {
	e.product(y, x, p, blas.Options{Bias: argOf(p.bias), Residual: res.Arg()})
}

// linearGELU enqueues pre(n,out) = x(n,in)·wᵀ + b and y = gelu(pre), by GPT-2's tanh formula,
// and the copy of y.
func (e *enqueue[A]) linearGELU(y, pre, x spmd.Buffer[A], p *linear[A], to cast) {
	if !to.none() {
		e.linear(pre, x, p)
		e.gelu8(y, pre, e.n*p.out, to)
		return
	}
	e.product(y, x, p, blas.Options{Bias: argOf(p.bias), GELU: pre.Arg()})
}

// product enqueues y(n,out) = x(n,in)·wᵀ, with an epilogue.
func (e *enqueue[A]) product(y, x spmd.Buffer[A], p *linear[A], o blas.Options) {
	if q := e.product8(p); q != nil {
		gemm(e, y, e.n, p.out, q.x.codes, e.n, p.in, q.w, p.out, p.in, q.scaled(o, q.x))
		return
	}
	o.TransB = true
	gemm(e, y, e.n, p.out, x, e.n, p.in, p.w, p.out, p.in, o)
}

// inputGrad enqueues dx(n,in) = dy(n,out)·w.
func (e *enqueue[A]) inputGrad(dx, dy spmd.Buffer[A], p *linear[A]) {
	if q := e.product8(p); q != nil {
		gemm(e, dx, e.n, p.in, q.dy.codes, e.n, p.out, q.across, p.in, p.out, q.scaled(blas.Options{}, q.dy))
		return
	}
	gemm(e, dx, e.n, p.in, dy, e.n, p.out, p.w, p.out, p.in, blas.Options{})
}

// inputGradGELU enqueues dpre(n,in) = dy(n,out)·w·gelu'(pre(n,in)), and the copy of dpre where wrote,
// the linear that pre is of, takes one: with it comes the gradient of the bias.
func (e *enqueue[A]) inputGradGELU(dpre, dy spmd.Buffer[A], p *linear[A], pre spmd.Buffer[A], wrote *linear[A]) {
	if to := e.gradCast(wrote); !to.none() {
		e.inputGrad(dpre, dy, p)
		e.castColumns(dpre, pre, to, wrote.db)
		return
	}
	gemm(e, dpre, e.n, p.in, dy, e.n, p.out, p.w, p.out, p.in, blas.Options{DGELU: pre.Arg()})
}

// weightGrad enqueues dw(out,in) (+)= dy(n,out)ᵀ·x(n,in).
func (e *enqueue[A]) weightGrad(dy, x spmd.Buffer[A], p *linear[A]) {
	gemm(e, p.dw, p.out, p.in, dy, e.n, p.out, x, e.n, p.in, blas.Options{TransA: true, Accumulate: e.acc})
}

// weightBiasGrad enqueues what weightGrad does, and db(out) (+)= the sum of dy over its rows.
func (e *enqueue[A]) weightBiasGrad(dy, x spmd.Buffer[A], p *linear[A]) {
	if !e.gradCast(p).none() { // which has left the sums
		e.weightGrad(dy, x, p)
		return
	}
	sums := p.db
	if e.acc {
		sums = e.m.sums.Slice(0, p.out) // a product replaces them
	}
	gemm(e, p.dw, p.out, p.in, dy, e.n, p.out, x, e.n, p.in, blas.Options{TransA: true, Accumulate: e.acc, RowSums: sums.Arg()})
	if e.acc {
		e.addTo(p.db, sums)
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
func gemm[A Act, C, T blas.Elem](e *enqueue[A], c spmd.Buffer[C], cr, cc int, a spmd.Buffer[T], ar, ac int, b spmd.Buffer[T], br, bc int, o blas.Options) {
	if e.err == nil {
		e.err = blas.Gemm(e.s, blas.MatrixOf(c, cr, cc), blas.MatrixOf(a, ar, ac), blas.MatrixOf(b, br, bc), o)
	}
}

// attention is what computes that of the micro-batch.
func (e *enqueue[A]) attention() (a *attention.Attention[A]) {
	if e.err == nil {
		a, e.err = e.m.att.For(e.b, e.t)
	}
	return a
}

// attentionForward enqueues the causal attention of qkv(b,t,3,nh,hs) into
// out(b,t,nh,hs), keeping the logarithms of the softmax's denominators, lse(b,nh,t).
func (e *enqueue[A]) attentionForward(out spmd.Buffer[A], lse spmd.Buffer[float32], qkv spmd.Buffer[A]) {
	if a := e.attention(); e.err == nil {
		e.err = a.Forward(e.s, out, lse, qkv)
	}
}

// attentionBackward enqueues dqkv from dout and what attentionForward kept.
func (e *enqueue[A]) attentionBackward(dqkv, dout, out spmd.Buffer[A], lse spmd.Buffer[float32], qkv spmd.Buffer[A]) {
	if a := e.attention(); e.err == nil {
		e.err = a.Backward(e.s, dqkv, dout, out, lse, qkv)
	}
}
