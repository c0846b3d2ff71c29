package decode

import (
	_ "embed"
	"errors"
	"fmt"
	"math"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/host"
	"lockstep/spmd"
	"lockstep/spmd/blas"
)

// The forward pass of a growing sequence keeps each token's keys and values, so that the next token
// costs one row and not the whole sequence again. The residual stream and the results of products
// are float32. Their inputs have the type of the activations, as in training. decode.cu runs on a
// GPU, decode.c on the host.

//go:embed decode.cu
var decodeSource string

// decodeRows is the largest number of tokens that go through the model at once.
const decodeRows = 256

// Decoder is a model that continues one sequence.
type Decoder interface {
	// Next appends tokens, which must fit, and returns the logits of the next token. They stay
	// until the next call. It blocks.
	Next(tokens []int32) ([]float32, error)
	// Len returns the number of tokens.
	Len() int
	// Reset removes all tokens.
	Reset()
	Close() error
}

// decoding is the decoder for activations of type A.
type decoding[A ops.Act] struct {
	cfg   layout.Config
	seq   int // T: most tokens
	count int // of the tokens so far
	s     *spmd.Stream
	par   *gpt.Weights[A]
	space layout.Space
	seen  bool        // a single token went through: what it needs is loaded
	graph *spmd.Graph // of a single token

	keys, values spmd.Buffer[A]       // (L,NH,T,HS)
	tokens       spmd.Buffer[int32]   // (N)
	place        spmd.Buffer[int32]   // (1): tokens before these
	x, tmp       spmd.Buffer[float32] // (N,C): the residual stream; what is added to it
	qkv          spmd.Buffer[float32] // (N,3C)
	fc           spmd.Buffer[float32] // (N,4C)
	norm, att    spmd.Buffer[A]       // (N,C)
	gelu         spmd.Buffer[A]       // (N,4C)
	logits       spmd.Buffer[float32] // (Vp)
	given, where spmd.Buffer[int32]   // (N), (1): pinned
	out          spmd.Buffer[float32] // (V): pinned
	frees        []func() error       // of pinned memory
}

// New returns a decoder of up to seq tokens with the weights of arenas laid out for cfg. half has
// the weights for bfloat16 activations, and is empty for float32. The decoder uses the weights
// where they are, and leaves them when it is closed.
func New(s *spmd.Stream, cfg layout.Config, arena spmd.Buffer[float32], half spmd.Buffer[spmd.BF16],
	seq int) (Decoder, error) {
	if half.Len() > 0 {
		return openDecoding(s, cfg, arena, half, seq)
	}
	return openDecoding(s, cfg, arena, arena, seq)
}

func openDecoding[A ops.Act](s *spmd.Stream, cfg layout.Config, arena spmd.Buffer[float32], mats spmd.Buffer[A],
	seq int) (Decoder, error) {
	if seq <= 0 || seq > cfg.SeqMax {
		return nil, fmt.Errorf("sequences of %d tokens, the model has %d positions", seq, cfg.SeqMax)
	}
	d := &decoding[A]{cfg: cfg, seq: seq, s: s, space: layout.Space{W: s.World()}}
	params, groups, _ := layout.Of(cfg)
	there := layout.GroupsOf(groups, arena)
	// There are no gradients. Their places are not looked at.
	d.par = gpt.Bind(cfg, params, groups,
		gpt.Places[A]{Weights: there, Grads: there, Mats: layout.GroupsOf(groups, mats)})
	N, C := min(seq, decodeRows), cfg.Channels
	layout.Take(&d.space, cfg.Layers*seq*C, &d.keys, &d.values)
	layout.Take(&d.space, N, &d.tokens)
	layout.Take(&d.space, 1, &d.place)
	layout.Take(&d.space, N*C, &d.x, &d.tmp)
	layout.Take(&d.space, 3*N*C, &d.qkv)
	layout.Take(&d.space, 4*N*C, &d.fc)
	layout.Take(&d.space, N*C, &d.norm, &d.att)
	layout.Take(&d.space, 4*N*C, &d.gelu)
	layout.Take(&d.space, cfg.PaddedVocab(), &d.logits)
	err := d.space.Err
	if err == nil {
		d.given, err = Pin[int32](&d.frees, s.World(), N)
	}
	if err == nil {
		d.where, err = Pin[int32](&d.frees, s.World(), 1)
	}
	if err == nil {
		d.out, err = Pin[float32](&d.frees, s.World(), cfg.Vocab)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Pin allocates pinned memory. Call frees to free it.
func Pin[T spmd.Elem](frees *[]func() error, w *spmd.World, n int) (spmd.Buffer[T], error) {
	b, err := spmd.AllocPinned[T](w, n)
	if err == nil {
		*frees = append(*frees, b.Free)
	}
	return b, err
}

func (d *decoding[A]) Close() error {
	var errs []error
	if d.graph != nil {
		errs = append(errs, d.graph.Close())
	}
	for _, f := range d.frees {
		errs = append(errs, f())
	}
	d.graph, d.frees = nil, nil
	return errors.Join(append(errs, d.space.Free())...)
}

func (d *decoding[A]) Len() int { return d.count }

func (d *decoding[A]) Reset() { d.count = 0 }

func (d *decoding[A]) Next(tokens []int32) ([]float32, error) {
	if len(tokens) == 0 || len(tokens) > d.seq-d.count {
		return nil, fmt.Errorf("%d tokens after %d, of at most %d", len(tokens), d.count, d.seq)
	}
	for len(tokens) > 0 {
		n := min(len(tokens), d.tokens.Len())
		last := n == len(tokens)
		if err := d.step(tokens[:n], last); err != nil {
			return nil, err
		}
		tokens = tokens[n:]
	}
	return d.out.Host(), nil
}

// step runs some tokens through the model, and through the head if last is set. It blocks.
func (d *decoding[A]) step(tokens []int32, last bool) error {
	n := len(tokens)
	if err := ops.CheckTokens(tokens, d.cfg.Vocab); err != nil {
		return err
	}
	copy(d.given.Host(), tokens)
	d.where.Host()[0] = int32(d.count)
	if err := spmd.Copy(d.s, d.tokens.Slice(0, n), d.given.Slice(0, n)); err != nil {
		return err
	}
	if err := spmd.Copy(d.s, d.place, d.where); err != nil {
		return err
	}
	if err := d.pass(n, last); err != nil {
		return err
	}
	if last {
		if err := spmd.Copy(d.s, d.out, d.logits.Slice(0, d.cfg.Vocab)); err != nil {
			return err
		}
	}
	if err := d.s.Synchronize(); err != nil {
		return err
	}
	d.count += n
	return nil
}

// pass enqueues the pass of n tokens. From the third time on a single token is a graph, since its
// commands are many and short.
func (d *decoding[A]) pass(n int, last bool) error {
	if n != 1 || !last {
		return d.commands(n, last)
	}
	if !d.seen {
		d.seen = true
		return d.commands(1, true)
	}
	if d.graph == nil {
		var err error
		if d.graph, err = d.s.Capture(func() error { return d.commands(1, true) }); err != nil {
			return err
		}
	}
	return d.graph.Launch(d.s)
}

// commands enqueues the model for n tokens, and the logits after the last one if last is set.
func (d *decoding[A]) commands(n int, last bool) error {
	e := &decodePass[A]{d: d, n: n}
	C, none := d.cfg.Channels, spmd.Buffer[float32]{}
	e.embed()
	add, bias := none, none // what the residual stream has still to get
	for l := range d.par.Layers {
		p := &d.par.Layers[l]
		at := l * d.seq * C
		keys, values := d.keys.Slice(at, at+d.seq*C), d.values.Slice(at, at+d.seq*C)
		e.normalize(add, bias, p.LN1.W, p.LN1.B)
		e.product(d.qkv, d.norm, &p.QKV)
		e.append(keys, values, p.QKV.B)
		e.attend(keys, values)
		e.product(d.tmp, d.att, &p.Proj)
		e.normalize(d.tmp, p.Proj.B, p.LN2.W, p.LN2.B)
		e.product(d.fc, d.norm, &p.FC)
		e.activate(p.FC.B)
		e.product(d.tmp, d.gelu, &p.Proj2)
		add, bias = d.tmp, p.Proj2.B
	}
	if !last {
		return e.err
	}
	e.normalize(add, bias, d.par.LNF.W, d.par.LNF.B)
	if e.err == nil {
		Vp := d.cfg.PaddedVocab()
		e.err = blas.Gemm(d.s, blas.MatrixOf(d.logits, 1, Vp), blas.MatrixOf(d.norm.Slice((n-1)*C, n*C), 1, C),
			blas.MatrixOf(d.par.Head.W, Vp, C), blas.Options{TransB: true})
	}
	return e.err
}

// decodePass enqueues one pass. After the first error it enqueues nothing more.
type decodePass[A ops.Act] struct {
	d   *decoding[A]
	n   int // tokens
	err error
}

func (e *decodePass[A]) launch(k ops.Kernel, g spmd.Grid, args ...spmd.Arg) {
	if e.err != nil {
		return
	}
	one := k.F32
	if ops.IsHalf[A]() {
		one = k.BF16
	}
	e.err = one.Launch(e.d.s, g, args...)
}

// product enqueues y(n,out) = x(n,in)·wᵀ.
func (e *decodePass[A]) product(y spmd.Buffer[float32], x spmd.Buffer[A], p *gpt.Linear[A]) {
	if e.err == nil {
		e.err = blas.Gemm(e.d.s, blas.MatrixOf(y, e.n, p.Out), blas.MatrixOf(x, e.n, p.In),
			blas.MatrixOf(p.W, p.Out, p.In), blas.Options{TransB: true})
	}
}

// newKernel declares kernel name of decode.cu for each type of activations. On the host fn computes
// both, and adds in another order.
func newKernel(name string, fn func(a *ops.HostArgs) error) ops.Kernel {
	return ops.Kernel{F32: spmd.NewKernel(name, decodeSource, ops.OnHost(false, fn),
		spmd.KernelOptions{Flags: []string{"-DACT=float"}, Tolerance: 1e-5}),
		BF16: spmd.NewKernel(name, decodeSource, ops.OnHost(true, fn),
			spmd.KernelOptions{Flags: []string{"-DACT=bf16"}, Tolerance: 1e-5})}
}

// embed enqueues x = wte[token] + wpe[position].
func (e *decodePass[A]) embed() {
	d := e.d
	if e.err == nil {
		e.err = launchEmbedElement(d.s, e.n, d.cfg.Channels, d.x, d.tokens, d.par.WTE.W, d.par.WPE.W, d.place,
			d.cfg.Channels)
	}
}

var decodeNormKernel = newKernel("decode_norm", func(a *ops.HostArgs) error {
	n, c := a.I32(6), a.I32(7)
	out, x, y, ybias, weight, bias := a.Out(0, n*c), a.Floats(1), a.Floats(2), a.Floats(3), a.Floats(4), a.Floats(5)
	host.Parallel(n, ops.RowGrain(c), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row, sum, squares := x[i*c:(i+1)*c], 0.0, 0.0
			for j := range row {
				if len(y) > 0 {
					row[j] += y[i*c+j] + ybias[j]
				}
				sum += float64(row[j])
			}
			mean := sum / float64(c)
			for _, v := range row {
				squares += (float64(v) - mean) * (float64(v) - mean)
			}
			scale := 1 / math.Sqrt(squares/float64(c)+layout.NormEpsilon)
			for j, v := range row {
				out[i*c+j] = float32((float64(v)-mean)*scale)*weight[j] + bias[j]
			}
		}
	})
	return nil
})

// normalize enqueues x += add + its bias, if there is anything to add, and norm = the
// LayerNorm of x.
func (e *decodePass[A]) normalize(add, addBias, weight, bias spmd.Buffer[float32]) {
	d := e.d
	e.launch(decodeNormKernel, ops.Blocks(e.n, 1, 1), d.norm.Arg(), d.x.Arg(), add.Arg(), addBias.Arg(),
		weight.Arg(), bias.Arg(), spmd.I32(e.n), spmd.I32(d.cfg.Channels))
}

// append enqueues qkv += bias, and puts the keys and values, (NH,T,HS) each, in their places.
func (e *decodePass[A]) append(keys, values spmd.Buffer[A], bias spmd.Buffer[float32]) {
	if d, c := e.d, e.d.cfg.Channels; e.err == nil {
		e.err = launchAppendElement(d.s, e.n, 3*c, keys, values, d.qkv, bias, d.place, c, c/d.cfg.Heads, d.seq)
	}
}

var decodeAttendKernel = newKernel("decode_attend", func(a *ops.HostArgs) error {
	n, nh, hs, seq := a.I32(5), a.I32(6), a.I32(7), a.I32(8)
	c := nh * hs
	out, qkv, keys, values := a.Out(0, n*c), a.Floats(1), a.In(2, seq*c), a.In(3, seq*c)
	place := int(spmd.ArgSlice[int32](a.Args, 4)[0])
	host.Parallel(n*nh, max(1, 1<<14/((place+n)*hs)), func(lo, hi int) {
		cDecodeAttend(out, make([]float32, place+n), qkv, keys, values, place, nh, hs, seq, lo, hi)
	})
	return nil
})

// attend enqueues att = the attention of the queries in qkv to the keys up to their own.
func (e *decodePass[A]) attend(keys, values spmd.Buffer[A]) {
	d := e.d
	nh, hs := d.cfg.Heads, d.cfg.Channels/d.cfg.Heads
	e.launch(decodeAttendKernel, ops.Blocks(e.n*nh, (hs+255)/256, 1), d.att.Arg(), d.qkv.Arg(), keys.Arg(),
		values.Arg(), d.place.Arg(), spmd.I32(e.n), spmd.I32(nh), spmd.I32(hs), spmd.I32(d.seq))
}

// activate enqueues gelu = GELU(fc + bias).
func (e *decodePass[A]) activate(bias spmd.Buffer[float32]) {
	d := e.d
	if c := 4 * d.cfg.Channels; e.err == nil {
		e.err = launchGeluElement(d.s, e.n, c, d.gelu, d.fc, bias, c)
	}
}
