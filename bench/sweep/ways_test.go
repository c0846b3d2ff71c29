package sweep

import (
	"math"
	"testing"

	"lockstep/bench/measure"
)

// A way is taken where it is faster, over one size that was measured badly, and not for one that
// was.
func TestBestSpan(t *testing.T) {
	times := func(graph, calls [6]float64) (all []measure.Measured) {
		for i := range graph {
			for g, us := range [2]float64{calls[i], graph[i]} {
				m := measure.Measured{Kind: measure.Kind{Bytes: 1 << i, Graph: g == 1}}
				m.MedianUS = us
				all = append(all, m)
			}
		}
		return all
	}
	even := [6]float64{10, 10, 10, 10, 10, 10}
	slow := [6]float64{30, 30, 30, 30, 30, 30}
	for _, tc := range []struct {
		name         string
		graph, calls [6]float64
		from, to     int
	}{
		{"never", slow, slow, 0, 0},
		{"the same", even, even, 0, 0},
		{"the middle", [6]float64{20, 20, 5, 5, 20, 20}, even, 4, 8},
		{"from a size on", [6]float64{20, 20, 20, 5, 5, 5}, even, 8, math.MaxInt},
		{"one size of many badly measured", [6]float64{20, 5, 5, 12, 5, 20}, even, 2, 16},
		{"one size by accident", [6]float64{9, 20, 5, 5, 20, 20}, even, 4, 8},
		{"a little slower in a graph, much faster by calls", [6]float64{11, 11, 11, 20, 20, 20},
			[6]float64{5, 5, 5, 20, 20, 20}, 1, 4},
	} {
		if from, to := bestSpan(times(tc.graph, tc.calls), times(even, even), times(slow, slow)); from != tc.from ||
			to != tc.to {
			t.Errorf("%s: from %d to %d, want %d to %d", tc.name, from, to, tc.from, tc.to)
		}
	}
}
