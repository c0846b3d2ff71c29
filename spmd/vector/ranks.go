package vector

import "lockstep/spmd"

// SumOver enqueues on s: dst[0] = the sum of the x of all ranks of c, on every rank. It is a kernel
// of the rank's part, and an all-reduce of one number. Collective over c, in the order of s, on
// whatever stream c is. So are the other functions over all ranks.
func SumOver[T Number](c spmd.Comm, s *spmd.Stream, dst, x spmd.Buffer[T]) error {
	return reduceOver(c, s, dst, spmd.Sum, Sum(s, dst, x))
}

// DotOver enqueues dst[0] = the sum of x[i] y[i] over all ranks.
func DotOver[T Number](c spmd.Comm, s *spmd.Stream, dst, x, y spmd.Buffer[T]) error {
	return reduceOver(c, s, dst, spmd.Sum, Dot(s, dst, x, y))
}

// MinOver enqueues dst[0] = the smallest element of the x of all ranks.
func MinOver[T Number](c spmd.Comm, s *spmd.Stream, dst, x spmd.Buffer[T]) error {
	return reduceOver(c, s, dst, spmd.Min, Min(s, dst, x))
}

// MaxOver enqueues dst[0] = the largest element of the x of all ranks.
func MaxOver[T Number](c spmd.Comm, s *spmd.Stream, dst, x spmd.Buffer[T]) error {
	return reduceOver(c, s, dst, spmd.Max, Max(s, dst, x))
}

// Norm2Over enqueues dst[0] = the Euclidean norm of the x of all ranks.
func Norm2Over[T float32 | float64](c spmd.Comm, s *spmd.Stream, dst, x spmd.Buffer[T]) error {
	return norm(s, dst, x, func(sum spmd.Buffer[float64]) error { return reduceOver(c, s, sum, spmd.Sum, nil) })
}

// reduceOver enqueues the all-reduce behind a rank's own part.
func reduceOver[T Number](c spmd.Comm, s *spmd.Stream, dst spmd.Buffer[T], op spmd.Op, err error) error {
	if err != nil || c.Size() == 1 {
		return err
	}
	return spmd.AllReduce(c.On(s), dst, dst, op)
}

// ArgMinOver enqueues best[0] = the smallest element of the x of all ranks. at[0] is the index of
// its first place in the whole vector. This rank's part begins with element first of that. at is -1
// if all parts are empty.
func ArgMinOver[T Number](
	c spmd.Comm, s *spmd.Stream, best spmd.Buffer[T], at spmd.Buffer[int64], x spmd.Buffer[T], first int,
) error {
	return findOver(c, s, spmd.Min, best, at, x, first, ArgMin(s, best, at, x))
}

// ArgMaxOver is ArgMinOver of the largest element.
func ArgMaxOver[T Number](
	c spmd.Comm, s *spmd.Stream, best spmd.Buffer[T], at spmd.Buffer[int64], x spmd.Buffer[T], first int,
) error {
	return findOver(c, s, spmd.Max, best, at, x, first, ArgMax(s, best, at, x))
}

func findOver[T Number](
	c spmd.Comm, s *spmd.Stream, op spmd.Op, best spmd.Buffer[T], at spmd.Buffer[int64], x spmd.Buffer[T],
	first int, err error,
) error {
	if err = reduceOver(c, s, best, op, err); err != nil {
		return err
	}
	if err = launchPlace(s, 1, at, best, x, first); err != nil {
		return err
	}
	index := spmd.View[uint64](at) // here -1 is the largest
	return reduceOver(c, s, index, spmd.Min, nil)
}

// ScanOver enqueues the scan of the vector that the x of all ranks make up, in rank order: dst[i] =
// the sum of the x of the ranks before this one, and of x[0] to x[i]. before, of one element, has
// the former. dst may be x.
func ScanOver[T Number](c spmd.Comm, s *spmd.Stream, dst, x, before spmd.Buffer[T]) error {
	return scanOver("vector.ScanOver", c, s, dst, x, before, inclusive)
}

// ExScanOver is ScanOver without x[i] itself. dst may be x.
func ExScanOver[T Number](c spmd.Comm, s *spmd.Stream, dst, x, before spmd.Buffer[T]) error {
	return scanOver("vector.ExScanOver", c, s, dst, x, before, exclusive)
}

func scanOver[T Number](op string, c spmd.Comm, s *spmd.Stream, dst, x, before spmd.Buffer[T], exclusive bool) error {
	err := one(op, "before", before)
	if err == nil {
		err = scannable(op, dst, x, before)
	}
	if err == nil {
		err = Sum(s, before, x)
	}
	if err == nil && c.Size() > 1 {
		err = spmd.ExScan(c.On(s), before, before, spmd.Sum)
	}
	if err == nil && c.Rank() == 0 {
		err = spmd.Fill(s, before, 0) // ExScan leaves what it was
	}
	if err != nil {
		return err
	}
	return scan(op, s, scanners[typeOf[T]()], dst, x, before, exclusive)
}
