package trainer

import (
	"lockstep/apps/train/gpt"
	"lockstep/internal/schedule"
)

// order is how the micro-batches of a step go through the model. Its methods only enqueue, unless
// they say otherwise. Every rank of the run calls them.
type order interface {
	// enqueue enqueues the passes of the next step of the training, and the update.
	enqueue(step int) error
	// rehearse runs passes of every kind of a run, to see which products there are.
	rehearse() error
	// calibrate enqueues passes that find the largest sizes of what is cast to 8-bit floats.
	calibrate(step int) error
	// lookThrough computes this rank's part of a step's gradients again, and calls look when a
	// section is done. It blocks.
	lookThrough(step int, look func(section int) error) error
	// evaluate adds the losses of so many micro-batches. The weights were gathered before. next
	// enqueues the load of a micro-batch, and returns the scale of its loss.
	evaluate(micro int, next func(i int) (gpt.Batch, float32, error)) error
	// stageTime is Time of the pipeline, forgetTime its ForgetTime. They do nothing without one.
	stageTime() (schedule.Time, error)
	forgetTime() error
}

// openOrder makes the order of micro-batches of up to batch sequences.
func openOrder(t *Trainer, batch int) (order, error) {
	if t.Config.Model.Stage.Stages > 1 {
		return openPipeline(t, batch)
	}
	return turns{t}, nil
}

// StageTime returns how long this rank's stage of the pipeline took since ForgetTime, and how long
// it waited. It blocks. Both are 0 without a pipeline.
func (t *Trainer) StageTime() (schedule.Time, error) { return t.order.stageTime() }

// ForgetTime enqueues that StageTime begins with later steps.
func (t *Trainer) ForgetTime() error { return t.order.forgetTime() }

// turns is the order in which one micro-batch goes through the model after the other.
type turns struct{ t *Trainer }

func (x turns) enqueue(step int) error {
	t := x.t
	n := t.Data.Growth.At(step)
	micro := t.microSteps(n)
	for i := range micro {
		batch, err := t.feeds.steps.Next(t.Stream)
		if err != nil {
			return err
		}
		k := microKind{batch.B, i == 0, i == micro-1, t.idle(n, i), n}
		if err := t.graphs.run(k, func() error { return x.microStep(k, batch) }); err != nil {
			return err
		}
	}
	return nil
}

// microStep enqueues the passes of a micro-step. The last of a step adds the sums over the ranks
// and the update.
func (x turns) microStep(k microKind, batch gpt.Batch) error {
	t := x.t
	err := t.sums.learn(k, func(ready func(section int) error) error {
		return t.Model.ForwardBackward(t.Stream, batch, t.scaleOf(k), gpt.Start(k.first), ready)
	})
	if err != nil || !k.last {
		return err
	}
	return t.update()
}

func (x turns) rehearse() error {
	t := x.t
	met := map[microKind]bool{}
	for _, step := range t.Data.Growth.Begins() {
		err := x.passes(step, func(k microKind, batch gpt.Batch) error {
			if met[k] {
				return nil
			}
			met[k] = true
			return t.Model.ForwardBackward(t.Stream, batch, t.lossScale(k.of), gpt.Start(k.first), nil)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (x turns) calibrate(step int) error {
	t := x.t
	return x.passes(step, func(k microKind, batch gpt.Batch) error {
		if !k.first {
			return nil
		}
		commands := func() error { return t.Model.Calibrate(t.Stream, batch, t.lossScale(k.of)) }
		if !t.sums.together() {
			return commands()
		}
		return t.sums.around(gpt.Pass{Changed: true}, commands)
	})
}

func (x turns) lookThrough(step int, look func(section int) error) error {
	t := x.t
	return x.passes(step, func(k microKind, batch gpt.Batch) error {
		return t.sums.around(gpt.Pass{Changed: k.first}, func() error {
			return t.Model.ForwardBackward(t.Stream, batch, t.scaleOf(k), gpt.Start(k.first), look)
		})
	})
}

func (x turns) evaluate(micro int, next func(i int) (gpt.Batch, float32, error)) error {
	t := x.t
	for i := range micro {
		batch, scale, err := next(i)
		if err != nil {
			return err
		}
		err = t.sums.around(gpt.Pass{Forward: true}, func() error {
			return t.Model.Evaluate(t.Stream, batch, scale)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (turns) stageTime() (schedule.Time, error) { return schedule.Time{}, nil }
func (turns) forgetTime() error                 { return nil }

// passes calls do for each micro-step of a step. It loads the batches apart from the training's.
func (x turns) passes(step int, do func(k microKind, batch gpt.Batch) error) error {
	t := x.t
	n := t.Data.Growth.At(step)
	f := t.feedOf(step)
	defer f.Stop()
	for i := range t.microSteps(n) {
		batch, err := f.Next(t.Stream)
		if err != nil {
			return err
		}
		if err := do(microKind{b: batch.B, first: i == 0, idle: t.idle(n, i), of: n}, batch); err != nil {
			return err
		}
	}
	return nil
}
