package schedule

import (
	"fmt"
	"math"
	"slices"
)

// Balance divides layers between the stages of a pipeline. Each stage takes at least one layer, and
// its layers follow each other. The slowest stage takes as little time as possible; among such
// divisions Balance takes the one with the most even sums.
//
// costs are the layers' times, in any unit. Work of a first or last stage beside layers belongs to
// the first or last of them. Balance returns where each stage ends: stage k has the layers from the
// end of the one before, or 0, to below ends[k]. It panics if there are fewer layers than stages,
// no stage, or a time that is not a number of at least 0.
func Balance(costs []float64, stages int) (ends []int) {
	n := len(costs)
	if stages < 1 || n < stages {
		panic(fmt.Sprintf("schedule: %d layers for %d stages", n, stages))
	}
	for i, c := range costs {
		if !(c >= 0) || math.IsInf(c, 1) {
			panic(fmt.Sprintf("schedule: layer %d takes the time %g", i, c))
		}
	}
	_, most := math.Frexp(slices.Max(costs)) // in a unit in which squares of sums are numbers
	sums := make([]float64, n+1)             // of the layers before
	for i, c := range costs {
		sums[i+1] = sums[i] + math.Ldexp(c, -most)
	}
	slowest, _ := divide(sums, stages, math.Max)
	_, begins := divide(sums, stages, func(before, sum float64) float64 {
		if sum > slowest {
			return math.Inf(1)
		}
		return before + sum*sum
	})
	ends = make([]int, stages)
	for k, j := stages, n; k > 0; k-- {
		ends[k-1] = j
		j = begins[k][j]
	}
	return ends
}

// divide returns the least value of a division of the layers between the stages. It also returns
// where stage k of 1, 2, ... begins in the best division that ends before layer j: begins[k][j].
// join makes the value of a division from that without the last stage, and the time of this one.
func divide(sums []float64, stages int, join func(before, sum float64) float64) (least float64, begins [][]int) {
	n := len(sums) - 1
	values := make([][]float64, stages+1) // as begins
	begins = make([][]int, stages+1)
	for k := range values {
		values[k], begins[k] = make([]float64, n+1), make([]int, n+1)
		for j := range values[k] {
			values[k][j] = math.Inf(1)
			for i := k - 1; k > 0 && i < j; i++ {
				if v := join(values[k-1][i], sums[j]-sums[i]); v < values[k][j] {
					values[k][j], begins[k][j] = v, i
				}
			}
		}
		if k == 0 {
			values[0][0] = 0
		}
	}
	return values[stages][n], begins
}
