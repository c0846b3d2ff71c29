package schedule

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// No other division has a faster slowest stage, or as fast a one and more even sums.
func TestBalance(t *testing.T) {
	for _, tc := range []struct {
		costs  []float64
		stages int
		want   []int
	}{
		{[]float64{1, 1, 1, 1}, 1, []int{4}},
		{[]float64{1, 1, 1, 1}, 2, []int{2, 4}},
		{[]float64{1, 1, 1, 1, 1}, 4, []int{1, 2, 3, 5}}, // any stage may have two; the first three are the first
		{[]float64{1, 1, 1, 1, 1, 4}, 2, []int{4, 6}},
		{[]float64{0, 0, 0}, 3, []int{1, 2, 3}},
		{[]float64{9, 1, 1, 1}, 3, []int{1, 2, 4}},
		{[]float64{5e307, 5e307, 5e307, 5e307}, 2, []int{2, 4}}, // the sum of all is no number
		{[]float64{1e308, 1e308, 1e308}, 2, []int{1, 3}},        // nor that of two
		{[]float64{1e-200, 1e-200, 1e-200, 1e-200}, 2, []int{2, 4}},
	} {
		got := Balance(tc.costs, tc.stages)
		if a, b := worth(tc.costs, got), worth(tc.costs, tc.want); slices.Compare(a[:], b[:]) != 0 {
			t.Errorf("%v in %d stages end at %v, worth %v; %v is worth %v", tc.costs, tc.stages, got, a, tc.want, b)
		}
		if got[0] == 0 || !slices.IsSorted(got) || len(slices.Compact(got)) != tc.stages {
			t.Errorf("%v: stages end at %v", tc.costs, got)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		costs := make([]float64, 1+rng.IntN(8))
		for i := range costs {
			costs[i] = float64(rng.IntN(10))
		}
		stages := 1 + rng.IntN(len(costs))
		got := worth(costs, Balance(costs, stages))
		divisions(len(costs), stages, nil, func(ends []int) {
			if w := worth(costs, ends); slices.Compare(w[:], got[:]) < 0 {
				t.Errorf("%v in %d stages: worth %v, but %v is worth %v", costs, stages, got, ends, w)
			}
		})
	}
	for _, bad := range []func(){
		func() { Balance([]float64{1}, 2) }, func() { Balance(nil, 0) },
		func() { Balance([]float64{math.NaN()}, 1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			bad()
		}()
	}
}

// worth is the largest sum of a stage, and the sum of the squares of all.
func worth(costs []float64, ends []int) (w [2]float64) {
	at := 0
	for _, end := range ends {
		sum := 0.0
		for ; at < end; at++ {
			sum += costs[at]
		}
		w[0], w[1] = max(w[0], sum), w[1]+sum*sum
	}
	return w
}

// divisions calls fn with every division of n layers between stages.
func divisions(n, stages int, before []int, fn func(ends []int)) {
	first := 0
	if len(before) > 0 {
		first = before[len(before)-1]
	}
	if stages == 1 {
		fn(append(slices.Clone(before), n))
		return
	}
	for end := first + 1; end <= n-stages+1; end++ {
		divisions(n, stages-1, append(slices.Clone(before), end), fn)
	}
}
