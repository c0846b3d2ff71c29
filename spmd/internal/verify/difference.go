package verify

import (
	"fmt"
	"math"
	"unsafe"

	"lockstep/internal/elem"
)

// comparer is host memory's way between the ranks. A transport.Host is one.
type comparer interface {
	Size() int
	AllReduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error
	AllGather(dst, src unsafe.Pointer, n int, t elem.Type) error
}

// Difference is an element in which two results differ that should agree: the first on the lowest
// rank that has one.
type Difference struct {
	Rank, Index int
	Got, Want   string
	Bound       float64 // of the absolute difference; 0 if the two must be the same
}

// Error says all of it on one line.
func (d *Difference) Error() string {
	s := fmt.Sprintf("rank %d: element %d is %s, want %s", d.Rank, d.Index, d.Got, d.Want)
	if d.Bound > 0 {
		s += fmt.Sprintf(" within %.3g", d.Bound)
	}
	return s
}

// Bound says how far a result may be from want, a result that was computed in another way. A nil
// Bound is for results that must be the same, bit by bit.
type Bound func(want float64) float64

// ReductionBound is the Bound for two reductions over ranks, in any orders, of elements up to
// largest in size. Integers, minima and maxima do not depend on the order: for them it is nil.
//
// A sum of p numbers has a relative error of at most (p-1) u with respect to the sum of their
// sizes, and each result is rounded once more; a product, with respect to itself; with u half the
// distance from 1 to the next number. Both results may be off by that. Source: Higham, Accuracy and
// Stability of Numerical Algorithms, 2nd ed., sections 3.1 and 4.2.
func ReductionBound(t elem.Type, op elem.Op, ranks int, largest float64) Bound {
	u := unit(t)
	if u == 0 || op == elem.Min || op == elem.Max {
		return nil
	}
	each := 2 * float64(ranks) * u
	if t.Complex() && op == elem.Prod { // parts may cancel
		most := 2 * each * math.Pow(math.Sqrt2*largest, float64(ranks))
		return func(float64) float64 { return most }
	}
	return func(want float64) float64 {
		switch op {
		case elem.Prod:
			return each * math.Abs(want)
		case elem.Avg:
			return each * largest
		default:
			return each * largest * float64(ranks)
		}
	}
}

// unit is the rounding error of 1 in type t, 0 for integers.
func unit(t elem.Type) float64 {
	switch t.Real() {
	case elem.Float16:
		return 0x1p-11
	case elem.BFloat16:
		return 0x1p-8
	case elem.Float32:
		return 0x1p-24
	case elem.Float64:
		return 0x1p-53
	}
	return 0
}

// largest returns the size of the largest of the n floats at p, on any rank, for ReductionBound.
// NaN and infinity do not count. p is host memory. Collective.
func largest(c comparer, p unsafe.Pointer, n int, t elem.Type) (float64, error) {
	m, n, t := new(float64), n*t.Size()/t.Real().Size(), t.Real()
	if unit(t) != 0 {
		for i := range n {
			if v := math.Abs(float(elem.At(p, i, 1, t), t)); v <= math.MaxFloat64 {
				*m = max(*m, v)
			}
		}
	}
	err := c.AllReduce(unsafe.Pointer(m), unsafe.Pointer(m), 1, elem.Float64, elem.Max)
	return *m, err
}

// compare compares n elements with their right values, on every rank, and returns the same
// *Difference on all ranks, or nil. All NaNs are the same. got and want are host memory; ranks may
// have different n. Collective.
func compare(c comparer, got, want unsafe.Pointer, n int, t elem.Type, bound Bound) error {
	// Each rank sends the index, -1 for none, both values as they are, and the bound.
	mine, parts, t := &[4]int64{-1}, t.Size()/t.Real().Size(), t.Real()
	for i := range n * parts {
		a, b := elem.At(got, i, 1, t), elem.At(want, i, 1, t)
		if most, ok := agree(a, b, t, bound); !ok {
			*mine = [4]int64{int64(i / parts), bitsOf(a, t), bitsOf(b, t), int64(math.Float64bits(most))}
			break
		}
	}
	all := make([][4]int64, c.Size())
	if err := c.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(mine), 4, elem.Int64); err != nil {
		return err
	}
	for r, d := range all {
		if d[0] >= 0 {
			return &Difference{Rank: r, Index: int(d[0]), Got: text(d[1], t), Want: text(d[2], t),
				Bound: math.Float64frombits(uint64(d[3]))}
		}
	}
	return nil
}

// agree says whether two elements are near enough, and how near they must be.
func agree(a, b unsafe.Pointer, t elem.Type, bound Bound) (most float64, ok bool) {
	if bitsOf(a, t) == bitsOf(b, t) {
		return 0, true
	}
	if unit(t) == 0 {
		return 0, false
	}
	x, y := float(a, t), float(b, t)
	if math.IsNaN(x) && math.IsNaN(y) {
		return 0, true
	}
	if bound == nil {
		return 0, false
	}
	most = bound(y)
	return most, math.Abs(x-y) <= most
}

// float is the value of a float.
func float(p unsafe.Pointer, t elem.Type) float64 {
	switch t {
	case elem.Float16:
		return float64((*elem.F16)(p).Float32())
	case elem.BFloat16:
		return float64((*elem.BF16)(p).Float32())
	case elem.Float32:
		return float64(*(*float32)(p))
	default:
		return *(*float64)(p)
	}
}

// bitsOf are the bits of an element; those of a signed integer are extended.
func bitsOf(p unsafe.Pointer, t elem.Type) int64 {
	switch t {
	case elem.Int8:
		return int64(*(*int8)(p))
	case elem.Uint8:
		return int64(*(*uint8)(p))
	case elem.Float16, elem.BFloat16:
		return int64(*(*uint16)(p))
	case elem.Int32:
		return int64(*(*int32)(p))
	case elem.Uint32, elem.Float32:
		return int64(*(*uint32)(p))
	default:
		return *(*int64)(p)
	}
}

func text(v int64, t elem.Type) string {
	switch {
	case t == elem.Uint64:
		return fmt.Sprint(uint64(v))
	case unit(t) == 0:
		return fmt.Sprint(v)
	default:
		return fmt.Sprint(float(unsafe.Pointer(&v), t)) // little-endian, as all that this runs on
	}
}
