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
	Group int    // of the groups, the one that it is in
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
// an arena in elements. Where ranks share a part of the training state, sharded.go says
// which parameters make a group.
func layout(cfg Config) (params []Param, groups []Group, n int) {
	C := cfg.Channels
	add := func(name string, shape ...int) {
		p := Param{Name: name, Len: shape[0], Shape: shape, Decay: len(shape) == 2}
		if len(shape) == 2 {
			p.Len *= shape[1]
		}
		params = append(params, p)
	}
	first := 0
	group := func(name string) {
		for i := range params[first:] {
			params[first+i].Group = len(groups)
		}
		groups, first = append(groups, Group{Name: name}), len(params)
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
	if cfg.Shard.Mode != shardOff {
		groups = regroup(params, groups)
	}
	lens := make([]int, len(groups)) // so far
	for i := range params {
		p := &params[i]
		p.Off = lens[p.Group] // from the beginning of the group
		lens[p.Group] += (p.Len + arenaAlign - 1) / arenaAlign * arenaAlign
	}
	part := cfg.partition(lens)
	for i := range groups {
		lo, hi := part.Bucket(i)
		groups[i].Off, groups[i].Len = lo, hi-lo
	}
	for i := range params {
		params[i].Off += groups[params[i].Group].Off
	}
	return params, groups, part.Len()
}

// State is the weights of a model and their gradients, on the rank's device: what
// is float32 whatever the type of the activations.
type State struct {
	Cfg     Config
	Params  []Param                // in backward order
	Groups  []Group                // each contiguous; without --shard what ready of ForwardBackward counts
	Weights spmd.Buffer[float32]   // all parameters; Params says what is where, the rest is zero
	Grads   spmd.Buffer[float32]   // their gradients, in the same places
	grads   []spmd.Buffer[float32] // of each of Groups, as passes leave them
	sharded sharded                // what there is where the ranks share a part of these
	around  hooks                  // what passes call; none without --shard
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
	return groupsOf(m.Groups, m.Grads)
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
	most := 0
	for _, p := range m.Params {
		most = max(most, p.Len)
	}
	all := make([]float32, most) // one for all tensors: what they leave would count as memory of the run
	for _, p := range m.Params {
		x := all[:p.Len]
		clear(x)
		initParam(x, p, m.Cfg, seed)
		if err := m.set(p, x); err != nil {
			return err
		}
	}
	return nil
}

// set writes the first len(x) elements of a parameter, those that this rank has. It blocks.
func (m *State) set(p Param, x []float32) error {
	if m.Cfg.Shard.Mode != shardParameters {
		return m.Weights.Slice(p.Off, p.Off+len(x)).CopyFrom(x)
	}
	skip, at, n := m.sharded.Own(p.Group, p.Off, p.Off+len(x))
	return m.sharded.weights.Slice(at, at+n).CopyFrom(x[skip : skip+n])
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

// groupsOf returns the memory of each group in an arena.
func groupsOf[T spmd.Elem](groups []Group, arena spmd.Buffer[T]) []spmd.Buffer[T] {
	bs := make([]spmd.Buffer[T], len(groups))
	for i, g := range groups {
		bs[i] = arena.Slice(g.Off, g.Off+g.Len)
	}
	return bs
}

// places is where the parameters of each of a model's groups are, their gradients, and the
// operands of products. Groups may take turns in one place; without weights is a group of
// which products alone read.
type places[A Act] struct {
	weights, grads []spmd.Buffer[float32]
	mats           []spmd.Buffer[A]
}

// bind finds the parameters in their groups.
func bind[A Act](cfg Config, params []Param, groups []Group, at places[A]) *weights[A] {
	byName := map[string]Param{}
	for _, p := range params {
		byName[p.Name] = p
	}
	get := func(name string) (w, dw spmd.Buffer[float32]) {
		p := byName[name]
		return inGroup(groups, at.weights, p), inGroup(groups, at.grads, p)
	}
	normOf := func(name string) (n norm) {
		n.w, n.dw = get(name + ".weight")
		n.b, n.db = get(name + ".bias")
		return n
	}
	matrix := func(name string) linear[A] {
		p := byName[name+".weight"]
		l := linear[A]{out: p.Shape[0], in: p.Shape[1], w: inGroup(groups, at.mats, p)}
		_, l.dw = get(name + ".weight")
		return l
	}
	linearOf := func(name string) linear[A] {
		l := matrix(name)
		p := byName[name+".bias"]
		l.b, l.db = get(name + ".bias")
		l.bias = inGroup(groups, at.mats, p)
		return l
	}
	w := &weights[A]{lnf: normOf("ln_f"), head: matrix("wte")}
	w.wte.w, w.wte.dw = get("wte.weight")
	w.wpe.w, w.wpe.dw = get("wpe.weight")
	for l := range cfg.Layers {
		h := fmt.Sprintf("h.%d.", l)
		w.layers = append(w.layers, layerWeights[A]{
			ln1: normOf(h + "ln_1"), qkv: linearOf(h + "attn.c_attn"), proj: linearOf(h + "attn.c_proj"),
			ln2: normOf(h + "ln_2"), fc: linearOf(h + "mlp.c_fc"), proj2: linearOf(h + "mlp.c_proj"),
		})
	}
	return w
}

// inGroup returns the memory of a parameter, by that of its group; none where there is none.
func inGroup[T spmd.Elem](groups []Group, mem []spmd.Buffer[T], p Param) spmd.Buffer[T] {
	if mem[p.Group].Len() == 0 {
		return spmd.Buffer[T]{}
	}
	lo := p.Off - groups[p.Group].Off
	return mem[p.Group].Slice(lo, lo+p.Len)
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
