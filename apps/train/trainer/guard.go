package trainer

import (
	"fmt"
	"slices"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/text"
	"lockstep/spmd"
)

// Diverged is the error of a step whose loss or gradient norm is not finite.
type Diverged struct{ error }

// blame returns the error of a step whose loss or norm is not finite. It
// blocks. Every rank of c calls it.
func (t *Trainer) blame(step int, loss, norm float64) error {
	where, err := t.firstBad(step)
	if err != nil {
		return err
	}
	err = fmt.Errorf("step %d: loss %g, gradient norm %g: training has diverged, %s", step+1, loss, norm, where)
	if t.BadRow > 0 {
		err = fmt.Errorf("%w; %d steps before it are left out already", err, t.BadRow)
	}
	return Diverged{err}
}

// firstBad names the rank and the tensor with the first number of a step that is not finite.
//
// Each rank computes its part again, without the sum over the ranks. This works because the weights
// are unchanged: by the bad step, and by the next one unless bad steps are skipped.
func (t *Trainer) firstBad(step int) (string, error) {
	if err := t.Stream.Synchronize(); err != nil {
		return "", err
	}
	whole, _, _ := layout.Of(t.State.Cfg.Whole())
	beyond := len(whole)
	for _, look := range []struct {
		where string
		do    func() (int, error)
	}{{"weight", t.firstBadWeight}, {"gradient of", func() (int, error) { return t.firstBadGradient(step) }}} {
		found, err := look.do()
		if err != nil {
			return "", err
		}
		if found < len(t.State.Params) {
			found = slices.IndexFunc(whole, func(p layout.Param) bool { return p.Name == t.State.Params[found].Name })
		} else {
			found = beyond
		}
		all, err := text.GatherOne(t.World, t.all, int64(found))
		if err != nil {
			return "", err
		}
		for rank, at := range all {
			if int(at) < beyond {
				return fmt.Sprintf("rank %d has the first number that is not finite in the %s %s",
					rank, look.where, whole[at].Name), nil
			}
		}
	}
	none := "and no rank finds such a number in its weights, or in its gradients when it computes them again"
	if t.SkipBad > 0 { // the step after it may have changed the weights
		return none, nil
	}
	return none + ": a sum over them overflowed", nil
}

// firstBadWeight returns the index in Params of the first tensor with a weight that is not finite
// and that this rank updates, or len(Params). First means first in the backward pass.
func (t *Trainer) firstBadWeight() (int, error) {
	weights := t.arenas()[0]
	for i, p := range t.State.Params {
		_, own := t.State.Of(weights, p)
		if !weights.Shared { // others' are copies
			skip, _, n := t.State.Sharded.Own(p.Group, p.Off, p.Off+p.Len)
			own = own.Slice(skip, skip+n)
		}
		if bad, err := holdsBad(own); err != nil || bad {
			return i, err
		}
	}
	return len(t.State.Params), nil
}

// firstBadGradient computes this rank's part of a step's gradients again. It returns the
// index of the first gradient with a number that is not finite, or len(Params). It
// blocks. Every rank of c calls it.
func (t *Trainer) firstBadGradient(step int) (int, error) {
	first := len(t.State.Params)
	look := func(section int) error {
		if err := t.Stream.Synchronize(); err != nil {
			return err
		}
		for i, p := range t.State.Params[:first] {
			if !t.State.Completes(section, p) {
				continue
			}
			if bad, err := holdsBad(t.State.Gradient(p)); err != nil || bad {
				first = i
				return err
			}
		}
		return nil
	}
	if err := t.order.lookThrough(step, look); err != nil {
		return 0, err
	}
	return first, t.Stream.Synchronize()
}

// holdsBad reports whether a buffer holds a number that is not finite. It blocks.
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
