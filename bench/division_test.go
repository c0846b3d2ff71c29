package main

import (
	"math"
	"slices"
	"testing"

	"lockstep/bench/measure"
)

// Every D x M x P with every mode is there once, plain data parallel first.
func TestDivisions(t *testing.T) {
	for ranks, want := range map[int]int{1: 4, 2: 12, 3: 12, 4: 24, 6: 36} {
		all := divisions(ranks)
		if len(all) != want || all[0] != (division{1, 1, "off"}) {
			t.Errorf("%d ranks: %d ways, the first %v, want %d", ranks, len(all), all[0], want)
		}
		for i, d := range all {
			if slices.Contains(all[:i], d) || ranks%(d.tensor*d.stages) != 0 {
				t.Errorf("%d ranks: %v", ranks, d)
			}
		}
	}
	if got, want := (division{2, 3, "gradients"}).flags(12),
		[]string{"--dp", "2", "--tp", "2", "--pp", "3", "--shard", "gradients"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestLargestDifference(t *testing.T) {
	losses := func(all ...float64) (steps []measure.TrainStep) {
		for _, x := range all {
			steps = append(steps, measure.TrainStep{Loss: x})
		}
		return steps
	}
	if got := largestDifference(losses(3, 2, 1), losses(3.25, 1.5, 1)); got != 0.5 {
		t.Errorf("%v, want 0.5", got)
	}
	if got := largestDifference(losses(3, math.NaN()), losses(3, 1)); !math.IsNaN(got) {
		t.Errorf("a loss that is no number differs by %v", got)
	}
	for peak, want := range map[int]float64{100: 0, 110: 0.1, 90: 0.1} {
		if got := (measure.TrainStep{Needs: 100, Peak: peak}).Unforeseen(); math.Abs(got-want) > 1e-12 {
			t.Errorf("%d of 100 bytes: %v, want %v", peak, got, want)
		}
	}
}
