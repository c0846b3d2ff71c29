package verify

import (
	"errors"
	"math"
	"testing"

	"lockstep/internal/commtest"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/transport/inproc"
)

func TestCompare(t *testing.T) {
	onRanks(t, func(t *testing.T, c *inproc.Comm) {
		last := c.Size() - 1
		compared[int8](t, c, nil, []int8{1, 2, 3}, []int8{1, 2, 3}, nil)
		compared(t, c, nil, []int64{1, math.MinInt64}, []int64{1, math.MaxInt64},
			&Difference{last, 1, "-9223372036854775808", "9223372036854775807", 0})
		compared(t, c, nil, []uint64{math.MaxUint64}, []uint64{1}, &Difference{last, 0, "18446744073709551615", "1", 0})
		compared(t, c, nil, []float32{1, 1, 1.5}, []float32{1, 1, 1.25}, &Difference{last, 2, "1.5", "1.25", 0})
		nan := float32(math.NaN())
		compared(t, c, nil, []float32{nan, 0}, []float32{-nan, 0}, nil)
		compared(t, c, nil, []float32{nan}, []float32{0}, &Difference{last, 0, "NaN", "0", 0})
		compared(t, c, nil, []elem.BF16{elem.ToBF16(2)}, []elem.BF16{elem.ToBF16(-2)},
			&Difference{last, 0, "2", "-2", 0})
		inf := math.Inf(1)
		wide := func(float64) float64 { return 0.5 }
		compared(t, c, wide, []float64{1, inf, 2}, []float64{1.5, inf, 2.51}, &Difference{last, 2, "2", "2.51", 0.5})
		compared(t, c, wide, []float64{nan64, inf}, []float64{nan64, 1}, &Difference{last, 1, "+Inf", "1", 0.5})

		// the part that differs
		compared(t, c, nil, []complex64{1, 2 + 3i}, []complex64{1, 2 + 4i}, &Difference{last, 1, "3", "4", 0})
		compared(t, c, wide, []complex128{1i, 2 + 3i}, []complex128{1i, 2.5 + 2.5i}, nil)
		z := []complex128{complex(float64(c.Rank()), -7)}
		if m, err := largest(c, commtest.Ptr(z), 1, elem.Complex128); err != nil || m != 7 {
			t.Fatalf("the largest part is %v, %v", m, err)
		}

		x := []float32{float32(c.Rank()), -2.5, float32(inf), nan}
		if m, err := largest(c, commtest.Ptr(x), len(x), elem.Float32); err != nil || m != 2.5 {
			t.Fatalf("the largest is %v, %v", m, err)
		}
	})
}

var nan64 = math.NaN()

// onRanks runs fn on 1 and 3 ranks, which are goroutines.
func onRanks(t *testing.T, fn func(t *testing.T, c *inproc.Comm)) {
	t.Helper()
	for _, n := range []int{1, 3} {
		commtest.Must(t, inproc.Run(n, func(c *inproc.Comm) error { fn(t, c); return nil }))
	}
}

// compared has the last rank compare got, and the others the right values.
func compared[T elem.Elem](t *testing.T, c *inproc.Comm, bound Bound, got, want []T, expect *Difference) {
	t.Helper()
	mine := got
	if c.Rank() != c.Size()-1 {
		mine = want
	}
	err := compare(c, commtest.Ptr(mine), commtest.Ptr(want), len(want), elem.Of[T](), bound)
	var d *Difference
	if errors.As(err, &d); (err == nil) != (expect == nil) || d != nil && *d != *expect {
		t.Fatalf("rank %d: %v, want %v", c.Rank(), err, expect)
	}
}

// The test sums and multiplies in both orders numbers that cancel, and others. It finds one wrong
// bit too many.
func TestReductionBound(t *testing.T) {
	for _, op := range []elem.Op{elem.Min, elem.Max} {
		if ReductionBound(elem.Float32, op, 4, 1) != nil || ReductionBound(elem.Int32, elem.Sum, 4, 1) != nil {
			t.Fatalf("%v has a bound", op)
		}
	}
	in := []float32{1, 0x1p-24, 0x1p-24, -1 + 0x1p-20}
	forth, back := float32(0), float32(0)
	for i := range in {
		forth += in[i]
		back += in[len(in)-1-i]
	}
	if forth == back {
		t.Fatal("the order does not matter")
	}
	bound := ReductionBound(elem.Float32, elem.Sum, len(in), 1)
	if got := math.Abs(float64(forth - back)); got > bound(float64(back)) {
		t.Errorf("sums differ by %g, bound %g", got, bound(float64(back)))
	}
	for _, tc := range []struct {
		t     elem.Type
		op    elem.Op
		want  float64
		wrong float64 // the least relative error to be found
	}{
		{elem.Float32, elem.Sum, 4, 1e-5}, {elem.Float64, elem.Sum, 4, 1e-13}, {elem.Float16, elem.Avg, 1, 0.01},
		{elem.BFloat16, elem.Prod, 1e-9, 0.1}, {elem.Float32, elem.Prod, 1e9, 1e-5},
	} {
		if b := ReductionBound(tc.t, tc.op, 4, 1)(tc.want); b <= 0 || b > tc.wrong*tc.want {
			t.Errorf("%v of %v: bound %g", tc.op, tc.t, b)
		}
	}
}
