package train

import (
	"math"
	"testing"

	"lockstep/bench/harness"
)

// Which rows two runs of each side give: a loss counts as reached by the fastest, in a line between two validations; one that a
// side has not reached has no row; tokens a second are those between the validations of the last run.
func TestTTLRows(t *testing.T) {
	b := ttlBench{model: "modern", batch: 16, losses: []float64{4, 3, 2}}
	b.Set, b.Group, b.GPUs = harness.GPUSet, "ttl", []string{"a GPU"}
	ours := [][]reached{{{2, 5, 100}, {4, 3, 200}}, {{3, 3.5, 150}, {7, 1.5, 550}}}
	theirs := [][]reached{{{4, 4.5, 100}, {8, 3.5, 200}}, {{6, 3, 150}, {10, 2.5, 470}}}
	b.rows(ours, theirs)
	want := []struct {
		unit               string
		ours, theirs, goal float64
		met                bool
	}{
		{"tok/s", 100, 80, 1 / 1.3, false},
		{"s", 3, 6, 0.75, true}, // to 4: half the way from 5 to 3; by theirs half the way from 4.5 to 3.5, as soon as the other
		{"s", 4, 6, 0.75, true},
	}
	if len(b.Rows) != len(want) {
		t.Fatalf("%d rows, want %d: %+v", len(b.Rows), len(want), b.Rows)
	}
	for i, w := range want {
		r := b.Rows[i]
		if r.Unit != w.unit || math.Abs(r.Ours-w.ours) > 1e-9 || math.Abs(*r.Theirs-w.theirs) > 1e-9 || math.Abs(r.Goal-w.goal) > 1e-9 || r.Met != w.met {
			t.Errorf("row %d is %+v with theirs %v, want %+v", i, r, *r.Theirs, w)
		}
	}
}
