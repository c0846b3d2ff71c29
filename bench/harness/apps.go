package harness

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// HostOverhead is how much more of the host's time than C's a call may cost, in us.
const HostOverhead = 0.5

// Numbers is text of the given length in which there is something to learn.
func Numbers(length int) string {
	var b strings.Builder
	for i := 1; b.Len() < length; i++ {
		fmt.Fprintln(&b, i, "times", i, "is", i*i)
	}
	return b.String()
}

// TrainStep is a line of train's JSON.
type TrainStep struct {
	Summary   bool
	Step      int
	Ranks     int
	Tokens    int // learned from so far
	MS        float64
	TokS      float64 `json:"tok_s"`
	Loss      float64
	LR        float64
	LossFirst float64 `json:"loss_first"`
	LossLast  float64 `json:"loss_last"`
	ValLoss   float64 `json:"val_loss"`
	Needs     int     `json:"needs_bytes"`
	Peak      int     `json:"peak_bytes"`
}

// Unforeseen is by how much a run's buffers differ from what it has told of before, as a part of
// that, by the line with its summary.
func (s TrainStep) Unforeseen() float64 {
	return math.Abs(float64(s.Peak)/float64(s.Needs) - 1)
}

const (
	TrainSteps   = 12
	TrainDiscard = 2 // pages of the moments, threads of the BLAS
)

// Steps are the steps that train printed as JSON, of which there are to be n.
func Steps(out string, n int) ([]TrainStep, error) {
	all, err := Lines[TrainStep](out)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(s TrainStep) bool { return s.Summary })
	if len(all) != n {
		return nil, fmt.Errorf("train printed %d steps, want %d, in %q", len(all), n, out)
	}
	return all, nil
}
