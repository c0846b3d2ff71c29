package main

import (
	"math"
	"testing"

	"lockstep/bench/measure"
)

// Two runs of each side give the right rows. A side without a loss has no time for it. Tokens a
// second are those between the validations of the last run.
func TestTTLRows(t *testing.T) {
	b := ttlBench{model: "modern", batch: 16, losses: []float64{4, 3, 2}}
	b.Set, b.Group, b.GPUs = measure.GPUSet, "ttl", []string{"a GPU"}
	ours := [][]reached{{{2, 5, 100}, {4, 3, 200}}, {{3, 3.5, 150}, {7, 1.5, 550}}}
	theirs := [][]reached{{{4, 4.5, 100}, {8, 3.5, 200}}, {{6, 3, 150}, {10, 2.5, 470}}}
	b.rows(ours, theirs)
	want := []struct {
		unit               string
		ours, theirs, goal float64
		met                bool
	}{
		{"tok/s", 100, 80, 1 / 1.3, false},
		{"s", 3, 6, 0.75, true},
		{"s", 4, 6, 0.75, true},
	}
	if len(b.Rows) != len(want) {
		t.Fatalf("%d rows, want %d: %+v", len(b.Rows), len(want), b.Rows)
	}
	for i, w := range want {
		r := b.Rows[i]
		if r.Unit != w.unit || math.Abs(r.Ours-w.ours) > 1e-9 || math.Abs(*r.Theirs-w.theirs) > 1e-9 ||
			math.Abs(r.Goal-w.goal) > 1e-9 || r.Met != w.met {
			t.Errorf("row %d is %+v with theirs %v, want %+v", i, r, *r.Theirs, w)
		}
	}
}

// The first run to reach a loss counts, in a line between two validations.
func TestSecondsTo(t *testing.T) {
	runs := [][]reached{
		{{Seconds: 2, Loss: 6}, {Seconds: 4, Loss: 4}, {Seconds: 6, Loss: 3}},
		{{Seconds: 1, Loss: 5}, {Seconds: 2, Loss: 5.5}, {Seconds: 8, Loss: 2.5}},
	}
	for _, c := range []struct{ loss, want float64 }{
		{7, 1}, {6, 1}, {5, 1}, {4.5, 3.5}, {4, 4}, {3.5, 5}, {3, 6}, {2.8, 7.4}, {2, math.Inf(1)},
	} {
		if got := secondsTo(c.loss, runs); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("to %v: %v s, want %v", c.loss, got, c.want)
		}
	}
	if got := secondsTo(1, nil); !math.IsInf(got, 1) {
		t.Errorf("without runs: %v s", got)
	}
}
