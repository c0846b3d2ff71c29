package main

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strings"
	"unsafe"

	"lockstep/host"
	"lockstep/spmd"
)

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
	fp8     *fp8State              // nil where Cfg.FP8 is off
	half    spmd.Buffer[spmd.BF16] // Weights rounded, for the products of bfloat16 activations and their biases; else empty
	w       *spmd.World            // where the buffers are
	space   space                  // of the buffers
}

// Close frees the buffers, those of the activations too.
func (m *State) Close() error { return m.space.free() }

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
	if err := roundWeights(s, m.half, m.Weights); err != nil || m.fp8 == nil {
		return err
	}
	return m.fp8.castWeights(s, m.half)
}

// Init sets the weights as GPT-2 does: matrices normal with deviation 0.02,
// those that write to the residual stream 0.02/√(2·Layers), biases 0, LayerNorm
// weights 1. They depend on the seed and the tensors' names alone. It returns
// when they are in place; Refresh is to follow.
func (m *State) Init(seed uint64) error {
	for _, p := range m.Params {
		x := make([]float32, p.Len)
		initParam(x, p, m.Cfg, seed)
		if err := m.Weights.Slice(p.Off, p.Off+p.Len).CopyFrom(x); err != nil {
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

// norm is the parameters of a LayerNorm, (C) each, and their gradients.
type norm struct{ w, b, dw, db spmd.Buffer[float32] }

// linear is the parameters of y(n,out) = x(n,in)·wᵀ + b, and their gradients.
type linear[A Act] struct {
	in, out int
	w       spmd.Buffer[A]       // (out,in), as products take it
	dw      spmd.Buffer[float32] // (out,in)
	b, db   spmd.Buffer[float32] // (out); empty for the head, which adds none
	bias    spmd.Buffer[A]       // b, as products add it
	eight   *linear8             // nil where its products are of A
}

// embedding is a table of rows that are looked up, and its gradient.
type embedding struct{ w, dw spmd.Buffer[float32] }

// layerWeights is the parameters of one layer.
type layerWeights[A Act] struct {
	ln1   norm
	qkv   linear[A] // C to 3C
	proj  linear[A] // C to C
	ln2   norm
	fc    linear[A] // C to 4C
	proj2 linear[A] // 4C to C
}

// weights is every parameter of a model by its place in it.
type weights[A Act] struct {
	wte, wpe embedding // (Vp,C), (SeqMax,C)
	layers   []layerWeights[A]
	lnf      norm
	head     linear[A] // C to Vp: the token embedding again
}

// bind finds the parameters in s's arenas. mats is the arena of the products'
// operands, laid out as Weights.
func bind[A Act](s *State, mats spmd.Buffer[A]) *weights[A] {
	byName := map[string]Param{}
	for _, p := range s.Params {
		byName[p.Name] = p
	}
	get := func(name string) (w, dw spmd.Buffer[float32]) {
		p := byName[name]
		return s.Weights.Slice(p.Off, p.Off+p.Len), s.Grads.Slice(p.Off, p.Off+p.Len)
	}
	normOf := func(name string) (n norm) {
		n.w, n.dw = get(name + ".weight")
		n.b, n.db = get(name + ".bias")
		return n
	}
	matrix := func(name string) linear[A] {
		p := byName[name+".weight"]
		l := linear[A]{out: p.Shape[0], in: p.Shape[1], w: mats.Slice(p.Off, p.Off+p.Len)}
		_, l.dw = get(name + ".weight")
		return l
	}
	linearOf := func(name string) linear[A] {
		l := matrix(name)
		p := byName[name+".bias"]
		l.b, l.db = get(name + ".bias")
		l.bias = mats.Slice(p.Off, p.Off+p.Len)
		return l
	}
	w := &weights[A]{lnf: normOf("ln_f"), head: matrix("wte")}
	w.wte.w, w.wte.dw = get("wte.weight")
	w.wpe.w, w.wpe.dw = get("wpe.weight")
	for l := range s.Cfg.Layers {
		h := fmt.Sprintf("h.%d.", l)
		w.layers = append(w.layers, layerWeights[A]{
			ln1: normOf(h + "ln_1"), qkv: linearOf(h + "attn.c_attn"), proj: linearOf(h + "attn.c_proj"),
			ln2: normOf(h + "ln_2"), fc: linearOf(h + "mlp.c_fc"), proj2: linearOf(h + "mlp.c_proj"),
		})
	}
	return w
}

// space takes device memory, or where it has no world only counts it.
type space struct {
	w     *spmd.World
	bytes int // taken or counted
	frees []func() error
	err   error // the first failure, after which nothing is taken
}

// take makes each of bufs n elements long.
func take[T spmd.Stored](sp *space, n int, bufs ...*spmd.Buffer[T]) {
	for _, b := range bufs {
		if sp.err != nil {
			return
		}
		var size T
		sp.bytes += n * int(unsafe.Sizeof(size))
		if sp.w == nil {
			continue
		}
		if *b, sp.err = spmd.Alloc[T](sp.w, n); sp.err == nil {
			sp.frees = append(sp.frees, b.Free)
		}
	}
}

// free gives back what was taken.
func (sp *space) free() error {
	var errs []error
	for _, f := range sp.frees {
		errs = append(errs, f())
	}
	sp.frees = nil
	return errors.Join(errs...)
}
