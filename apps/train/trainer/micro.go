package trainer

import (
	"iter"

	"lockstep/spmd"
)

// microKind is a kind of micro-step. All micro-steps of a kind enqueue the same commands on the
// same memory, so that one graph can replace them.
type microKind struct {
	b           int  // sequences
	first, last bool // of its step
	idle        bool // counts nothing: other ranks have a micro-step more than this one
	of          int  // sequences of the step, over all ranks
}

// micro yields the micro-batches of this rank's part of n sequences: where each sequence starts. It
// yields the same slice each time, so use one before asking for the next.
func (t *Trainer) micro(n int, start func(i int) int) iter.Seq[[]int] {
	return func(yield func([]int) bool) {
		part := spmd.ShardOf(n, t.c.Rank(), t.c.Size())
		starts := make([]int, 0, min(t.Batch, max(1, part.Len))) // --batch may be huge
		for k := range t.microSteps(n) {
			starts = starts[:0]
			for i := k * t.Batch; i < min((k+1)*t.Batch, part.Len); i++ {
				starts = append(starts, start(part.Off+i))
			}
			if t.idle(n, k) {
				starts = append(starts, start(min(part.Off, n-1))) // any will do
			}
			if !yield(starts) {
				return
			}
		}
	}
}

// microSteps returns how many micro-batches micro yields. If every micro-step concerns all
// ranks, all have the same number.
func (t *Trainer) microSteps(n int) int {
	if t.Config.Model.Shard.ScattersGrads() {
		return t.microStepsOf(n, 0) // which has the largest part
	}
	return t.microStepsOf(n, t.c.Rank())
}

// microStepsOf returns the number of micro-steps for a rank's own part.
func (t *Trainer) microStepsOf(n, rank int) int {
	return (spmd.ShardOf(n, rank, t.c.Size()).Len + t.Batch - 1) / t.Batch
}

// idle reports whether this rank takes part in a micro-step only because others do. Its loss then
// has the scale 0.
func (t *Trainer) idle(n, micro int) bool { return micro >= t.microStepsOf(n, t.c.Rank()) }

// scaleOf returns the scale of the loss in a micro-step.
func (t *Trainer) scaleOf(k microKind) float32 {
	if k.idle {
		return 0
	}
	return t.lossScale(k.of)
}

// lossScale returns 1 over the tokens of a step of n sequences, over all ranks.
func (t *Trainer) lossScale(n int) float32 { return float32(1 / (float64(n) * float64(t.Seq))) }

// trainBatches yields the micro-batches of the steps from first on.
func (t *Trainer) trainBatches(first int) iter.Seq[[]int] {
	return func(yield func([]int) bool) {
		for step := first; step < t.Steps; step++ {
			for starts := range t.micro(t.Data.Growth.At(step), func(j int) int { return t.Data.Start(step, j) }) {
				if !yield(starts) {
					return
				}
			}
		}
	}
}

// feeds brings micro-batches to the device.
type feeds struct {
	training *Loader
	apart    *Loader // of validation, and of steps that are not trained
	steps    *Feed   // of training from First on; nil before StartAt
}

func (f *feeds) open(t *Trainer, batch int) (err error) {
	for _, l := range []**Loader{&f.training, &f.apart} {
		if *l, err = NewLoader(t.World, t.Data, batch, t.Config.Model.Vocab); err != nil {
			return err
		}
		t.keep((*l).Close)
	}
	return nil
}

func (f *feeds) stop() error {
	if f.steps != nil {
		f.steps.Stop()
	}
	return nil
}

// feedOf returns the micro-batches of a step, apart from the training's.
func (t *Trainer) feedOf(step int) *Feed {
	return t.feeds.apart.Feed(t.micro(t.Data.Growth.At(step), func(j int) int { return t.Data.Start(step, j) }))
}
