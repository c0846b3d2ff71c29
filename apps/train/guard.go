package main

import (
	_ "embed"
	"fmt"
	"math"

	"lockstep/spmd"
)

// A step whose loss or gradient norm is not finite changes nothing. The device decides:
// the host learns of it when the next step is enqueued already.

//go:embed guard.cu
var guardSource string

// bad says whether a step with this loss and norm is to change nothing.
func bad(loss, norm float64) bool { return !finite(loss) || !finite(norm) }

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

var judgeStepKernel = spmd.NewKernel("judge_step", guardSource, func(a spmd.Args) error {
	gate, hyper, counts := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), spmd.ArgSlice[int32](a, 2)
	norm, loss := spmd.ArgSlice[float32](a, 3)[0], spmd.ArgSlice[float64](a, 4)[0]
	wrong := bad(loss, float64(norm))
	if wrong {
		counts[1]++
	} else {
		counts[0]++
	}
	gate[0] = norm
	if wrong || a.I32(7) == 0 && counts[1] > 0 {
		gate[0] = float32(math.NaN())
	}
	for i := range 2 {
		hyper[1+i] = float32(1 / (1 - math.Pow(a.F64(5+i), float64(counts[0]))))
	}
	return nil
})

// judgeStep enqueues the decision on a step with the given norm and loss: gate becomes
// norm, or NaN where the step is to change nothing. counts is AdamW's; hyper receives
// the corrections of the moments after as many updates as were.
func judgeStep(s *spmd.Stream, gate, hyper spmd.Buffer[float32], counts spmd.Buffer[int32], norm spmd.Buffer[float32], loss spmd.Buffer[float64], cfg AdamConfig, skipBad bool) error {
	return judgeStepKernel.Launch(s, spmd.Cover1D(1, 1), gate.Arg(), hyper.Arg(), counts.Arg(), norm.Arg(), loss.Arg(),
		spmd.F64(cfg.Beta1), spmd.F64(cfg.Beta2), flag(skipBad))
}

// blame is the error of a step with this loss and norm, of which one is not finite. It
// blocks. Every rank of c calls it.
func (t *trainer) blame(step int, loss, norm float64) error {
	where, err := t.firstBad(step)
	if err != nil {
		return err
	}
	return fmt.Errorf("step %d: loss %g, gradient norm %g: training has diverged, %s; try a lower --lr, or --skip-bad-steps", step+1, loss, norm, where)
}

// firstBad says which rank had the first number that is not finite in a step, and in
// which tensor. Neither that step nor one after it has changed the weights, so each rank
// computes its part again, without the sum over the ranks.
func (t *trainer) firstBad(step int) (string, error) {
	if err := t.s.Synchronize(); err != nil {
		return "", err
	}
	found, err := t.firstBadIn(t.state.Weights)
	if err == nil && found < 0 {
		if err = t.replay(step); err == nil {
			if found, err = t.firstBadIn(t.state.Grads); found >= 0 {
				found += len(t.state.Params)
			}
		}
	}
	if err != nil {
		return "", err
	}
	all, err := gatherOne(t.w, t.c, int64(found))
	if err != nil {
		return "", err
	}
	for rank, at := range all {
		switch i := int(at) - len(t.state.Params); {
		case at < 0:
		case i < 0:
			return fmt.Sprintf("rank %d has the first number that is not finite in the weight %s", rank, t.state.Params[at].Name), nil
		default:
			return fmt.Sprintf("rank %d has the first number that is not finite in the gradient of %s", rank, t.state.Params[i].Name), nil
		}
	}
	return "and no rank finds such a number in its weights, or in its gradients when it computes them again: a sum over them overflowed", nil
}

// firstBadIn returns the index in Params of the first tensor of an arena, in the order of
// the backward pass, that holds a number that is not finite; -1 if none does.
func (t *trainer) firstBadIn(arena spmd.Buffer[float32]) (int, error) {
	var x []float32
	for i, p := range t.state.Params {
		if len(x) < p.Len {
			x = make([]float32, p.Len)
		}
		if err := arena.Slice(p.Off, p.Off+p.Len).CopyTo(x[:p.Len]); err != nil {
			return 0, err
		}
		for _, v := range x[:p.Len] {
			if v-v != 0 {
				return i, nil
			}
		}
	}
	return -1, nil
}

// replay computes this rank's part of the gradients of a step. It blocks.
func (t *trainer) replay(step int) error {
	err := t.passes(step, func(k microKind, batch Batch) error {
		return t.model.ForwardBackward(t.s, batch, t.lossScale(), k.first, nil)
	})
	if err != nil {
		return err
	}
	return t.s.Synchronize()
}
