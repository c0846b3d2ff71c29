package vector

import "lockstep/spmd"

// The functions below are over the vectors of all ranks of a communicator, of which each rank has a part: a kernel of the
// rank's part, and an all-reduce of one number. c is on s (Comm.On). They are collective, and dst is the same on every rank.

// SumOver enqueues dst[0] = the sum of the x of all ranks.
func SumOver[T Number](c spmd.Comm, s *spmd.Stream, dst, x spmd.Buffer[T]) error {
	return over(c, dst, spmd.Sum, Sum(s, dst, x))
}

// DotOver enqueues dst[0] = the sum of x[i] y[i] over all ranks.
func DotOver[T Number](c spmd.Comm, s *spmd.Stream, dst, x, y spmd.Buffer[T]) error {
	return over(c, dst, spmd.Sum, Dot(s, dst, x, y))
}

// MinOver enqueues dst[0] = the smallest element of the x of all ranks.
func MinOver[T Number](c spmd.Comm, s *spmd.Stream, dst, x spmd.Buffer[T]) error {
	return over(c, dst, spmd.Min, Min(s, dst, x))
}

// MaxOver enqueues dst[0] = the largest element of the x of all ranks.
func MaxOver[T Number](c spmd.Comm, s *spmd.Stream, dst, x spmd.Buffer[T]) error {
	return over(c, dst, spmd.Max, Max(s, dst, x))
}

// Norm2Over enqueues dst[0] = the Euclidean norm of the x of all ranks.
func Norm2Over[T Float](c spmd.Comm, s *spmd.Stream, dst, x spmd.Buffer[T]) error {
	if err := over(c, dst, spmd.Sum, launchSquares(s, dst, x.Len(), x)); err != nil {
		return err
	}
	return launchRoot(s, 1, dst)
}

// over enqueues the all-reduce behind a rank's own part.
func over[T Number](c spmd.Comm, dst spmd.Buffer[T], op spmd.Op, err error) error {
	if err != nil || c.Size() == 1 {
		return err
	}
	return spmd.AllReduce(c, dst, dst, op)
}
