// Package vector has sums, products, scans, selections and sorts of whole buffers, on their device.
// Each function enqueues its work on a stream, and allocates nothing.
//
// The order of additions depends on the length alone: equal inputs give equal bits, on a GPU the
// same as on the host. On one stream the functions that reduce or sort come from one goroutine.
//
// A result that overlaps another operand is refused, unless its function says what it may be.
package vector

import (
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/spmd"
	"lockstep/spmd/gokernel"
	"lockstep/spmd/internal/own"
	"lockstep/spmd/library"
)

// Number is the set of types that the functions take.
type Number interface {
	int32 | uint32 | int64 | uint64 | float32 | float64
}

// same refuses vectors of other lengths.
func same[T Number](op string, x, y spmd.Buffer[T]) error {
	if x.Len() != y.Len() {
		return fmt.Errorf("%s: %s: vectors of %d and %d elements", ccall.At(), op, x.Len(), y.Len())
	}
	return nil
}

// Sum enqueues dst[0] = the sum of x, in T; it is 0 if x is empty. As NumPy's sum, with the type of
// the elements.
func Sum[T Number](s *spmd.Stream, dst, x spmd.Buffer[T]) error {
	if err := apart("vector.Sum", dst, x, x); err != nil {
		return err
	}
	return launchSum(s, dst, x.Len(), x)
}

// Dot enqueues dst[0] = the sum of x[i] y[i], in T. As BLAS's dot.
func Dot[T Number](s *spmd.Stream, dst, x, y spmd.Buffer[T]) error {
	if err := same("vector.Dot", x, y); err != nil {
		return err
	}
	if err := apart("vector.Dot", dst, x, y); err != nil {
		return err
	}
	return launchDot(s, dst, x.Len(), x, y)
}

// Norm2 enqueues dst[0] = the Euclidean norm of x, whose squares are added in float64. As BLAS's
// nrm2, but that float64 loses squares of numbers below 1e-154, and has none of those above 1e154.
func Norm2[T float32 | float64](s *spmd.Stream, dst, x spmd.Buffer[T]) error {
	return norm(s, dst, x, nil)
}

// norm enqueues the norm. reduce, if there is one, makes the sum of the squares that of all ranks.
func norm[T float32 | float64](
	s *spmd.Stream, dst, x spmd.Buffer[T], reduce func(sum spmd.Buffer[float64]) error,
) error {
	if err := apart("vector.Norm2", dst, x, x); err != nil {
		return err
	}
	sum, err := own.Scratch[float64](s, gokernel.MostParts) // behind what the reduction uses
	if err == nil {
		err = launchSquares(s, sum, x.Len(), x)
	}
	if err == nil && reduce != nil {
		err = reduce(sum)
	}
	if err != nil {
		return err
	}
	return launchRoot(s, 1, dst, sum)
}

// Min enqueues dst[0] = the smallest element of x. A NaN wins. If x is empty it is the largest
// number of T.
func Min[T Number](s *spmd.Stream, dst, x spmd.Buffer[T]) error {
	if err := apart("vector.Min", dst, x, x); err != nil {
		return err
	}
	return launchSmallest(s, dst, x.Len(), x)
}

// Max enqueues dst[0] = the largest element of x. A NaN wins. If x is empty it is the smallest
// number of T.
func Max[T Number](s *spmd.Stream, dst, x spmd.Buffer[T]) error {
	if err := apart("vector.Max", dst, x, x); err != nil {
		return err
	}
	return launchLargest(s, dst, x.Len(), x)
}

// Axpy enqueues y += a x. x may be y. As BLAS's axpy.
func Axpy[T Number](s *spmd.Stream, y spmd.Buffer[T], a T, x spmd.Buffer[T]) error {
	if err := same("vector.Axpy", y, x); err != nil {
		return err
	}
	if err := library.Apart("vector.Axpy", library.Writes("y", y), library.Reads("x", x).MayBe(0)); err != nil {
		return err
	}
	return launchAxpy(s, x.Len(), y, a, x)
}

// Scale enqueues x *= a. As BLAS's scal.
func Scale[T Number](s *spmd.Stream, x spmd.Buffer[T], a T) error {
	return launchScale(s, x.Len(), x, a)
}
