package ops

import (
	"math"

	"lockstep/spmd"
)

// eachWeight8 calls fn for the elements of all matrices, which numbers describe: with the number of
// the matrix, the matrix, row and column.
func eachWeight8(numbers []int64, fn func(i int, m Matrix8, r, c int)) {
	for i := range len(numbers) / MatrixNumbers {
		m := matrix8Of([MatrixNumbers]int64(numbers[MatrixNumbers*i:]))
		for r := range m.Rows {
			for c := range m.Cols {
				fn(i, m, r, c)
			}
		}
	}
}

// CastWeightsKernel writes the codes of each matrix and of its transpose, by its largest size.
var CastWeightsKernel = newKernel8("cast_weights_8", func(a spmd.Args) error {
	codes, down, peaks, weights := spmd.ArgSlice[spmd.F8E4M3](a, 0), spmd.ArgSlice[float32](a, 1),
		spmd.ArgSlice[float32](a, 2), spmd.ArgSlice[spmd.BF16](a, 3)
	up := make([]float32, len(peaks))
	for i, peak := range peaks {
		e := 0
		if size8(peak) {
			e = powerFor(peak)
		}
		up[i], down[Apart8*i] = float32(math.Ldexp(1, e)), float32(math.Ldexp(1, -e))
	}
	eachWeight8(spmd.ArgSlice[int64](a, 4), func(i int, m Matrix8, r, c int) {
		code := spmd.ToF8E4M3(weights[m.From+r*m.Cols+c].Float32() * up[i])
		codes[m.To+r*m.Cols+c], codes[m.Across+c*m.Rows+r] = code, code
	})
	return nil
})
