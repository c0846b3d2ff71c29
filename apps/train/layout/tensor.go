package layout

import (
	"fmt"
	"strings"

	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
)

// Tensor says which heads of each attention, and which channels inside each MLP, a rank has, if
// ranks divide them (--tp): the Rank-th of Ranks equal parts. The zero value is all of them.
//
// In the first product of an attention and of an MLP the rank has rows of the weight, so that the
// output is its part. In the second product it has the columns for this part, and the sum over the
// ranks is the result.
//
// It has the rows of some tokens in the token embedding, which is also the head. Every rank has all
// else, and computes the same with it.
type Tensor struct{ Rank, Ranks int }

// Parts returns into how many parts the ranks divide each layer.
func (x Tensor) Parts() int { return max(1, x.Ranks) }

// OwnHeads returns how many heads of an attention this rank has.
func (cfg Config) OwnHeads() int { return cfg.Heads / cfg.Tensor.Parts() }

// OwnChannels returns how many channels these have. An MLP has four times as many inside.
func (cfg Config) OwnChannels() int { return cfg.Channels / cfg.Tensor.Parts() }

// vocabUnit returns the unit of a division of the token embedding's rows. A row of logits is then
// whole pieces of 16 bytes, for kernels and for its copy in 8-bit floats.
func (cfg Config) vocabUnit() int {
	if cfg.FP8 != FP8Off {
		return 16
	}
	return 8
}

// OwnVocab returns which rows of the padded token embedding this rank has, and how many of them are
// tokens. The parts are as equal as possible, the first ones the largest.
func (cfg Config) OwnVocab() (first, rows, tokens int) {
	x := cfg.Tensor
	unit := cfg.vocabUnit()
	units := spmd.ShardOf(cfg.PaddedVocab()/unit, x.Rank, x.Parts())
	first, rows = units.Off*unit, units.Len*unit
	return first, rows, min(max(0, cfg.Vocab-first), rows)
}

// CheckTensor refuses a number of parts that does not divide the heads, and names those that do. It
// also refuses one that leaves a rank without a row of the token embedding.
func (cfg Config) CheckTensor() error {
	if most := cfg.PaddedVocab() / cfg.vocabUnit(); cfg.Vocab > 0 && cfg.Tensor.Parts() > most {
		return fmt.Errorf("--tp %d: a vocabulary of %d tokens divides into %d parts at most",
			cfg.Tensor.Ranks, cfg.Vocab, most)
	}
	if cfg.Heads%cfg.Tensor.Parts() == 0 {
		return nil
	}
	var good []string
	for n := 1; n <= cfg.Heads; n++ {
		if cfg.Heads%n == 0 {
			good = append(good, fmt.Sprint(n))
		}
	}
	return fmt.Errorf("--tp %d does not divide the %d heads: %s do",
		cfg.Tensor.Ranks, cfg.Heads, strings.Join(good, ", "))
}

// cut leaves p this rank's part of its dimension dim: one run in each of so many equal pieces of
// its elements.
func (x Tensor) cut(p Param, dim, pieces int) Param {
	if x.Parts() == 1 {
		return p
	}
	stride := p.Len / pieces
	run := stride / x.Ranks
	p.Shape = append([]int(nil), p.Shape...)
	p.Shape[dim] /= x.Ranks
	p.Len /= x.Ranks
	p.Cut = checkpoint.Cut{First: x.Rank * run, Run: run, Stride: stride}
	return p
}

// vocabulary leaves p, the token embedding, this rank's rows.
func (cfg Config) vocabulary(p Param) Param {
	if cfg.Tensor.Parts() == 1 {
		return p
	}
	first, rows, _ := cfg.OwnVocab()
	width, whole := p.Shape[1], p.Len
	p.Shape, p.Len = []int{rows, width}, rows*width
	p.Cut = checkpoint.Cut{First: first * width, Run: p.Len, Stride: whole}
	return p
}

// Own copies this rank's part of a tensor into own, and returns it. x has all elements, or lacks
// zeros at the end. If the rank has all it returns x itself.
func (p Param) Own(own, x []float32) []float32 {
	c := p.Cut
	if c.Run == 0 {
		return x
	}
	own = own[:0]
	for at := c.First; at < len(x) && len(own) < p.Len; at += c.Stride {
		own = append(own, x[at:min(at+c.Run, len(x))]...)
	}
	return own
}

// Uncut returns the whole tensor; p may be a part of it.
func (p Param) Uncut() Param {
	p.Shape, p.Cut, p.Len = p.Whole, checkpoint.Cut{}, 1
	for _, n := range p.Shape {
		p.Len *= n
	}
	return p
}
