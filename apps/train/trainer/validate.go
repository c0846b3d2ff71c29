package trainer

import (
	"lockstep/apps/train/gpt"
	"lockstep/spmd"
)

// ValSequences is the number of sequences in a validation.
func (t *Trainer) ValSequences() int {
	return min(t.ValBatches*t.GlobalBatch, t.Data.ValWindows())
}

// evaluate adds the losses of micro micro-batches. The weights were gathered before. next
// enqueues the load of a micro-batch.
func (t *Trainer) evaluate(micro int, next func(i int) (gpt.Batch, float32, error)) error {
	around := func(commands func() error) error { return commands() }
	if x := t.sharder; x != nil {
		around = func(commands func() error) error { return x.Around(t.Stream, x.Forward, false, false, commands) }
	}
	if t.pipelined() {
		return t.Model.EvaluateAll(t.Stream, micro, next, around)
	}
	for i := range micro {
		batch, scale, err := next(i)
		if err != nil {
			return err
		}
		if err := around(func() error { return t.Model.Evaluate(t.Stream, batch, scale, false) }); err != nil {
			return err
		}
	}
	return nil
}

// Validate returns the mean loss on the validation sequences. It blocks. Every rank of c calls it.
func (t *Trainer) Validate() (float64, error) {
	n := t.ValSequences()
	scale := float32(1 / (float64(n) * float64(t.Seq)))
	f := t.loaders[1].Feed(t.micro(n, func(i int) int { return t.Data.ValStart(i, n) }))
	defer f.Stop()
	if err := spmd.Fill(t.Stream, t.State.Loss, 0); err != nil { // a rank may have no part
		return 0, err
	}
	if err := t.gather(); err != nil {
		return 0, err
	}
	next := func(i int) (gpt.Batch, float32, error) {
		batch, err := f.Next(t.Stream)
		if t.idle(n, i) {
			return batch, 0, err
		}
		return batch, scale, err
	}
	if err := t.evaluate(t.microSteps(n), next); err != nil {
		return 0, err
	}
	if err := t.countLoss(); err != nil {
		return 0, err
	}
	if err := spmd.AllReduce(t.all.On(t.Stream), t.State.Loss, t.State.Loss, spmd.Sum); err != nil {
		return 0, err
	}
	if err := spmd.Copy(t.Stream, t.valLoss, t.State.Loss); err != nil {
		return 0, err
	}
	if err := t.Stream.Synchronize(); err != nil {
		return 0, err
	}
	return t.valLoss.At(0), nil
}
