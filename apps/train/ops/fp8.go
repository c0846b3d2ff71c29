package ops

import (
	"errors"
	"fmt"
	"math"

	"lockstep/apps/train/layout"
	"lockstep/spmd"
	"lockstep/spmd/blas"
)

// CheckFP8 refuses a device or a type without products of 8-bit floats. asked is the flag that
// asked for them.
func CheckFP8(w *spmd.World, level layout.FP8Level, dtype, asked string) error {
	switch {
	case level == layout.FP8Off:
		return nil
	case w.OnHost():
		return spmd.Usage(fmt.Errorf("%s needs a GPU of compute capability 8.9 or above, and this is the host", asked))
	case dtype != "bfloat16":
		return spmd.Usage(fmt.Errorf("%s needs --dtype bfloat16, and this is %s", asked, dtype))
	case !blas.SupportsF8(w):
		return spmd.Usage(fmt.Errorf("%s needs a GPU of compute capability 8.9 or above, and this is %s",
			asked, w.Device()))
	}
	return nil
}

// FP8 is a model's additional state for products of 8-bit floats.
type FP8 struct {
	Up   spmd.Buffer[float32] // (sites): the factor of a site's values, a power of two
	down spmd.Buffer[float32] // (sites,Apart8): 1 over it, in the first
	Peak spmd.Buffer[float32] // (sites): the largest size of a value in the step so far

	mats   []Matrix8
	names  []string // of these
	sets   []castSet
	layout spmd.Buffer[int64] // (mats,MatrixNumbers): mats as kernels read them
	// (parts,3): matrix, counted from the first of its set, row and column of each part that
	// a block casts
	tiles      spmd.Buffer[int32]
	nTiles     int                        // of all sets
	weights    []spmd.Buffer[spmd.F8E4M3] // the codes of mats; sets may take turns in one
	weightPeak spmd.Buffer[float32]       // (mats): the largest size of a weight
	weightBy   spmd.Buffer[float32]       // (mats,Apart8): the factor of codes, in the first

	Operand spmd.Buffer[spmd.F8E4M3] // the operand of the next product
	// this rank's rows of an operand, if the others come from ranks that divide the layers
	Own spmd.Buffer[spmd.F8E4M3]
}

// castSet has matrices that are cast together: all, or a group's.
type castSet struct {
	first, end           int // of mats
	firstTile, endOfTile int
	memory               int // which of weights
}

// matrices lists the matrices to cast, and returns how many codes each memory has. With turns the
// matrices of each group are a set, and those of layers take turns in so many memories. From is
// then in the group.
func (e *FP8) matrices(cfg layout.Config, params []layout.Param, groups []layout.Group, turns int) (lens []int) {
	e.mats, e.names, e.nTiles = nil, nil, 0
	e.sets, lens = make([]castSet, 1), make([]int, 1)
	if turns > 0 {
		e.sets, lens = make([]castSet, len(groups)), make([]int, turns+1)
	}
	for g := range e.sets {
		x := &e.sets[g]
		if x.memory = turns; g < layout.VectorGroup(groups) && turns > 0 {
			x.memory = g % turns
		}
		x.first, x.firstTile = len(e.mats), e.nTiles
		codes := 0
		place := func(n int) int {
			at := codes
			codes += (n + 255) / 256 * 256
			return at
		}
		for _, p := range params {
			head := p.Name == cfg.HeadName()
			if turns > 0 && p.Group != g || !p.Decay || p.Name == "wpe.weight" || head && !cfg.Ends() ||
				!head && cfg.FP8 == layout.FP8Head || cfg.Family(p) == layout.Embeddings {
				continue
			}
			from := p.Off
			if turns > 0 {
				from -= groups[g].Off
			}
			m := Matrix8{From: from, To: place(p.Len), Across: place(p.Len), Rows: p.Shape[0], Cols: p.Shape[1]}
			e.mats, e.names = append(e.mats, m), append(e.names, p.Name)
			e.nTiles += tilesOf(m.Rows) * tilesOf(m.Cols)
		}
		x.end, x.endOfTile = len(e.mats), e.nTiles
		lens[x.memory] = max(lens[x.memory], codes)
	}
	return lens
}

// codesOf returns the memory of a matrix's codes.
func (e *FP8) codesOf(mat int) spmd.Buffer[spmd.F8E4M3] {
	for _, x := range e.sets {
		if mat < x.end {
			return e.weights[x.memory]
		}
	}
	return spmd.Buffer[spmd.F8E4M3]{}
}

// TakeAll allocates, or counts, the memory for n rows. rows says which ranks divide them. A model
// that sums columns of what is cast says where their scratch goes.
//
// If turns is above 0 no rank has all weights: those of layers come a group at a time, and so many
// groups have memory.
func (e *FP8) TakeAll(sp *layout.Space, cfg layout.Config, params []layout.Param, groups []layout.Group, turns, n int,
	rows layout.Rows, columns *spmd.Buffer[float32]) {
	sites, lens := cfg.FP8Sites(), e.matrices(cfg, params, groups, turns)
	layout.Take(sp, sites, &e.Up, &e.Peak)
	layout.Take(sp, Apart8*sites, &e.down)
	layout.Take(sp, len(e.mats), &e.weightPeak)
	layout.Take(sp, Apart8*len(e.mats), &e.weightBy)
	layout.Take(sp, MatrixNumbers*len(e.mats), &e.layout)
	layout.Take(sp, 3*e.nTiles, &e.tiles)
	e.weights = make([]spmd.Buffer[spmd.F8E4M3], len(lens))
	for i, codes := range lens {
		layout.Take(sp, codes, &e.weights[i])
	}
	operand := 0
	if cfg.Ends() {
		_, own, _ := cfg.OwnVocab()
		operand = min(n, layout.HeadRows) * max(own, cfg.Channels)
	}
	if cfg.FP8 == layout.FP8All {
		operand = max(operand, rows.All()*cfg.Channels, 4*n*cfg.OwnChannels())
		if cfg.Tensor.Parts() > 1 {
			layout.Take(sp, rows.Held()*cfg.Channels, &e.Own)
		}
		if columns != nil {
			layout.Take(sp, ColumnParts*4*cfg.Channels, columns)
		}
	}
	layout.Take(sp, operand, &e.Operand)
}

func tilesOf(n int) int { return (n + TileSide - 1) / TileSide }

// Begin writes constants, and scales of 1.
func (e *FP8) Begin() error {
	var layout []int64
	var tiles []int32
	for _, x := range e.sets {
		for i, m := range e.mats[x.first:x.end] {
			numbers := m.Numbers()
			layout = append(layout, numbers[:]...)
			for r := 0; r < m.Rows; r += TileSide {
				for c := 0; c < m.Cols; c += TileSide {
					tiles = append(tiles, int32(i), int32(r), int32(c))
				}
			}
		}
	}
	return errors.Join(e.layout.CopyFrom(layout), e.tiles.CopyFrom(tiles), e.Up.SetAll(1), e.down.SetAll(1),
		e.weightBy.SetAll(1))
}

// Scales returns the exponents of the scales. It blocks.
func (e *FP8) Scales() ([]int, error) {
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

// ScalesFit reports whether exponents can belong to so many scales.
func ScalesFit(exps []int, sites int) bool {
	for _, e := range exps {
		if e < -MostPower || e > MostPower {
			return false
		}
	}
	return len(exps) == sites
}

// SetScales reverses Scales. It blocks.
func (e *FP8) SetScales(exps []int) error {
	up, down := make([]float32, len(exps)), make([]float32, Apart8*len(exps))
	for i, x := range exps {
		up[i], down[Apart8*i] = float32(math.Ldexp(1, x)), float32(math.Ldexp(1, -x))
	}
	return errors.Join(e.Up.CopyFrom(up), e.down.CopyFrom(down))
}

// NextScales enqueues the end of a step. Each site's scale becomes that for its largest size, which
// is the same on all ranks. It stays if gate(1) is NaN, or if the size is 0 or not finite.
func (e *FP8) NextScales(s *spmd.Stream, gate spmd.Buffer[float32]) error {
	return NextScales(s, e.Up, e.down, e.Peak, gate)
}

// CastWeights enqueues the copies of the matrices in an arena of weights, each with the scale for
// its largest element.
func (e *FP8) CastWeights(s *spmd.Stream, weights spmd.Buffer[spmd.BF16]) error {
	return e.CastGroup(s, 0, weights)
}

// CastGroup is CastWeights for a group's weights, if groups are cast one by one.
func (e *FP8) CastGroup(s *spmd.Stream, group int, weights spmd.Buffer[spmd.BF16]) error {
	x := e.sets[group]
	if x.first == x.end {
		return nil
	}
	peaks, by := e.weightPeak.Slice(x.first, x.end), e.weightBy.Slice(Apart8*x.first, Apart8*x.end)
	mats := e.layout.Slice(MatrixNumbers*x.first, MatrixNumbers*x.end)
	tiles := e.tiles.Slice(3*x.firstTile, 3*x.endOfTile)
	if err := spmd.Fill(s, peaks, 0); err != nil {
		return err
	}
	if err := WeightPeaks(s, peaks, weights, mats); err != nil {
		return err
	}
	g := Blocks(x.endOfTile-x.firstTile, 1, 1)
	return CastWeightsKernel.Launch(s, g, e.weights[x.memory].Arg(), by.Arg(), peaks.Arg(), weights.Arg(),
		mats.Arg(), tiles.Arg())
}
