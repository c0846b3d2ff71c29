package vector

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// found compares ArgMin and ArgMax with a search of the elements in order, of the rank's part and
// of all.
func found[T Number](t *testing.T, w *spmd.World, all []T) {
	t.Helper()
	s := spmdtest.Stream(t, w, "arg")
	n := len(all) / w.Size()
	from := n * w.Rank()
	whole := of(t, w, append([]T{9}, all[from:from+n]...))
	x := whole.Slice(1, n+1)
	best, at := of(t, w, make([]T, 4)), of(t, w, make([]int64, 4))
	c := w.Comm().On(s)
	for i, find := range []func(best spmd.Buffer[T], at spmd.Buffer[int64]) error{
		func(best spmd.Buffer[T], at spmd.Buffer[int64]) error { return ArgMin(s, best, at, x) },
		func(best spmd.Buffer[T], at spmd.Buffer[int64]) error { return ArgMax(s, best, at, x) },
		func(best spmd.Buffer[T], at spmd.Buffer[int64]) error { return ArgMinOver(c, s, best, at, x, from) },
		func(best spmd.Buffer[T], at spmd.Buffer[int64]) error { return ArgMaxOver(c, s, best, at, x, from) },
	} {
		spmdtest.Must(t, find(best.Slice(i, i+1), at.Slice(i, i+1)))
	}
	spmdtest.Must(t, s.Synchronize())
	values, places := back(t, best), back(t, at)
	for i, part := range [][]T{all[from : from+n], all[from : from+n], all, all} {
		want := -1
		for k, v := range part {
			if want < 0 || v == v && part[want] == part[want] && min(v, part[want]) != part[want] && i%2 == 0 ||
				v == v && part[want] == part[want] && max(v, part[want]) != part[want] && i%2 == 1 ||
				v != v && part[want] == part[want] {
				want = k
			}
		}
		if int(places[i]) != want || want >= 0 && values[i] != part[want] && part[want] == part[want] {
			t.Errorf("result %d of %d %T on rank %d on %s: %v at %d, want index %d", i, len(part),
				part[:0], w.Rank(), w.Device(), values[i], places[i], want)
		}
	}
}

func TestArg(t *testing.T) {
	everywhere(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		found(t, w, []int32{})
		found(t, w, slices.Repeat([]uint32{7}, 3*w.Size())) // the first of equal ones
		for _, n := range []int{1, 1023, 9001} {
			found(t, w, values[int32](n*w.Size(), 1))
			found(t, w, values[uint64](n*w.Size(), 2))
			found(t, w, values[float32](n*w.Size(), 3))
		}
		found(t, w, values[uint32](5000*w.Size(), 4))
		found(t, w, values[int64](5000*w.Size(), 5))
		x := values[float64](6000*w.Size(), 6)
		found(t, w, x)
		x[5000], x[5500] = math.NaN(), math.NaN()
		found(t, w, x)
		s := spmdtest.Stream(t, w, "zeros")
		best, at, zeros := of(t, w, []float64{1, 1}), of(t, w, []int64{0, 0}),
			of(t, w, []float64{0, math.Copysign(0, -1), 0})
		spmdtest.Must(t, ArgMin(s, best.Slice(0, 1), at.Slice(0, 1), zeros))
		spmdtest.Must(t, ArgMaxOver(w.Comm().On(s), s, best.Slice(1, 2), at.Slice(1, 2), zeros.Slice(1, 3), 3*w.Rank()))
		spmdtest.Must(t, s.Synchronize())
		if v := back(t, best); at.At(0) != 1 || at.At(1) != 1 || !math.Signbit(v[0]) || math.Signbit(v[1]) {
			t.Errorf("of zeros the smallest is %v at %d, the largest %v at %d", v[0], at.At(0), v[1], at.At(1))
		}
	})
}

func selected[T Number](t *testing.T, w *spmd.World, n int, some func(i int) bool) {
	t.Helper()
	s := spmdtest.Stream(t, w, "select")
	x, keep := values[T](n+1, 3), make([]uint8, n+1)
	var want []T
	for i := range keep {
		if i > 0 && some(i) {
			keep[i] = uint8(i | 1)
			want = append(want, x[i])
		}
	}
	bx, dst, count := of(t, w, x), spmdtest.Alloc[T](t, w, n), of(t, w, []int64{-5})
	flags := of(t, w, keep).Slice(1, n+1)
	check := func(got []T) {
		t.Helper()
		if k := count.At(0); int(k) != len(want) || !slices.Equal(got[:k], want) {
			t.Errorf("of %d %T on %s %d are selected, want %d", n, x[:0], w.Device(), k, len(want))
		}
	}
	spmdtest.Must(t, Select(s, dst, count, bx.Slice(1, n+1), flags))
	spmdtest.Must(t, s.Synchronize())
	check(back(t, dst))
	spmdtest.Must(t, Select(s, bx.Slice(1, n+1), count, bx.Slice(1, n+1), flags))
	spmdtest.Must(t, s.Synchronize())
	check(back(t, bx)[1:])
}

func TestSelect(t *testing.T) {
	everywhere(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		selected[float32](t, w, 0, nil)
		selected[float32](t, w, 10_000, func(i int) bool { return i%3 == 0 || i > 9000 })
		selected[uint32](t, w, 4097, func(int) bool { return true })
		selected[int64](t, w, 5000, func(i int) bool { return i*i%7 < 3 })
		selected[float64](t, w, 2048, func(i int) bool { return i == 2048 })
	})
}

func counted[T Number](t *testing.T, w *spmd.World, n, bins int, lo, hi float64) {
	t.Helper()
	s := spmdtest.Stream(t, w, "histogram")
	x := values[T](n, 8)
	counts := of(t, w, slices.Repeat([]int64{99}, bins))
	spmdtest.Must(t, Histogram(s, counts, of(t, w, x), lo, hi))
	spmdtest.Must(t, s.Synchronize())
	want := make([]int64, bins)
	for _, v := range x {
		for k := bins - 1; k >= 0; k-- { // by the edges: of whole numbers, they are exact
			if v := float64(v); v <= hi && v >= lo+float64(k)*(hi-lo)/float64(bins) {
				want[k]++
				break
			}
		}
	}
	if got := back(t, counts); !slices.Equal(got, want) {
		t.Errorf("%d %T on %s in %d bins from %v to %v: %v, want %v", n, x[:0], w.Device(), bins, lo, hi, got, want)
	}
}

func TestHistogram(t *testing.T) {
	everywhere(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		counted[int32](t, w, 10_000, 16, -80, 80)
		counted[uint32](t, w, 1000, 1, 0, 50)
		counted[float32](t, w, 0, 3, 0, 1)
		counted[float32](t, w, 5001, 10, -50, 50)
		counted[float64](t, w, 3000, 20_000, 0, 100_000) // more than a block has room for
		counted[uint64](t, w, 999, 128, 0, 64)
		counted[int64](t, w, 999, 4, -16, 16)
		bins(t, w, []float64{math.NaN(), math.Inf(1), 0, 1, 2, 2.1, math.Inf(-1), -0.1}, 0, 2, 1, 2)
		bins(t, w, []float32{float32(math.Inf(-1)), -1, 1, float32(math.Inf(1))}, -1e300, 1e300, 1, 1)
		// NumPy's edges are k 0.1, and three of them are above k/10; in float32 none is.
		tenths, single := make([]float64, 11), make([]float32, 11)
		for i := range tenths {
			tenths[i], single[i] = float64(i)/10, float32(i)/10
		}
		bins(t, w, tenths, 0, 1, 1, 1, 2, 0, 1, 2, 1, 0, 1, 2)
		bins(t, w, single, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2)
		// Three of the least numbers in ten bins: the edges are 0 0 1 1 1 2 2 2 2 3 3 of them.
		tiny := []float64{0, 5e-324, 1e-323, 1.5e-323}
		bins(t, w, tiny, 0, 1.5e-323, 1, 1, 2)
		bins(t, w, tiny, 0, 1.5e-323, 0, 1, 0, 0, 1, 0, 0, 1, 0, 1)
		bins(t, w, []float64{1, 1 + 0x1p-52}, 1, 1+0x1p-52, 0, 1, 0, 1)
		bins(t, w, []float32{1 - 0x1p-24, 1, 1 + 0x1p-23}, 1+1e-12, 1+2e-12, 0, 1, 0, 0) // all edges are 1
	})
}

func bins[T Number](t *testing.T, w *spmd.World, x []T, lo, hi float64, want ...int64) {
	t.Helper()
	s := spmdtest.Stream(t, w, "bins")
	counts := of(t, w, slices.Repeat([]int64{7}, len(want)))
	spmdtest.Must(t, Histogram(s, counts, of(t, w, x), lo, hi))
	spmdtest.Must(t, s.Synchronize())
	if got := back(t, counts); !slices.Equal(got, want) {
		t.Errorf("%v on %s from %v to %v: %v, want %v", x, w.Device(), lo, hi, got, want)
	}
}

// Value waits for a result, and asks for memory the first time only.
func TestValue(t *testing.T) {
	spmdtest.RunInProcess(t, []int{3}, func(t *testing.T, w *spmd.World) {
		s := spmdtest.Stream(t, w, "s")
		x := of(t, w, []int64{1, 2, int64(w.Rank())})
		for range 3 {
			sum, err := Value(s, func(dst spmd.Buffer[int64]) error { return SumOver(w.Comm().On(s), s, dst, x) })
			if err != nil || sum != 12 {
				t.Errorf("the sum is %d, %v", sum, err)
			}
		}
		fails := fmt.Errorf("no")
		if _, err := Value(s, func(spmd.Buffer[float32]) error { return fails }); err != fails {
			t.Errorf("%v", err)
		}
	})
}

func TestRefused(t *testing.T) {
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := spmdtest.Stream(t, w, "s")
		x, at, flags := of(t, w, make([]float32, 8)), of(t, w, make([]int64, 2)), of(t, w, make([]uint8, 8))
		one, first := x.Slice(0, 1), at.Slice(0, 1)
		for what, err := range map[string]error{
			"Scan: vectors of 3 and 8":                Scan(s, x.Slice(0, 3), x),
			"ScanOver: before has 2 elements":         ScanOver(w.Comm().On(s), s, x, x, x.Slice(0, 2)),
			"ArgMin: best has 8 elements, the result": ArgMin(s, x, first, x),
			"ArgMax: at has 2 elements, the result":   ArgMax(s, one, at, x),
			"Select: 7 flags of 8 elements":           Select(s, x, first, x, flags.Slice(0, 7)),
			"Select: count has 2 elements":            Select(s, x, at, x, flags),
			"Histogram: 2 bins from 1 to 1":           Histogram(s, at, x, 1, 1),
			"Histogram: 0 bins from 0 to 1":           Histogram(s, at.Slice(0, 0), x, 0, 1),
			"Histogram: 2 bins from 0 to NaN":         Histogram(s, at, x, 0, math.NaN()),
		} {
			if err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "select_test.go:") {
				t.Errorf("%v, want %q", err, what)
			}
		}
	})
}
