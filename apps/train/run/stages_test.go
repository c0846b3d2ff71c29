package run

import "testing"

// Ranks that divide layers are neighbours. apart finds the first group that a node does not hold.
func TestApart(t *testing.T) {
	for _, tc := range []struct {
		nodes []int64
		group int
		want  int
	}{
		{[]int64{0, 0, 1, 1}, 2, -1},
		{[]int64{0, 1, 0, 1}, 2, 0}, // placed in turn
		{[]int64{0, 0, 0, 1, 1, 1}, 2, 2},
		{[]int64{0, 0, 0, 1, 1, 1}, 3, -1},
		{[]int64{0, 0, 1, 1}, 4, 0},
		{[]int64{0, 1, 2}, 1, -1},
	} {
		if got := apart(tc.nodes, tc.group); got != tc.want {
			t.Errorf("--tp %d on nodes %v: %d, want %d", tc.group, tc.nodes, got, tc.want)
		}
	}
}
