package fp8

import (
	"errors"
	"fmt"
	"math"

	"lockstep/apps/train/kernels"
	"lockstep/apps/train/layout"
	"lockstep/spmd"
	"lockstep/spmd/blas"
)

// Check refuses what has no products of 8-bit floats: asked is where they were asked for.
func Check(w *spmd.World, level layout.FP8Level, dtype, asked string) error {
	switch {
	case level == layout.FP8Off:
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

// State is what a model has beside for products of 8-bit floats.
type State struct {
	Up   spmd.Buffer[float32] // (sites): what the values of a site are multiplied by, a power of two
	down spmd.Buffer[float32] // (sites,Apart8): 1 over it, in the first
	Peak spmd.Buffer[float32] // (sites): the largest size of a value in the step so far

	mats       []kernels.Matrix8
	layout     spmd.Buffer[int64] // (mats,MatrixNumbers): mats as kernels read them
	tiles      spmd.Buffer[int32] // (parts,3): matrix, row and column of each part that a block casts
	nTiles     int
	weights    spmd.Buffer[spmd.F8E4M3] // the codes of mats
	weightPeak spmd.Buffer[float32]     // (mats): the largest size of a weight
	weightBy   spmd.Buffer[float32]     // (mats,Apart8): what codes are multiplied by, in the first

	operand spmd.Buffer[spmd.F8E4M3] // the operand of the next product
}

// fp8Matrices lists the matrices that are cast, by their names, and how many codes they have.
func fp8Matrices(cfg layout.Config, params []layout.Param) (mats []kernels.Matrix8, names []string, codes int) {
	place := func(n int) int {
		at := codes
		codes += (n + 255) / 256 * 256
		return at
	}
	for _, p := range params {
		if !p.Decay || p.Name == "wpe.weight" || cfg.FP8 == layout.FP8Head && p.Name != "wte.weight" {
			continue
		}
		mats = append(mats, kernels.Matrix8{From: p.Off, To: place(p.Len), Across: place(p.Len), Rows: p.Shape[0], Cols: p.Shape[1]})
		names = append(names, p.Name)
	}
	return mats, names, codes
}

// TakeAll takes, or counts, the memory for n rows, and columns of scratch.
func (e *State) TakeAll(sp *layout.Space, cfg layout.Config, params []layout.Param, n int, columns *spmd.Buffer[float32]) {
	sites, codes := cfg.FP8Sites(), 0
	e.mats, _, codes = fp8Matrices(cfg, params)
	e.nTiles = 0
	for _, m := range e.mats {
		e.nTiles += tilesOf(m.Rows) * tilesOf(m.Cols)
	}
	layout.Take(sp, sites, &e.Up, &e.Peak)
	layout.Take(sp, kernels.Apart8*sites, &e.down)
	layout.Take(sp, len(e.mats), &e.weightPeak)
	layout.Take(sp, kernels.Apart8*len(e.mats), &e.weightBy)
	layout.Take(sp, kernels.MatrixNumbers*len(e.mats), &e.layout)
	layout.Take(sp, 3*e.nTiles, &e.tiles)
	layout.Take(sp, codes, &e.weights)
	operand := min(n, layout.HeadRows) * cfg.PaddedVocab()
	if cfg.FP8 == layout.FP8All {
		operand = max(operand, 4*n*cfg.Channels)
		layout.Take(sp, kernels.ColumnParts*4*cfg.Channels, columns)
	}
	layout.Take(sp, operand, &e.operand)
}

func tilesOf(n int) int { return (n + kernels.TileSide - 1) / kernels.TileSide }

// Begin writes what does not change, and scales of 1.
func (e *State) Begin() error {
	var layout []int64
	var tiles []int32
	for i, m := range e.mats {
		numbers := m.Numbers()
		layout = append(layout, numbers[:]...)
		for r := 0; r < m.Rows; r += kernels.TileSide {
			for c := 0; c < m.Cols; c += kernels.TileSide {
				tiles = append(tiles, int32(i), int32(r), int32(c))
			}
		}
	}
	return errors.Join(e.layout.CopyFrom(layout), e.tiles.CopyFrom(tiles), e.Up.SetAll(1), e.down.SetAll(1), e.Peak.SetAll(0),
		e.weights.SetAll(0), e.weightBy.SetAll(1))
}

// Scales returns the exponents of the scales. It blocks.
func (e *State) Scales() ([]int, error) {
	up := make([]float32, e.Up.Len())
	if err := e.Up.CopyTo(up); err != nil {
		return nil, err
	}
	exps := make([]int, len(up))
	for i, x := range up {
		exps[i] = math.Ilogb(float64(x))
	}
	return exps, nil
}

// Usable says whether exponents can be those of a number of scales.
func Usable(exps []int, sites int) bool {
	for _, e := range exps {
		if e < -kernels.MostPower || e > kernels.MostPower {
			return false
		}
	}
	return len(exps) == sites
}

// SetScales is the reverse of Scales. It blocks.
func (e *State) SetScales(exps []int) error {
	up, down := make([]float32, len(exps)), make([]float32, kernels.Apart8*len(exps))
	for i, x := range exps {
		up[i], down[kernels.Apart8*i] = float32(math.Ldexp(1, x)), float32(math.Ldexp(1, -x))
	}
	return errors.Join(e.Up.CopyFrom(up), e.down.CopyFrom(down))
}

// NextScales enqueues the end of a step: each site's scale is now that for the largest
// size, which is the same on all ranks, unless gate(1) is NaN or that is 0 or not finite.
func (e *State) NextScales(s *spmd.Stream, gate spmd.Buffer[float32]) error {
	n := e.Peak.Len()
	return kernels.NextScalesKernel.Launch(s, spmd.Cover1D(n, 256), e.Up.Arg(), e.down.Arg(), e.Peak.Arg(), gate.Arg(), spmd.I32(n))
}

// CastWeights enqueues the copies of the matrices in an arena of weights, each with the
// scale for its largest element.
func (e *State) CastWeights(s *spmd.Stream, weights spmd.Buffer[spmd.BF16]) error {
	if err := spmd.Fill(s, e.weightPeak, 0); err != nil {
		return err
	}
	g := kernels.Blocks(e.nTiles, 1, 1)
	if err := kernels.WeightPeaksKernel.Launch(s, g, e.weightPeak.Arg(), weights.Arg(), e.layout.Arg(), e.tiles.Arg()); err != nil {
		return err
	}
	return kernels.CastWeightsKernel.Launch(s, g, e.weights.Arg(), e.weightBy.Arg(), e.weightPeak.Arg(), weights.Arg(), e.layout.Arg(), e.tiles.Arg())
}
