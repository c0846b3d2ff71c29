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
	none := len(t.state.Params)
	for _, look := range []struct {
		where string
		do    func() (int, error)
	}{{"weight", t.firstBadWeight}, {"gradient of", func() (int, error) { return t.firstBadGradient(step) }}} {
		found, err := look.do()
		if err != nil {
			return "", err
		}
		all, err := gatherOne(t.w, t.c, int64(found))
		if err != nil {
			return "", err
		}
		for rank, at := range all {
			if int(at) < none {
				return fmt.Sprintf("rank %d has the first number that is not finite in the %s %s", rank, look.where, t.state.Params[at].Name), nil
			}
		}
	}
	return "and no rank finds such a number in its weights, or in its gradients when it computes them again: a sum over them overflowed", nil
}

// firstBadWeight returns the index in Params of the first tensor, in the order of the backward
// pass, of which this rank updates a weight that is not finite; len(Params) if there is none.
func (t *trainer) firstBadWeight() (int, error) {
	weights := t.arenas()[0]
	for i, p := range t.state.Params {
		_, own := t.state.of(weights, p)
		if t.sharder != nil && !weights.shared { // others' are copies
			skip, _, n := t.state.sharded.Own(p.Group, p.Off, p.Off+p.Len)
			own = own.Slice(skip, skip+n)
		}
		if bad, err := holdsBad(own); err != nil || bad {
			return i, err
		}
	}
	return len(t.state.Params), nil
}

// firstBadGradient computes this rank's part of a step's gradients again, and returns the
// index of the first that holds a number that is not finite; len(Params) if none does. It
// blocks. Every rank of c calls it.
func (t *trainer) firstBadGradient(step int) (int, error) {
	first := len(t.state.Params)
	look := func(section int) error {
		if err := t.s.Synchronize(); err != nil {
			return err
		}
		for i, p := range t.state.Params[:first] {
			if !t.state.completes(section, p) {
				continue
			}
			if bad, err := holdsBad(t.state.gradient(p)); err != nil || bad {
				first = i
				return err
			}
		}
		return nil
	}
	err := t.passes(step, func(k microKind, batch Batch) error {
		commands := func() error { return t.model.ForwardBackward(t.s, batch, t.scaleOf(k), k.first, look) }
		if x := t.sharder; x != nil {
			return x.around(t.s, x.training, k.first, false, commands)
		}
		return commands()
	})
	if err != nil {
		return 0, err
	}
	return first, t.s.Synchronize()
}

// holdsBad says whether a buffer holds a number that is not finite. It blocks.
func holdsBad(b spmd.Buffer[float32]) (bool, error) {
	x := make([]float32, b.Len())
	if err := b.CopyTo(x); err != nil {
		return false, err
	}
	for _, v := range x {
		if v-v != 0 {
			return true, nil
		}
	}
	return false, nil
}
