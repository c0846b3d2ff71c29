package trainer

import (
	"lockstep/spmd"
)

// Enqueue enqueues one step. Read returns its result. Steps go up by one from
// First. Every rank of c calls it.
func (t *Trainer) Enqueue(step int) error {
	r := t.results.of(step)
	if err := r.begin.Record(t.Stream); err != nil {
		return err
	}
	if err := t.Optimizer.Prepare(t.Stream, t.RateAt(step)); err != nil {
		return err
	}
	if err := t.order.enqueue(step); err != nil {
		return err
	}
	if err := spmd.Copy(t.Stream, r.totals, t.State.Totals); err != nil {
		return err
	}
	if err := spmd.Copy(t.Stream, r.norm, t.Optimizer.Norm); err != nil {
		return err
	}
	return r.end.Record(t.Stream)
}

// RateAt returns the learning rate of a step.
func (t *Trainer) RateAt(step int) float64 { return t.Rate.At(step) * t.Data.Growth.Rate(step) }

// update enqueues the end of a step: the loss of all ranks, which the update looks at, and the
// update.
func (t *Trainer) update() error {
	if t.tensor != nil {
		if err := t.tensor.finish(); err != nil {
			return err
		}
	}
	if err := spmd.AllReduce(t.all.On(t.Stream), t.State.Totals, t.State.Totals, spmd.Sum); err != nil {
		return err
	}
	if err := t.Optimizer.Apply(t.Stream); err != nil || t.scales == nil {
		return err
	}
	return t.scales.next(t.Optimizer.Gate)
}
