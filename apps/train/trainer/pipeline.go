package trainer

import (
	"lockstep/apps/train/gpt"
	"lockstep/apps/train/ops"
	"lockstep/internal/schedule"
	"lockstep/spmd"
)

// pipeline is the order of ranks with different stages of the model (--pp). A step is one schedule
// of all its micro-batches, and one graph.
type pipeline struct {
	t     *Trainer
	model gpt.Passes
	held  []gpt.Batch // all micro-batches of a step
}

// openPipeline allocates what pipelined steps need for micro-batches of up to batch sequences.
func openPipeline(t *Trainer, batch int) (*pipeline, error) {
	x := &pipeline{t: t, model: t.Model}
	if err := x.model.OpenPipeline(t.stages); err != nil {
		return nil, err
	}
	n := batch * t.Seq
	for range t.Config.Model.Stage.Micro {
		var b gpt.Batch
		for _, x := range []struct {
			b *spmd.Buffer[int32]
			n int
		}{{&b.In, n}, {&b.Targets, n}, {&b.Sorted, ops.SortedLen(n, t.Config.Model.Vocab)}} {
			var err error
			if *x.b, err = spmd.Alloc[int32](t.World, x.n); err != nil {
				return nil, err
			}
			t.keep(x.b.Free)
		}
		x.held = append(x.held, b)
	}
	return x, nil
}

func (x *pipeline) enqueue(int) error {
	t := x.t
	if err := x.hold(t.feeds.steps); err != nil {
		return err
	}
	return t.graphs.run(microKind{first: true, last: true}, func() error {
		if err := t.sums.learnAll(len(x.held), x.noHooks(), x.passes); err != nil {
			return err
		}
		if err := x.tie(); err != nil {
			return err
		}
		return t.update()
	})
}

// passes enqueues both passes of all micro-batches of a step.
func (x *pipeline) passes(h gpt.StepHooks) error { return x.model.Step(x.t.Stream, x.held, h) }

// hold enqueues copies of the micro-batches of a step, which stay until its end.
func (x *pipeline) hold(f *Feed) error {
	s := x.t.Stream
	for i := range x.held {
		b, err := f.Next(s)
		if err != nil {
			return err
		}
		h := &x.held[i]
		whole := [...]*spmd.Buffer[int32]{&h.In, &h.Targets, &h.Sorted}
		for k, src := range [...]spmd.Buffer[int32]{b.In, b.Targets, b.Sorted} {
			*whole[k] = whole[k].Slice(0, src.Len())
			if err := spmd.Copy(s, *whole[k], src); err != nil {
				return err
			}
		}
		h.B, h.T = b.B, b.T
	}
	return nil
}

// holdStep holds the micro-batches of a step that is not trained.
func (x *pipeline) holdStep(step int) error {
	f := x.t.feedOf(step)
	defer f.Stop()
	return x.hold(f)
}

// noHooks returns the hooks of a step that learns nothing.
func (x *pipeline) noHooks() gpt.StepHooks {
	t := x.t
	return gpt.StepHooks{
		Scale: func(micro int) float32 {
			return t.scaleOf(microKind{idle: t.idle(t.GlobalBatch, micro), of: t.GlobalBatch})
		},
		Ready: func(int, int) error { return nil },
		Done:  func(int) error { return nil },
	}
}

func (x *pipeline) rehearse() error {
	if err := x.holdStep(0); err != nil {
		return err
	}
	return x.passes(x.noHooks())
}

// tie enqueues the sum of both stages' gradients of the embeddings.
func (x *pipeline) tie() error {
	t := x.t
	if t.tied.Size() < 2 {
		return nil
	}
	g := t.State.EmbeddingGrads()
	return spmd.AllReduce(t.tied.On(t.Stream), g, g, spmd.Sum)
}

func (x *pipeline) calibrate(step int) error {
	h := x.noHooks()
	h.Calibrate = true
	return x.again(step, h)
}

func (x *pipeline) lookThrough(step int, look func(section int) error) error {
	h := x.noHooks()
	h.Ready = func(_, section int) error { return look(section) }
	return x.again(step, h)
}

// again enqueues the passes of a step that learns nothing, with the weights that they need.
func (x *pipeline) again(step int, h gpt.StepHooks) error {
	if err := x.holdStep(step); err != nil {
		return err
	}
	return x.t.sums.around(gpt.Pass{Changed: true}, func() error { return x.passes(h) })
}

func (x *pipeline) evaluate(micro int, next func(i int) (gpt.Batch, float32, error)) error {
	return x.model.EvaluateAll(x.t.Stream, micro, next, func(commands func() error) error {
		return x.t.sums.around(gpt.Pass{Forward: true}, commands)
	})
}

func (x *pipeline) stageTime() (schedule.Time, error) { return x.model.StageTime(x.t.Stream) }
func (x *pipeline) forgetTime() error                 { return x.model.ForgetTime(x.t.Stream) }
