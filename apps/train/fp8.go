package main

import (
	"errors"
	"fmt"
	"math"

	"lockstep/spmd"
	"lockstep/spmd/blas"
)

// Products of 8-bit floats (e4m3): those forward and for the gradients of inputs, while
// the gradients of weights stay bfloat16. Each operand is cast where it comes to be, by
// a power of two that the largest value of the step before brings below 256: what grows
// by less than 1.75 from step to step fits. Weights are cast at the end of a step, by
// their own largest value. The scales lie in device memory, so that graphs replay.

// fp8Level says which products are of 8-bit floats.
type fp8Level int

const (
	fp8Off  fp8Level = iota
	fp8Head          // the head's
	fp8All           // those of the layers, too
)

var fp8Names = [...]string{"off", "head", "all"}

func (l fp8Level) String() string { return fp8Names[l] }

// parseFP8 is the level of a name.
func parseFP8(name string) (fp8Level, error) {
	for l, n := range fp8Names {
		if n == name {
			return fp8Level(l), nil
		}
	}
	return 0, fmt.Errorf("--fp8 %s: unknown, want off, head or all", name)
}

// checkFP8 refuses what has no products of 8-bit floats: asked is where they were asked for.
func checkFP8(w *spmd.World, level fp8Level, dtype, asked string) error {
	switch {
	case level == fp8Off:
		return nil
	case w.OnHost():
		return spmd.Usage(fmt.Errorf("%s needs a GPU of compute capability 8.9 or above, and this is the host", asked))
	case dtype != "bfloat16":
		return spmd.Usage(fmt.Errorf("%s needs --dtype bfloat16, and this is %s", asked, dtype))
	case !blas.SupportsF8(w):
		return spmd.Usage(fmt.Errorf("%s needs a GPU of compute capability 8.9 or above, and this is %s", asked, w.Device()))
	}
	return nil
}

// fp8State is what a model has beside for products of 8-bit floats.
type fp8State struct {
	up   spmd.Buffer[float32] // (sites): what the values of a site are multiplied by, a power of two
	down spmd.Buffer[float32] // (sites,apart8): 1 over it, in the first
	peak spmd.Buffer[float32] // (sites): the largest size of a value in the step so far

	mats       []matrix8
	layout     spmd.Buffer[int64] // (mats,5): mats as kernels read them
	tiles      spmd.Buffer[int32] // (parts,3): matrix, row and column of each part that a block casts
	nTiles     int
	weights    spmd.Buffer[spmd.F8E4M3] // the codes of mats
	weightPeak spmd.Buffer[float32]     // (mats): the largest size of a weight
	weightBy   spmd.Buffer[float32]     // (mats,apart8): what codes are multiplied by, in the first

	operand spmd.Buffer[spmd.F8E4M3] // the operand of the next product
}

// apart8 is how many numbers lie between the scales of products: cuBLASLt wants them aligned to 16 bytes.
const apart8 = 4

// matrix8 is a matrix of weights: where its codes begin, and those of its transpose.
type matrix8 struct {
	from, to, across int // elements; from is in the arena of weights
	rows, cols       int
}

// The sites are the tensors that are cast: the final LayerNorm's output and the logits'
// gradient, then 8 of each layer: the inputs and the gradients of the outputs of qkv,
// proj, fc and proj2.
const (
	headSites  = 2
	layerSites = 8
)

func (cfg Config) fp8Sites() int {
	return [...]int{fp8Off: 0, fp8Head: headSites, fp8All: headSites + layerSites*cfg.Layers}[cfg.FP8]
}

const (
	tileSide    = 128 // of a tile of weights, as in fp8.cu
	columnParts = 264 // blocks that share the rows of a tensor, two for each multiprocessor of an H100 or H200
)

// fp8Matrices lists the matrices that are cast, by their names, and how many codes they have.
func fp8Matrices(cfg Config, params []Param) (mats []matrix8, names []string, codes int) {
	place := func(n int) int {
		at := codes
		codes += (n + 255) / 256 * 256
		return at
	}
	for _, p := range params {
		if !p.Decay || p.Name == "wpe.weight" || cfg.FP8 == fp8Head && p.Name != "wte.weight" {
			continue
		}
		mats = append(mats, matrix8{p.Off, place(p.Len), place(p.Len), p.Shape[0], p.Shape[1]})
		names = append(names, p.Name)
	}
	return mats, names, codes
}

// takeAll takes, or counts, the memory for n rows, and columns of scratch.
func (e *fp8State) takeAll(sp *space, cfg Config, params []Param, n int, columns *spmd.Buffer[float32]) {
	sites, codes := cfg.fp8Sites(), 0
	e.mats, _, codes = fp8Matrices(cfg, params)
	e.nTiles = 0
	for _, m := range e.mats {
		e.nTiles += tilesOf(m.rows) * tilesOf(m.cols)
	}
	take(sp, sites, &e.up, &e.peak)
	take(sp, apart8*sites, &e.down)
	take(sp, len(e.mats), &e.weightPeak)
	take(sp, apart8*len(e.mats), &e.weightBy)
	take(sp, 5*len(e.mats), &e.layout)
	take(sp, 3*e.nTiles, &e.tiles)
	take(sp, codes, &e.weights)
	operand := min(n, headRows) * cfg.PaddedVocab()
	if cfg.FP8 == fp8All {
		operand = max(operand, 4*n*cfg.Channels)
		take(sp, columnParts*4*cfg.Channels, columns)
	}
	take(sp, operand, &e.operand)
}

func tilesOf(n int) int { return (n + tileSide - 1) / tileSide }

// begin writes what does not change, and scales of 1.
func (e *fp8State) begin() error {
	var layout []int64
	var tiles []int32
	for i, m := range e.mats {
		layout = append(layout, int64(m.from), int64(m.to), int64(m.across), int64(m.rows), int64(m.cols))
		for r := 0; r < m.rows; r += tileSide {
			for c := 0; c < m.cols; c += tileSide {
				tiles = append(tiles, int32(i), int32(r), int32(c))
			}
		}
	}
	return errors.Join(e.layout.CopyFrom(layout), e.tiles.CopyFrom(tiles), e.up.SetAll(1), e.down.SetAll(1), e.peak.SetAll(0),
		e.weights.SetAll(0), e.weightBy.SetAll(1))
}

// cast is where the copy of a tensor goes, in 8-bit floats. The zero cast is none.
type cast struct {
	codes          spmd.Buffer[spmd.F8E4M3]
	up, down, peak spmd.Buffer[float32] // (1) each; without peak the largest size is not recorded
}

// none says whether there is nothing to cast to.
func (c cast) none() bool { return c.codes.Len() == 0 }

// linear8 is what the products of a linear take in 8-bit floats.
type linear8 struct {
	w, across spmd.Buffer[spmd.F8E4M3] // (out,in), and the transpose
	by        spmd.Buffer[float32]     // (1): what these are multiplied by
	x, dy     cast                     // of the input, and of the output's gradient
}

// linear8 returns that of a linear, by its weight's name and the first of its two sites.
func (e *fp8State) linear8(cfg Config, params []Param, name string, site int) *linear8 {
	mats, names, _ := fp8Matrices(cfg, params)
	castOf := func(site int) cast {
		one := func(b spmd.Buffer[float32]) spmd.Buffer[float32] { return b.Slice(site, site+1) }
		return cast{e.operand, one(e.up), e.down.Slice(apart8*site, apart8*site+1), one(e.peak)}
	}
	for i, m := range mats {
		if names[i] == name {
			n := m.rows * m.cols
			return &linear8{w: e.weights.Slice(m.to, m.to+n), across: e.weights.Slice(m.across, m.across+n),
				by: e.weightBy.Slice(apart8*i, apart8*i+1), x: castOf(site), dy: castOf(site + 1)}
		}
	}
	return nil
}

// bindFP8 gives the linears of p what they take of s.
func bindFP8[A Act](s *State, p *weights[A]) {
	e, cfg := s.fp8, s.Cfg
	if e == nil {
		return
	}
	p.head.eight = e.linear8(cfg, s.Params, "wte.weight", 0)
	if cfg.FP8 != fp8All {
		return
	}
	for l := range p.layers {
		h, site := fmt.Sprintf("h.%d.", l), headSites+layerSites*l
		q := &p.layers[l]
		for i, m := range []struct {
			to   *linear[A]
			name string
		}{{&q.qkv, "attn.c_attn"}, {&q.proj, "attn.c_proj"}, {&q.fc, "mlp.c_fc"}, {&q.proj2, "mlp.c_proj"}} {
			m.to.eight = e.linear8(cfg, s.Params, h+m.name+".weight", site+2*i)
		}
	}
}

// mode8 says what a pass does about 8-bit floats, where its model has any.
type mode8 struct {
	casts    bool // makes the copies
	records  bool // and enters their largest sizes, for the next step
	products bool // multiplies the copies
}

// inputCast is the cast of a linear's input, as this pass makes it; gradCast that of its
// output's gradient.
func (e *enqueue[A]) inputCast(p *linear[A]) cast {
	return e.castOf(p, func(q *linear8) cast { return q.x })
}
func (e *enqueue[A]) gradCast(p *linear[A]) cast {
	return e.castOf(p, func(q *linear8) cast { return q.dy })
}

func (e *enqueue[A]) castOf(p *linear[A], which func(*linear8) cast) cast {
	if p.eight == nil || !e.mode8.casts {
		return cast{}
	}
	c := which(p.eight)
	if !e.mode8.records {
		c.peak = spmd.Buffer[float32]{}
	}
	return c
}

// product8 is what a product of a linear takes beside, where it is of 8-bit floats; else nil.
func (e *enqueue[A]) product8(p *linear[A]) *linear8 {
	if !e.mode8.products {
		return nil
	}
	return p.eight
}

// scaled is o with the scales of a linear's weights and of a cast.
func (q *linear8) scaled(o blas.Options, operand cast) blas.Options {
	o.TransB, o.FastAccum, o.ScaleA, o.ScaleB = true, true, operand.down.Arg(), q.by.Arg()
	return o
}

// scales returns the exponents of the scales. It blocks.
func (e *fp8State) scales() ([]int, error) {
	up := make([]float32, e.up.Len())
	if err := e.up.CopyTo(up); err != nil {
		return nil, err
	}
	exps := make([]int, len(up))
	for i, x := range up {
		exps[i] = math.Ilogb(float64(x))
	}
	return exps, nil
}

// mostPower bounds the exponent of a scale.
const mostPower = 126

// usable says whether exponents are those of so many scales.
func usable(exps []int, sites int) bool {
	for _, e := range exps {
		if e < -mostPower || e > mostPower {
			return false
		}
	}
	return len(exps) == sites
}

// setScales is the reverse of scales.
func (e *fp8State) setScales(exps []int) error {
	up, down := make([]float32, len(exps)), make([]float32, apart8*len(exps))
	for i, x := range exps {
		up[i], down[apart8*i] = float32(math.Ldexp(1, x)), float32(math.Ldexp(1, -x))
	}
	return errors.Join(e.up.CopyFrom(up), e.down.CopyFrom(down))
}
