package spmd

import "lockstep/internal/elem"

// AtomicAdd adds v to *p in a kernel in Go. Other indices of the same kernel may add at the same
// time. Sums of integers are the same in any order; sums of floats are not.
func AtomicAdd[T int32 | uint32 | int64 | uint64 | float32 | float64](p *T, v T) {
	elem.AtomicAdd(p, v)
}

// AtomicMax makes *p at least v in a kernel in Go. Other indices of the same kernel may do so at
// the same time. A NaN changes nothing.
func AtomicMax[T int32 | uint32 | float32](p *T, v T) { elem.AtomicMax(p, v) }

// Real is float32 and the floats for storage that hold parts of one.
type Real = elem.Real

// Widen returns the value of x. It is for kernels in Go that are of several types.
func Widen[T Real](x T) float32 { return elem.Widen(x) }

// Narrow returns v, rounded to T.
func Narrow[T Real](v float32) T { return elem.Narrow[T](v) }
