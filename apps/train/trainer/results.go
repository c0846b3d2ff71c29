package trainer

import (
	"time"

	"lockstep/spmd"
)

// result has the numbers that a step leaves for the host. The host reads it when the next step is
// already enqueued, so that the device never waits for the host.
type result struct {
	totals     spmd.Buffer[float64] // (2), pinned: the loss; more than 0 if a rank was asked to end
	norm       spmd.Buffer[float32] // (1), pinned
	begin, end *spmd.Event
}

// results has the numbers that steps and validations leave for the host.
type results struct {
	steps   [2]result            // of the last two steps, by step number
	valLoss spmd.Buffer[float64] // (1), pinned
}

// of returns the result of a step.
func (x *results) of(step int) *result { return &x.steps[step%len(x.steps)] }

// open allocates them.
func (x *results) open(t *Trainer) (err error) {
	for i := range x.steps {
		r := x.of(i)
		if r.totals, err = spmd.AllocPinned[float64](t.World, 2); err != nil {
			return err
		}
		t.keep(r.totals.Free)
		if r.norm, err = spmd.AllocPinned[float32](t.World, 1); err != nil {
			return err
		}
		t.keep(r.norm.Free)
		for _, e := range []**spmd.Event{&r.begin, &r.end} {
			if *e, err = t.World.NewEvent(); err != nil {
				return err
			}
			t.keep((*e).Close)
		}
	}
	if x.valLoss, err = spmd.AllocPinned[float64](t.World, 1); err != nil {
		return err
	}
	t.keep(x.valLoss.Free)
	return nil
}

// AskToEnd makes the next step tell all ranks that this one is asked to end. Ended reports it
// once the step has been read.
func (t *Trainer) AskToEnd() error { return spmd.Fill(t.Stream, t.State.Totals.Slice(1, 2), 1) }

// Ended reports whether any rank had asked to end when the step was enqueued. The step is one of
// the last two, and was read. All ranks get the same answer.
func (t *Trainer) Ended(step int) bool { return t.results.of(step).totals.At(1) > 0 }

// Read waits for a step, one of the last two. It returns the loss before the update,
// the norm of the gradient before clipping, and the time of the step. Every rank of c
// calls it for the same step.
//
// If loss or norm is not finite the error is Diverged, unless such steps are skipped.
func (t *Trainer) Read(step int) (loss, norm float64, took time.Duration, err error) {
	r := t.results.of(step)
	if err := r.end.Synchronize(); err != nil {
		return 0, 0, 0, err
	}
	loss, norm = r.totals.At(0), float64(r.norm.At(0))
	switch {
	case !Bad(loss, norm):
		t.BadRow = 0
	case t.BadRow >= t.SkipBad:
		return loss, norm, 0, t.blame(step, loss, norm)
	default:
		t.BadRow++
	}
	took, err = r.end.Elapsed(r.begin)
	return loss, norm, took, err
}
