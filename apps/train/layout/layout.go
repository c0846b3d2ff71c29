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

	inVocab bool
}

// InVocab reports whether the rows of a parameter are tokens, so that those beyond the vocabulary
// are padding.
func (p Param) InVocab() bool { return p.inVocab }

// Init is how a tensor begins: normal with a Deviation, Uniform, Fill again and again, or 0.
type Init struct {
	Deviation float64
	Uniform   bool
	Fill      []float32
}

// Group is a contiguous range of the arenas whose gradients become complete together. The groups
// follow each other without gaps, in backward order.
type Group struct{ Off, Len int } // elements

// ArenaAlign is the alignment of a tensor in an arena, in float32 elements. It is 256 bytes, as the
// fastest matrix products ask for.
const ArenaAlign = 64

// tensor is a row of the tables of tensors.
type tensor struct {
	name          string                         // behind its layer's
	rows, columns size                           // columns is 0 for a vector
	cut           int                            // ranks divide the rows of so many matrices; below 0 the columns
	of            func(c Config, layer int) bool // what has it; nil: all
	fill          []float32                      // with what a vector begins; nil: 0
}

// size is a number of rows or columns: so many times Channels, or one of these.
type size int

const (
	positions  size = -1 - iota // SeqMax
	vocabulary                  // PaddedVocab; ranks divide it in its own way
	numbers                     // as many as fill has
)

func biased(c Config, _ int) bool  { return !c.Has(RMSNorms) }
func ownHead(c Config, _ int) bool { return c.Has(RMSNorms) }
func placed(c Config, _ int) bool  { return !c.Has(Rotary) }
func mixes(c Config, l int) bool   { return c.ValueTable(l) >= 0 }
func skips(c Config, l int) bool   { return c.SkipFrom(l) >= 0 }
func table(i int) func(Config, int) bool {
	return func(c Config, _ int) bool { return i < c.Tables() }
}

// These are the tensors of all decoders in backward order: those of the head, of each layer's MLP
// and attention, and of the embeddings. The token embedding may also be the head, so its gradient
// is complete when the embeddings' is.
var (
	headTensors = []tensor{
		{"ln_f.weight", 1, 0, 0, biased, []float32{1}}, {"ln_f.bias", 1, 0, 0, biased, nil},
		{"head.weight", vocabulary, 1, 0, ownHead, nil},
	}
	mlpTensors = []tensor{
		{"mlp.c_proj.bias", 1, 0, 0, biased, nil}, {"mlp.c_proj.weight", 1, 4, -1, nil, nil},
		{"mlp.c_fc.bias", 4, 0, 1, biased, nil}, {"mlp.c_fc.weight", 4, 1, 1, nil, nil},
		{"ln_2.weight", 1, 0, 0, biased, []float32{1}}, {"ln_2.bias", 1, 0, 0, biased, nil},
	}
	attnTensors = []tensor{
		{"attn.c_proj.bias", 1, 0, 0, biased, nil}, {"attn.c_proj.weight", 1, 1, -1, nil, nil},
		{"attn.c_attn.bias", 3, 0, 3, biased, nil}, {"attn.c_attn.weight", 3, 1, 3, nil, nil},
		{"ln_1.weight", 1, 0, 0, biased, []float32{1}}, {"ln_1.bias", 1, 0, 0, biased, nil},
		{"attn.values", numbers, 0, 0, mixes, []float32{0.5, 0.5}}, {"skip", numbers, 0, 0, skips, []float32{1}},
	}
	embeddingTensors = []tensor{
		{"values.0.weight", vocabulary, 1, 0, table(0), nil}, {"values.1.weight", vocabulary, 1, 0, table(1), nil},
		{"values.2.weight", vocabulary, 1, 0, table(2), nil}, {"wpe.weight", positions, 1, 0, placed, nil},
		{"wte.weight", vocabulary, 1, 0, nil, nil},
	}
)

// Of lists the parameters in backward order, the groups, and the length of an arena in elements.
//
// If ranks share a part of the training state, sharding.go says which parameters make a group. A
// stage of a pipeline has some of the parameters. Its groups are the same, some of them empty.
func Of(cfg Config) (params []Param, groups []Group, n int) {
	params, sections := cfg.tensors()
	return cfg.shareOut(params, make([]Group, sections))
}

// tensors lists the parameters, and returns the number of sections that they are of.
func (c Config) tensors() (params []Param, sections int) {
	section := func(has bool, layer int, prefix string, rows []tensor) {
		for _, t := range rows {
			if has && (t.of == nil || t.of(c, layer)) {
				p := c.param(prefix, t)
				p.Group = sections
				params = append(params, p)
			}
		}
		sections++
	}
	section(c.Ends(), 0, "", headTensors)
	from, to := c.Own()
	for l := to - 1; l >= from; l-- {
		h := fmt.Sprintf("h.%d.", l)
		section(true, l, h, mlpTensors)
		section(true, l, h, attnTensors)
	}
	section(c.Embeds(), 0, "", embeddingTensors)
	return params, sections
}

// param returns this rank's part of a tensor.
func (c Config) param(prefix string, t tensor) Param {
	length := func(n size) int {
		switch n {
		case positions:
			return c.SeqMax
		case vocabulary:
			return c.PaddedVocab()
		case numbers:
			return len(t.fill)
		}
		return int(n) * c.Channels
	}
	rows, columns := length(t.rows), length(t.columns)
	p := Param{Name: prefix + t.name, Len: rows, Shape: []int{rows}, Init: Init{Fill: t.fill},
		Decay: columns > 0, inVocab: t.rows == vocabulary}
	if p.Decay {
		p.Len, p.Shape = rows*columns, []int{rows, columns}
		switch {
		case c.Has(RMSNorms) && p.inVocab && p.Name != c.HeadName(): // it is normed, or mixed into what is
			p.Init.Deviation = 1
		case c.Has(RMSNorms):
			p.Init = Init{Deviation: 0.5 / math.Sqrt(float64(columns)), Uniform: true}
		case strings.HasSuffix(t.name, "c_proj.weight"): // it writes to the residual stream
			p.Init.Deviation = 0.02 / math.Sqrt(2*float64(c.Layers))
		default:
			p.Init.Deviation = 0.02
		}
	}
	p.Whole = p.Shape
	switch {
	case p.inVocab:
		return c.vocabulary(p)
	case t.cut < 0:
		return c.Tensor.cut(p, 1, rows)
	case t.cut > 0:
		return c.Tensor.cut(p, 0, t.cut)
	}
	return p
}

// shareOut makes sections into the groups that ranks share, if they do. It gives each parameter and
// each group its place in an arena of n elements.
func (cfg Config) shareOut(params []Param, groups []Group) ([]Param, []Group, int) {
	if cfg.Shard.Mode != ShardOff {
		regroup(params, groups)
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
