package spmd_test

import (
	"math"

	"lockstep/spmd"
)

// number converts between an element type and float64, which holds every value of
// these tests exactly.
type number[T spmd.Elem] struct {
	of func(float64) T
	to func(T) float64
}

func plain[T int8 | uint8 | int32 | uint32 | int64 | uint64 | float32 | float64]() number[T] {
	return number[T]{func(x float64) T { return T(x) }, func(x T) float64 { return float64(x) }}
}

// half and brain are the two floats of 16 bits.
func half() number[spmd.F16] {
	return number[spmd.F16]{func(x float64) spmd.F16 { return spmd.ToF16(float32(x)) },
		func(x spmd.F16) float64 { return float64(x.Float32()) }}
}

func brain() number[spmd.BF16] {
	return number[spmd.BF16]{func(x float64) spmd.BF16 { return spmd.ToBF16(float32(x)) },
		func(x spmd.BF16) float64 { return float64(x.Float32()) }}
}

// input is element i of rank r's contribution. It is a small integer, so that every order of
// summation is exact in every type. If products of all ranks must fit int8 it is a power of two.
func input(op spmd.Op, r, i int) float64 {
	if op == spmd.Prod {
		return float64(1 + (i+r)%2)
	}
	return float64((i*7 + r*3) % 11)
}

// reduced is the expected result, in float64.
func reduced(op spmd.Op, ranks, i int, integer bool) float64 {
	x := input(op, 0, i)
	for r := 1; r < ranks; r++ {
		switch y := input(op, r, i); op {
		case spmd.Sum, spmd.Avg:
			x += y
		case spmd.Prod:
			x *= y
		case spmd.Min:
			x = math.Min(x, y)
		case spmd.Max:
			x = math.Max(x, y)
		}
	}
	if op == spmd.Avg {
		x /= float64(ranks)
		if integer {
			x = math.Trunc(x)
		}
	}
	return x
}

// near accepts the rounding of one division in the type: only averages of
// floating-point types are not exact.
func near(got, want float64, op spmd.Op, bits int) bool {
	if op != spmd.Avg {
		return got == want
	}
	return math.Abs(got-want) <= math.Abs(want)*math.Ldexp(1, -bits)
}

// parts are unequal lengths for the V forms, with a zero among them.
func parts(n, size int) []int {
	p := make([]int, size)
	for r := range p {
		p[r] = r * n
	}
	return p
}

func sumOf(counts []int) int {
	s := 0
	for _, c := range counts {
		s += c
	}
	return s
}
