package measure

import (
	"fmt"
	"slices"
	"strings"
)

// HostOverhead is how much more host time than in C a call may take, in us.
const HostOverhead = 0.5

// Numbers returns a text of the given length that a model can learn.
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
}

const (
	TrainSteps   = 12
	TrainDiscard = 2 // pages of the moments, threads of the BLAS
)

// Steps returns the n steps that train printed as JSON.
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
