package main

import (
	"math"
	"testing"
)

// The difference of the last losses counts, with its sign; those before it do not.
func TestLossRow(t *testing.T) {
	l := lossBench{model: "gpt2", batch: 8, seq: 1024, steps: 300}
	l.group, l.gpus = &group{set: gpuSet, name: "loss"}, []string{"a GPU"}
	ours, theirs := make([]timedStep, 300), make([]step, 300)
	for i := range ours {
		theirs[i].Loss = 3
		ours[i].Loss = 5 // in the steps that do not count
		switch {
		case i >= 250:
			ours[i].Loss = 3.03
		case i >= 200:
			ours[i].Loss = 2.99
		}
	}
	for _, tc := range []struct {
		flags string
		goal  float64
	}{{"", 0.01}, {"--fp8=all", 0.02}} {
		if err := l.rowOf(tc.flags, ours, theirs); err != nil {
			t.Fatal(err)
		}
		r := l.rows[len(l.rows)-1]
		for _, x := range []struct{ got, want float64 }{{r.Ours, 0.01}, {r.Parts["mean_of_sizes"], 0.02}, {r.Parts["first"], 2}, {r.Parts["pytorch"], 3}, {r.Goal, tc.goal}} {
			if math.Abs(x.got-x.want) > 1e-9 {
				t.Errorf("%q: %v, want %v: %+v", tc.flags, x.got, x.want, r)
			}
		}
	}
	if err := l.rowOf("", ours[1:], theirs); err == nil {
		t.Error("299 losses beside 300 are taken")
	}
}
