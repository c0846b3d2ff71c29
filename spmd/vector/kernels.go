package vector

import "math"

// The command writes kernels_spmd.go: the kernels in CUDA C++, and the functions that launch them.
//
//go:generate go run lockstep/spmd/spmdgen

//spmd:kernel
func sum[T Number](i int, x []T) T { return x[i] }

//spmd:kernel
func dot[T Number](i int, x, y []T) T { return x[i] * y[i] }

//spmd:kernel min
func smallest[T Number](i int, x []T) T { return x[i] }

//spmd:kernel max
func largest[T Number](i int, x []T) T { return x[i] }

//spmd:kernel
func axpy[T Number](i int, y []T, a T, x []T) { y[i] += a * x[i] }

//spmd:kernel
func scale[T Number](i int, x []T, a T) { x[i] *= a }

//spmd:kernel
func squares[T float32 | float64](i int, x []T) float64 { return float64(x[i]) * float64(x[i]) }

// root has one index.
//
//spmd:kernel
func root[T float32 | float64](i int, dst []T, sum *float64) { dst[i] = T(math.Sqrt(*sum)) }

// place sets at to first + at if that element of x is best, and else to -1.
//
//spmd:kernel
func place[T Number](i int, at *int64, best *T, x []T, first int) {
	if *at < 0 {
		return
	}
	mine, wanted := float64(x[*at]), float64(*best)
	if x[*at] == *best && math.Signbit(mine) == math.Signbit(wanted) || math.IsNaN(mine) && math.IsNaN(wanted) {
		*at += int64(first)
	} else {
		*at = -1
	}
}
