package layout

import (
	"fmt"
	"math"
	"strings"

	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
)

// Param is one tensor of the model: elements [Off, Off+Len) of each arena.
type Param struct {
	Name  string // GPT-2's name, such as h.0.attn.c_attn.weight
	Group int    // of the groups, the one that it is in
	Off   int    // elements; a multiple of ArenaAlign
	Len   int    // elements
	Shape []int  // row-major; a weight is (outputs, inputs)
	Decay bool   // whether weight decay applies: matrices only
	Init  Init   // with what it begins

	Cut   checkpoint.Cut // its place in the whole tensor, if this rank has a part of it
	Whole []int          // the shape of the whole tensor
}

// Init is how a tensor begins: normal with a Deviation, Uniform, Fill again and again, or 0.
type Init struct {
	Deviation float64
	Uniform   bool
	Fill      []float32
}

func root(n int) float64 { return 1 / math.Sqrt(float64(n)) }

// Group is a contiguous range of the arenas whose gradients become complete together. The groups
// follow each other without gaps, in backward order.
type Group struct {
	Name     string
	Off, Len int // elements
}

// ArenaAlign is the alignment of a tensor in an arena, in float32 elements. It is 256 bytes, as the
// fastest matrix products ask for.
const ArenaAlign = 64

// Of lists the parameters in backward order, the groups, and the length of an arena in elements.
//
// If ranks share a part of the training state, sharding.go says which parameters make a group. A
// stage of a pipeline has some of the parameters. Its groups are the same, some of them empty.
func Of(cfg Config) (params []Param, groups []Group, n int) {
	C := cfg.Channels
	whole := func(name string, shape ...int) Param {
		p := Param{Name: name, Len: shape[0], Shape: shape, Decay: len(shape) == 2, Whole: shape}
		switch {
		case len(shape) == 2:
			p.Len *= shape[1]
			p.Init.Deviation = 0.02
			if strings.HasSuffix(name, "c_proj.weight") { // it writes to the residual stream
				p.Init.Deviation /= math.Sqrt(2 * float64(cfg.Layers))
			}
		case strings.HasSuffix(name, ".weight"): // a LayerNorm
			p.Init.Fill = []float32{1}
		}
		return p
	}
	add := func(name string, shape ...int) { params = append(params, whole(name, shape...)) }
	rows := func(matrices int, name string, shape ...int) {
		params = append(params, cfg.Tensor.rows(whole(name, shape...), matrices))
	}
	columns := func(name string, shape ...int) { params = append(params, cfg.Tensor.columns(whole(name, shape...))) }
	first := 0
	group := func(name string) {
		for i := range params[first:] {
			params[first+i].Group = len(groups)
		}
		groups, first = append(groups, Group{Name: name}), len(params)
	}
	if cfg.Parts != 0 {
		cfg.modernParams(func(p Param) {
			p.Whole = p.Shape
			params = append(params, p)
		}, group)
		return cfg.shareOut(params, groups)
	}
	if cfg.Ends() {
		add("ln_f.weight", C)
		add("ln_f.bias", C)
	}
	group("ln_f")
	from, to := cfg.Own()
	for l := to - 1; l >= from; l-- {
		h := fmt.Sprintf("h.%d.", l)
		add(h+"mlp.c_proj.bias", C)
		columns(h+"mlp.c_proj.weight", C, 4*C)
		rows(1, h+"mlp.c_fc.bias", 4*C)
		rows(1, h+"mlp.c_fc.weight", 4*C, C)
		add(h+"ln_2.weight", C)
		add(h+"ln_2.bias", C)
		group(h + "mlp")
		add(h+"attn.c_proj.bias", C)
		columns(h+"attn.c_proj.weight", C, C)
		rows(3, h+"attn.c_attn.bias", 3*C)
		rows(3, h+"attn.c_attn.weight", 3*C, C)
		add(h+"ln_1.weight", C)
		add(h+"ln_1.bias", C)
		group(h + "attn")
	}
	// The token embedding is also the head, so its gradient is complete when the embeddings' is.
	if cfg.Embeds() {
		add("wpe.weight", cfg.SeqMax, C)
		params = append(params, cfg.vocabulary(whole("wte.weight", cfg.PaddedVocab(), C)))
	}
	group("embeddings")
	return cfg.shareOut(params, groups)
}

// shareOut makes sections into the groups that ranks share, if they do. It gives each parameter and
// each group its place in an arena of n elements.
func (cfg Config) shareOut(params []Param, groups []Group) ([]Param, []Group, int) {
	if cfg.Shard.Mode != ShardOff {
		groups = regroup(params, groups)
	}
	lens := make([]int, len(groups)) // so far
	for i := range params {
		p := &params[i]
		p.Off = lens[p.Group] // from the beginning of the group
		lens[p.Group] += (p.Len + ArenaAlign - 1) / ArenaAlign * ArenaAlign
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

// GroupsOf returns the memory of each group in an arena.
func GroupsOf[T spmd.Elem](groups []Group, arena spmd.Buffer[T]) []spmd.Buffer[T] {
	bs := make([]spmd.Buffer[T], len(groups))
	for i, g := range groups {
		bs[i] = arena.Slice(g.Off, g.Off+g.Len)
	}
	return bs
}

// InGroup returns the memory of a parameter inside its group's memory, or none.
func InGroup[T spmd.Elem](groups []Group, mem []spmd.Buffer[T], p Param) spmd.Buffer[T] {
	if mem[p.Group].Len() == 0 {
		return spmd.Buffer[T]{}
	}
	lo := p.Off - groups[p.Group].Off
	return mem[p.Group].Slice(lo, lo+p.Len)
}
