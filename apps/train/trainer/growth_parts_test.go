package trainer

import (
	"fmt"
	"math"
	"testing"
)

// Steps take twice as many sequences from part to part. Before is the sum over the earlier steps.
func TestGrowthParts(t *testing.T) {
	for _, c := range []struct {
		g    Growth
		want string
	}{
		{Growth{0, 6, 4}, "[6 6 6 6 6]"},
		{Growth{6, 6, 4}, "[6 6 6 6 6]"},
		{Growth{2, 8, 7}, "[2 2 2 4 4 8 8 8]"},
		{Growth{3, 8, 4}, "[3 3 6 8 8]"},
		{Growth{1, 64, 2}, "[1 8 64]"}, // parts without a step
	} {
		var got []int
		before := 0
		for step := range c.g.Steps + 1 {
			if n := c.g.Before(step); n != before {
				t.Errorf("%v: %d sequences before step %d, want %d", c.g, n, step, before)
			}
			n := c.g.At(step)
			if want := math.Sqrt(float64(n) / float64(c.g.Last)); c.g.Rate(step) != want {
				t.Errorf("%v: step %d has %v of the rate, want %v", c.g, step, c.g.Rate(step), want)
			}
			got, before = append(got, n), before+n
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%v: %v, want %v", c.g, got, c.want)
		}
	}
}
