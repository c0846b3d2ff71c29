// Package vector has sums, products, scans, selections and sorts of whole buffers, on their device.
// Each function enqueues its work on a stream, and allocates nothing.
//
// The order of additions depends on the length alone: equal inputs give equal bits, on a GPU the
// same as on the host. On one stream the functions that reduce or sort come from one goroutine.
package vector

import (
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/spmd"
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
func Sum[T Number](s *spmd.Stream, dst, x spmd.Buffer[T]) error { return launchSum(s, dst, x.Len(), x) }

// Dot enqueues dst[0] = the sum of x[i] y[i], in T. As BLAS's dot.
func Dot[T Number](s *spmd.Stream, dst, x, y spmd.Buffer[T]) error {
	if err := same("vector.Dot", x, y); err != nil {
		return err
	}
	return launchDot(s, dst, x.Len(), x, y)
}

// Norm2 enqueues dst[0] = the Euclidean norm of x. As BLAS's nrm2, but that squares may overflow.
func Norm2[T float32 | float64](s *spmd.Stream, dst, x spmd.Buffer[T]) error {
	if err := launchSquares(s, dst, x.Len(), x); err != nil {
		return err
	}
	return launchRoot(s, 1, dst)
}

// Min enqueues dst[0] = the smallest element of x. A NaN wins. If x is empty it is the largest
// number of T.
func Min[T Number](s *spmd.Stream, dst, x spmd.Buffer[T]) error {
	return launchSmallest(s, dst, x.Len(), x)
}

// Max enqueues dst[0] = the largest element of x. A NaN wins. If x is empty it is the smallest
// number of T.
func Max[T Number](s *spmd.Stream, dst, x spmd.Buffer[T]) error {
	return launchLargest(s, dst, x.Len(), x)
}

// Axpy enqueues y += a x. As BLAS's axpy.
func Axpy[T Number](s *spmd.Stream, y spmd.Buffer[T], a T, x spmd.Buffer[T]) error {
	if err := same("vector.Axpy", y, x); err != nil {
		return err
	}
	return launchAxpy(s, x.Len(), y, a, x)
}

// Scale enqueues x *= a. As BLAS's scal.
func Scale[T Number](s *spmd.Stream, x spmd.Buffer[T], a T) error {
	return launchScale(s, x.Len(), x, a)
}
