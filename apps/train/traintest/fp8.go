package traintest

import (
	"math"
	"slices"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/blas"
	"lockstep/spmd/spmdtest"
)

// e4m3 are the values of the codes from 0 to 0x7e, by the definition of the format (OFP8, table 2).
var e4m3 = func() (values []float64) {
	for code := range 0x7f {
		v := float64(code%8) / 512
		if code >= 8 {
			v = float64(8+code%8) * math.Pow(2, float64(code/8-10))
		}
		values = append(values, v)
	}
	return values
}()

// Code8 is the code nearest to x, of two the even one.
func Code8(x float64) spmd.F8E4M3 {
	if x != x {
		return 0x7f
	}
	size := min(math.Abs(x), 448)
	i, _ := slices.BinarySearch(e4m3, size) // the first that is no smaller
	if i > 0 {
		if below, above := size-e4m3[i-1], e4m3[i]-size; below < above || below == above && i%2 == 1 {
			i--
		}
	}
	if math.Signbit(x) {
		i |= 0x80
	}
	return spmd.F8E4M3(i)
}

// On8 runs a test where products of 8-bit floats can be had.
func On8(t *testing.T, ranks []int, fn func(t *testing.T, w *spmd.World)) {
	spmdtest.Run(t, ranks, func(t *testing.T, w *spmd.World) {
		if !blas.SupportsF8(w) {
			t.Skip("no tensor cores for 8-bit floats")
		}
		fn(t, w)
	})
}
