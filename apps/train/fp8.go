package main

import (
	_ "embed"
	"errors"
	"fmt"
	"math"

	"lockstep/host"
	"lockstep/spmd"
)

// Products of 8-bit floats (e4m3): those forward and for the gradients of inputs, while
// the gradients of weights stay bfloat16. Each operand is cast where it comes to be, by
// a power of two that the largest value of the step before brings below 256: what grows
// by less than 1.75 from step to step fits. Weights are cast at the end of a step, by
// their own largest value. The scales lie in device memory, so that graphs replay.

//go:embed fp8.cu
var fp8Source string

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
	case !w.SupportsF8():
		return spmd.Usage(fmt.Errorf("%s needs a GPU of compute capability 8.9 or above, and this is %s", asked, w.Device()))
	}
	return nil
}

// fp8State is what a model has beside for products of 8-bit floats.
type fp8State struct {
	up, down spmd.Buffer[float32] // (sites): what the values of a site are multiplied by, a power of two; 1 over it
	peak     spmd.Buffer[float32] // (sites): the largest size of a value in the step so far

	mats       []matrix8
	layout     spmd.Buffer[int64] // (mats,5): mats as kernels read them
	tiles      spmd.Buffer[int32] // (parts,3): matrix, row and column of each part that a block casts
	nTiles     int
	weights    spmd.Buffer[spmd.F8E4M3] // the codes of mats
	weightPeak spmd.Buffer[float32]     // (mats): the largest size of a weight
	weightBy   spmd.Buffer[float32]     // (mats): what codes are multiplied by

	operand spmd.Buffer[spmd.F8E4M3] // the operand of the next product
	partial spmd.Buffer[float32]     // (columnParts,4C): sums of columns
}

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

// takeAll takes, or counts, the memory for n rows.
func (e *fp8State) takeAll(sp *space, cfg Config, params []Param, n int) {
	sites, codes := cfg.fp8Sites(), 0
	e.mats, _, codes = fp8Matrices(cfg, params)
	e.nTiles = 0
	for _, m := range e.mats {
		e.nTiles += tilesOf(m.rows) * tilesOf(m.cols)
	}
	take(sp, sites, &e.up, &e.down, &e.peak)
	take(sp, len(e.mats), &e.weightPeak, &e.weightBy)
	take(sp, 5*len(e.mats), &e.layout)
	take(sp, 3*e.nTiles, &e.tiles)
	take(sp, codes, &e.weights)
	operand := min(n, headRows) * cfg.PaddedVocab()
	if cfg.FP8 == fp8All {
		operand = max(operand, 4*n*cfg.Channels)
		take(sp, columnParts*4*cfg.Channels, &e.partial)
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
		return cast{e.operand, one(e.up), one(e.down), one(e.peak)}
	}
	for i, m := range mats {
		if names[i] == name {
			n := m.rows * m.cols
			return &linear8{w: e.weights.Slice(m.to, m.to+n), across: e.weights.Slice(m.across, m.across+n),
				by: e.weightBy.Slice(i, i+1), x: castOf(site), dy: castOf(site + 1)}
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
func (q *linear8) scaled(o spmd.GemmOpt, operand cast) spmd.GemmOpt {
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
	up, down := make([]float32, len(exps)), make([]float32, len(exps))
	for i, x := range exps {
		up[i], down[i] = float32(math.Ldexp(1, x)), float32(math.Ldexp(1, -x))
	}
	return errors.Join(e.up.CopyFrom(up), e.down.CopyFrom(down))
}

// --- kernels ---

// powerFor is the exponent of the scale for a largest size, above 0 and finite.
func powerFor(peak float32) int {
	return min(mostPower, 7-(int(math.Float32bits(peak)>>23)-127))
}

// size8 says whether the largest size of values says what their scale is.
func size8(peak float32) bool { return peak > 0 && finite(float64(peak)) }

// codes8 stores values times a scale, and returns the largest size of these and of top.
func codes8(codes []spmd.F8E4M3, x []float32, scale, top float32) float32 {
	for i, v := range x {
		if size := float32(math.Abs(float64(v))); size > top {
			top = size
		}
		codes[i] = spmd.ToF8E4M3(v * scale)
	}
	return top
}

// raise8 enters the largest size of values in argument i, which may be missing.
func raise8(a spmd.Args, i int, top float32) {
	if peak := spmd.ArgSlice[float32](a, i); len(peak) > 0 {
		peak[0] = max(peak[0], top)
	}
}

// copying is fn, then the copy of the activations that it wrote first: the codes are
// argument i, then come the scale and the largest size.
func copying(i int, fn func(a *hostArgs) error) func(a *hostArgs) error {
	return func(a *hostArgs) error {
		if err := fn(a); err != nil {
			return err
		}
		a.settle()
		raise8(a.Args, i+2, codes8(spmd.ArgSlice[spmd.F8E4M3](a.Args, i), a.written[0].from, spmd.ArgSlice[float32](a.Args, i+1)[0], 0))
		return nil
	}
}

func widened(x []spmd.BF16) []float32 {
	wide := make([]float32, len(x))
	host.Widen(wide, x)
	return wide
}

var castKernel = spmd.NewKernel("cast_8", fp8Source, func(a spmd.Args) error {
	x := widened(spmd.ArgSlice[spmd.BF16](a, 3)[:a.I64(4)])
	raise8(a, 2, codes8(spmd.ArgSlice[spmd.F8E4M3](a, 0), x, spmd.ArgSlice[float32](a, 1)[0], 0))
	return nil
})

// loop8 is a grid for kernels that loop over n elements, 8 at a time.
func loop8(n int) spmd.Grid { return blocks(min(132*8, (n/8+255)/256), 1, 1) }

// cast enqueues the copy of the first n elements of x.
func (e *enqueue[A]) cast(x spmd.Buffer[A], n int, c cast) {
	if e.err == nil && !c.none() {
		e.err = castKernel.Launch(e.s, loop8(n), c.codes.Arg(), c.up.Arg(), c.peak.Arg(), x.Arg(), spmd.I64(n))
	}
}

var geluKernel8 = spmd.NewKernel("gelu_8", fp8Source, func(a spmd.Args) error {
	n := a.I64(5)
	x, y := widened(spmd.ArgSlice[spmd.BF16](a, 4)[:n]), spmd.ArgSlice[spmd.BF16](a, 0)[:n]
	for i, v := range x {
		x[i] = v * logistic(v)
	}
	roundAll(y, x)
	raise8(a, 3, codes8(spmd.ArgSlice[spmd.F8E4M3](a, 1), widened(y), spmd.ArgSlice[float32](a, 2)[0], 0))
	return nil
})

// logistic is (1 + tanh(√(2/π)·(x + 0.044715·x³)))/2.
func logistic(x float32) float32 {
	v := float64(x)
	return float32(1 / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v))))
}

// gelu8 enqueues y = gelu(x), by GPT-2's tanh formula, of the first n elements, and the copy of y.
func (e *enqueue[A]) gelu8(y, x spmd.Buffer[A], n int, c cast) {
	if e.err == nil {
		e.err = geluKernel8.Launch(e.s, loop8(n), y.Arg(), c.codes.Arg(), c.up.Arg(), c.peak.Arg(), x.Arg(), spmd.I64(n))
	}
}

// columns8 computes cast_columns_8, and with slope gelu_slope_8: the first row of partial
// gets all sums, the others none.
func columns8(slope bool) func(a spmd.Args) error {
	return func(a spmd.Args) error {
		n, c := a.I32(6), a.I32(7)
		dst, partial := spmd.ArgSlice[spmd.BF16](a, 0)[:n*c], spmd.ArgSlice[float32](a, 4)
		if slope {
			x := widened(dst)
			for i, z := range widened(spmd.ArgSlice[spmd.BF16](a, 5)[:n*c]) {
				s := logistic(z)
				x[i] *= s + z*s*(1-s)*float32(2*math.Sqrt(2/math.Pi))*(1+3*0.044715*z*z)
			}
			roundAll(dst, x)
		}
		x := widened(dst)
		raise8(a, 3, codes8(spmd.ArgSlice[spmd.F8E4M3](a, 1), x, spmd.ArgSlice[float32](a, 2)[0], 0))
		clear(partial)
		for i, v := range x {
			partial[i%c] += v
		}
		return nil
	}
}

var (
	castColumnsKernel = spmd.NewKernel("cast_columns_8", fp8Source, columns8(false))
	geluSlopeKernel   = spmd.NewKernel("gelu_slope_8", fp8Source, columns8(true))
)

var sumRowsKernel = spmd.NewKernel("sum_rows_8", fp8Source, func(a spmd.Args) error {
	sums, partial, rows, c, acc := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), a.I32(2), a.I32(3), a.I32(4) != 0
	for j := range sums {
		sum := float32(0)
		for i := range rows {
			sum += partial[i*c+j]
		}
		if acc {
			sum += sums[j]
		}
		sums[j] = sum
	}
	return nil
})

// castColumns enqueues the copy of x(n,c), c being the length of sums, and sums (+)= the
// sums of its columns. Where pre is not empty x is multiplied by gelu'(pre) first.
func (e *enqueue[A]) castColumns(x, pre spmd.Buffer[A], to cast, sums spmd.Buffer[float32]) {
	if e.err != nil || to.none() {
		return
	}
	k, c := castColumnsKernel, sums.Len()
	if pre.Len() > 0 {
		k = geluSlopeKernel
	}
	const most = 512 // threads of a block, each with 8 columns
	blocks := (c + 8*most - 1) / (8 * most)
	threads := ((c+8*blocks-1)/(8*blocks) + 31) / 32 * 32
	parts := min(e.n, columnParts)
	partial := e.m.fp8.partial.Slice(0, parts*c)
	g := spmd.Grid{Blocks: [3]int{parts, blocks, 1}, Threads: [3]int{threads, 1, 1}}
	e.err = k.Launch(e.s, g, x.Arg(), to.codes.Arg(), to.up.Arg(), to.peak.Arg(), partial.Arg(), pre.Arg(), spmd.I32(e.n), spmd.I32(c))
	if e.err == nil {
		e.err = sumRowsKernel.Launch(e.s, spmd.Grid{Blocks: [3]int{(c + 31) / 32, 1, 1}, Threads: [3]int{256, 1, 1}}, sums.Arg(), partial.Arg(),
			spmd.I32(parts), spmd.I32(c), flag(e.acc))
	}
}

var nextScalesKernel = spmd.NewKernel("next_scales_8", fp8Source, func(a spmd.Args) error {
	up, down, peak, gate := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), spmd.ArgSlice[float32](a, 2), spmd.ArgSlice[float32](a, 3)[0]
	for i, top := range peak {
		if gate == gate && size8(top) {
			e := powerFor(top)
			up[i], down[i] = float32(math.Ldexp(1, e)), float32(math.Ldexp(1, -e))
		}
		peak[i] = 0
	}
	return nil
})

// nextScales enqueues the end of a step: each site's scale is now that for the largest
// size, which is the same on all ranks, unless gate(1) is NaN or that is 0 or not finite.
func (e *fp8State) nextScales(s *spmd.Stream, gate spmd.Buffer[float32]) error {
	n := e.peak.Len()
	return nextScalesKernel.Launch(s, spmd.Cover1D(n, 256), e.up.Arg(), e.down.Arg(), e.peak.Arg(), gate.Arg(), spmd.I32(n))
}

// eachWeight8 calls fn for the elements of all matrices: matrix, its layout, row and column.
func eachWeight8(layout []int64, fn func(i int, m matrix8, r, c int)) {
	for i := range len(layout) / 5 {
		l := layout[5*i:]
		m := matrix8{int(l[0]), int(l[1]), int(l[2]), int(l[3]), int(l[4])}
		for r := range m.rows {
			for c := range m.cols {
				fn(i, m, r, c)
			}
		}
	}
}

var weightPeaksKernel = spmd.NewKernel("weight_peaks_8", fp8Source, func(a spmd.Args) error {
	peaks, weights := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[spmd.BF16](a, 1)
	eachWeight8(spmd.ArgSlice[int64](a, 2), func(i int, m matrix8, r, c int) {
		peaks[i] = max(peaks[i], float32(math.Abs(float64(weights[m.from+r*m.cols+c].Float32()))))
	})
	return nil
})

var castWeightsKernel = spmd.NewKernel("cast_weights_8", fp8Source, func(a spmd.Args) error {
	codes, down, peaks, weights := spmd.ArgSlice[spmd.F8E4M3](a, 0), spmd.ArgSlice[float32](a, 1), spmd.ArgSlice[float32](a, 2), spmd.ArgSlice[spmd.BF16](a, 3)
	layout := spmd.ArgSlice[int64](a, 4)
	up := make([]float32, len(peaks))
	for i, peak := range peaks {
		e := 0
		if size8(peak) {
			e = powerFor(peak)
		}
		up[i], down[i] = float32(math.Ldexp(1, e)), float32(math.Ldexp(1, -e))
	}
	eachWeight8(layout, func(i int, m matrix8, r, c int) {
		code := spmd.ToF8E4M3(weights[m.from+r*m.cols+c].Float32() * up[i])
		codes[m.to+r*m.cols+c], codes[m.across+c*m.rows+r] = code, code
	})
	return nil
})

// castWeights enqueues the copies of the matrices in an arena of weights, each with the
// scale for its largest element.
func (e *fp8State) castWeights(s *spmd.Stream, weights spmd.Buffer[spmd.BF16]) error {
	if err := spmd.Fill(s, e.weightPeak, 0); err != nil {
		return err
	}
	g := blocks(e.nTiles, 1, 1)
	if err := weightPeaksKernel.Launch(s, g, e.weightPeak.Arg(), weights.Arg(), e.layout.Arg(), e.tiles.Arg()); err != nil {
		return err
	}
	return castWeightsKernel.Launch(s, g, e.weights.Arg(), e.weightBy.Arg(), e.weightPeak.Arg(), weights.Arg(), e.layout.Arg(), e.tiles.Arg())
}
