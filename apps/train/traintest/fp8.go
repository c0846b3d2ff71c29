package traintest

import (
	"math"
	"slices"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/blas"
	"lockstep/spmd/spmdtest"
)

// These are the values of the codes from 0 to the largest finite one, by the definition of the
// formats (OFP8, table 2).
var e4m3, e5m2 = eightValues(3, 7, 0x7f), eightValues(2, 15, 0x7c)

func eightValues(fraction, bias, codes int) (values []float64) {
	for code := range codes {
		exp, frac := code>>fraction, code&(1<<fraction-1)
		v := math.Ldexp(float64(frac), 1-bias-fraction)
		if exp > 0 {
			v = math.Ldexp(float64(1<<fraction+frac), exp-bias-fraction)
		}
		values = append(values, v)
	}
	return values
}

// Code8 returns the code nearest to x, the even one of two.
func Code8(x float64) spmd.F8E4M3 { return spmd.F8E4M3(nearest(e4m3, x)) }

// WideCode8 is Code8 for the format with the larger range.
func WideCode8(x float64) spmd.F8E5M2 { return spmd.F8E5M2(nearest(e5m2, x)) }

func nearest(values []float64, x float64) int {
	if x != x {
		return 0x7f
	}
	size := min(math.Abs(x), values[len(values)-1])
	i, _ := slices.BinarySearch(values, size) // the first that is no smaller
	if i > 0 {
		if below, above := size-values[i-1], values[i]-size; below < above || below == above && i%2 == 1 {
			i--
		}
	}
	if math.Signbit(x) {
		i |= 0x80
	}
	return i
}

// On8 runs a test if the device has products of 8-bit floats.
func On8(t *testing.T, ranks []int, fn func(t *testing.T, w *spmd.World)) {
	spmdtest.Run(t, ranks, only8(fn))
}

// On8Quickly is On8 for a long test, by RunQuickly.
func On8Quickly(t *testing.T, ranks, processes []int, fn func(t *testing.T, w *spmd.World)) {
	RunQuickly(t, ranks, processes, only8(fn))
}

// only8 returns fn for a device with products of 8-bit floats, or a function that skips the test.
func only8(fn func(t *testing.T, w *spmd.World)) func(t *testing.T, w *spmd.World) {
	return func(t *testing.T, w *spmd.World) {
		if !blas.SupportsF8(w) {
			t.Skip("no tensor cores for 8-bit floats")
		}
		fn(t, w)
	}
}
