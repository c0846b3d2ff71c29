package main

import (
	_ "embed"
	"math"

	"lockstep/host"
	"lockstep/spmd"
)

// The kernels of products of 8-bit floats, as kernels.go has the others: fp8.cu is what runs
// on a GPU. Those that make a copy of a tensor beside what they do otherwise are in kernels.go.

//go:embed fp8.cu
var fp8Source string

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
func (e *launcher[A]) cast(x spmd.Buffer[A], n int, c cast) {
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
func (e *launcher[A]) gelu8(y, x spmd.Buffer[A], n int, c cast) {
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
func (e *launcher[A]) castColumns(x, pre spmd.Buffer[A], to cast, sums spmd.Buffer[float32]) {
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
	partial := e.columns.Slice(0, parts*c)
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
			up[i], down[apart8*i] = float32(math.Ldexp(1, e)), float32(math.Ldexp(1, -e))
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
		up[i], down[apart8*i] = float32(math.Ldexp(1, e)), float32(math.Ldexp(1, -e))
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
