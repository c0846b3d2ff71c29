package trainer

import (
	"lockstep/apps/train/gpt"
	"lockstep/spmd"
)

// ValSequences returns the number of sequences in a validation.
func (t *Trainer) ValSequences() int {
	return min(t.ValBatches*t.GlobalBatch, t.Data.ValWindows())
}

// Validate returns the mean loss on the validation sequences. It blocks. Every rank of c calls it.
func (t *Trainer) Validate() (float64, error) {
	n := t.ValSequences()
	scale := float32(1 / (float64(n) * float64(t.Seq)))
	f := t.feeds.apart.Feed(t.micro(n, func(i int) int { return t.Data.ValStart(i, n) }))
	defer f.Stop()
	if err := spmd.Fill(t.Stream, t.State.Loss, 0); err != nil { // a rank may have no part
		return 0, err
	}
	if err := t.sums.gather(); err != nil {
		return 0, err
	}
	next := func(i int) (gpt.Batch, float32, error) {
		batch, err := f.Next(t.Stream)
		if t.idle(n, i) {
			return batch, 0, err
		}
		return batch, scale, err
	}
	if err := t.order.evaluate(t.microSteps(n), next); err != nil {
		return 0, err
	}
	if t.tensor != nil {
		if err := t.tensor.countLoss(); err != nil {
			return 0, err
		}
	}
	if err := spmd.AllReduce(t.all.On(t.Stream), t.State.Loss, t.State.Loss, spmd.Sum); err != nil {
		return 0, err
	}
	if err := spmd.Copy(t.Stream, t.results.valLoss, t.State.Loss); err != nil {
		return 0, err
	}
	if err := t.Stream.Synchronize(); err != nil {
		return 0, err
	}
	return t.results.valLoss.At(0), nil
}
