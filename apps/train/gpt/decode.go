package gpt

import (
	"errors"
	"fmt"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
	"lockstep/spmd/blas"
)

// The forward pass of a growing sequence keeps each token's keys and values, so that the next token
// costs one row and not the whole sequence again. The residual stream and the results of products
// are float32. Their inputs have the type of the activations, as in training.

// decodeRows is the largest number of tokens that go through the model at once.
const decodeRows = 256

// Decoder is a model that continues one sequence, see text.Decoder.
type Decoder interface {
	Next(tokens []int32) ([]float32, error)
	Len() int
	Reset()
	Close() error
}

// decoding is the decoder for activations of type A.
type decoding[A ops.Act] struct {
	growing
	cfg   layout.Config
	seq   int // T: most tokens
	par   *Weights[A]
	seen  bool        // a single token went through: what it needs is loaded
	graph *spmd.Graph // of a single token

	keys, values spmd.Buffer[A]       // (L,NH,T,HS)
	place        spmd.Buffer[int32]   // (1): tokens before these
	x, tmp       spmd.Buffer[float32] // (N,C): the residual stream; what is added to it
	qkv          spmd.Buffer[float32] // (N,3C)
	fc           spmd.Buffer[float32] // (N,4C)
	norm, att    spmd.Buffer[A]       // (N,C)
	gelu         spmd.Buffer[A]       // (N,4C)
	logits       spmd.Buffer[float32] // (Vp)
	given, where spmd.Buffer[int32]   // (N), (1): pinned
}

// NewDecoder returns a decoder of up to seq tokens with the weights of arenas laid out for cfg.
// half has the weights for bfloat16 activations, and is empty for float32. The decoder uses the
// weights where they are, and leaves them when it is closed.
func NewDecoder(s *spmd.Stream, cfg layout.Config, arena spmd.Buffer[float32], half spmd.Buffer[spmd.BF16],
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
	d := &decoding[A]{growing: growing{s: s, space: layout.Space{W: s.World()}}, cfg: cfg, seq: seq}
	params, groups, _ := layout.Of(cfg)
	there := layout.GroupsOf(groups, arena)
	// There are no gradients. Their places are not looked at.
	d.par = Bind(cfg, params, groups,
		Places[A]{Weights: there, Grads: there, Mats: layout.GroupsOf(groups, mats)})
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
	pin(&d.space, N, &d.given)
	pin(&d.space, 1, &d.where)
	pin(&d.space, cfg.Vocab, &d.out)
	if d.space.Err != nil {
		return nil, errors.Join(d.space.Err, d.Close())
	}
	return d, nil
}

func (d *decoding[A]) Close() (err error) {
	if d.graph != nil {
		err = d.graph.Close()
	}
	d.graph = nil
	return errors.Join(err, d.growing.Close())
}

func (d *decoding[A]) Next(tokens []int32) ([]float32, error) {
	if len(tokens) == 0 || len(tokens) > d.seq-d.count {
		return nil, fmt.Errorf("%d tokens after %d, of at most %d", len(tokens), d.count, d.seq)
	}
	for len(tokens) > 0 {
		n := min(len(tokens), d.tokens.Len())
		want := cacheOnly
		if n == len(tokens) {
			want = nextLogits
		}
		if err := d.step(tokens[:n], want); err != nil {
			return nil, err
		}
		tokens = tokens[n:]
	}
	return d.out.Host(), nil
}

// wanted is what a pass of some tokens leaves, beside their keys and values.
type wanted bool

const (
	cacheOnly  wanted = false
	nextLogits wanted = true // those behind the last token
)

// step runs some tokens through the model. It blocks.
func (d *decoding[A]) step(tokens []int32, want wanted) error {
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
	if err := d.pass(n, want); err != nil {
		return err
	}
	if want == nextLogits {
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
func (d *decoding[A]) pass(n int, want wanted) error {
	if n != 1 || want == cacheOnly {
		return d.commands(n, want)
	}
	if !d.seen {
		d.seen = true
		return d.commands(1, nextLogits)
	}
	if d.graph == nil {
		var err error
		if d.graph, err = d.s.Capture(func() error { return d.commands(1, nextLogits) }); err != nil {
			return err
		}
	}
	return d.graph.Launch(d.s)
}

// commands enqueues the model for n tokens.
func (d *decoding[A]) commands(n int, want wanted) error {
	e := &ops.Launcher[A]{S: d.s, Cfg: d.cfg, N: n}
	C, none := d.cfg.Channels, spmd.Buffer[float32]{}
	e.DecodeEmbed(d.x, d.tokens, d.par.WTE.W, d.par.WPE.W, d.place)
	add, bias := none, none // what the residual stream has still to get
	for l := range d.par.Layers {
		p := &d.par.Layers[l]
		at := l * d.seq * C
		cached := ops.Cached[A]{Keys: d.keys.Slice(at, at+d.seq*C), Values: d.values.Slice(at, at+d.seq*C),
			Place: d.place, T: d.seq}
		e.DecodeNorm(d.norm, d.x, add, bias, &p.LN1)
		multiply(e, d.qkv, d.norm, &p.QKV)
		e.DecodeAppend(d.qkv, p.QKV.B, cached)
		e.DecodeAttend(d.att, d.qkv, cached)
		multiply(e, d.tmp, d.att, &p.Proj)
		e.DecodeNorm(d.norm, d.x, d.tmp, p.Proj.B, &p.LN2)
		multiply(e, d.fc, d.norm, &p.FC)
		e.DecodeGELU(d.gelu, d.fc, p.FC.B)
		multiply(e, d.tmp, d.gelu, &p.Proj2)
		add, bias = d.tmp, p.Proj2.B
	}
	if want == nextLogits {
		Vp := d.cfg.PaddedVocab()
		e.DecodeNorm(d.norm, d.x, add, bias, &d.par.LNF)
		gemm(e, d.logits, 1, Vp, d.norm.Slice((n-1)*C, n*C), 1, C, d.par.Head.W, Vp, C, blas.Options{TransB: true})
	}
	return e.Err
}

// multiply enqueues y(n,out) = x(n,in)·wᵀ, in float32.
func multiply[A ops.Act](e *ops.Launcher[A], y spmd.Buffer[float32], x spmd.Buffer[A], p *Linear[A]) {
	gemm(e, y, e.N, p.Out, x, e.N, p.In, p.W, p.Out, p.In, blas.Options{TransB: true})
}
