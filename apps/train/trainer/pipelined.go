package trainer

import (
	"lockstep/apps/train/batches"
	"lockstep/apps/train/gpt"
	"lockstep/apps/train/kernels"
	"lockstep/spmd"
	"lockstep/spmd/blas"
)

// pipelined says whether the ranks have different stages of the model. A step is then one schedule
// of all its micro-batches, and one graph.
func (t *Trainer) pipelined() bool { return t.Config.Model.Stage.Stages > 1 }

// openPipeline allocates what pipelined steps need for micro-batches of up to batch sequences.
func (t *Trainer) openPipeline(batch int) error {
	if err := t.Model.OpenPipeline(t.pipe); err != nil {
		return err
	}
	n := batch * t.Seq
	for range t.Config.Model.Stage.Micro {
		var b gpt.Batch
		for _, x := range []struct {
			b *spmd.Buffer[int32]
			n int
		}{{&b.In, n}, {&b.Targets, n}, {&b.Sorted, kernels.SortedLen(n, t.Config.Model.Vocab)}} {
			var err error
			if *x.b, err = spmd.Alloc[int32](t.World, x.n); err != nil {
				return err
			}
			t.keep(x.b.Free)
		}
		t.held = append(t.held, b)
	}
	return nil
}

// holdStep holds the micro-batches of a step that is not trained.
func (t *Trainer) holdStep(step int) error {
	f := t.loaders[1].Feed(t.micro(t.GlobalBatch, func(j int) int { return t.Data.Start(step, j) }))
	defer f.Stop()
	return t.hold(f)
}

// hold enqueues copies of the micro-batches of a step, which stay until its end.
func (t *Trainer) hold(f *batches.Feed) error {
	for i := range t.held {
		b, err := f.Next(t.Stream)
		if err != nil {
			return err
		}
		h := &t.held[i]
		whole := [...]*spmd.Buffer[int32]{&h.In, &h.Targets, &h.Sorted}
		for k, src := range [...]spmd.Buffer[int32]{b.In, b.Targets, b.Sorted} {
			*whole[k] = whole[k].Slice(0, src.Len())
			if err := spmd.Copy(t.Stream, *whole[k], src); err != nil {
				return err
			}
		}
		h.B, h.T = b.B, b.T
	}
	return nil
}

// noHooks returns the hooks of a step that learns nothing.
func (t *Trainer) noHooks() gpt.StepHooks {
	return gpt.StepHooks{
		Scale: func(micro int) float32 {
			return t.scaleOf(microKind{idle: t.idle(t.GlobalBatch, micro), of: t.GlobalBatch})
		},
		Ready: func(int, int) error { return nil },
		Done:  func(int) error { return nil },
	}
}

// tuneStep is tune for a pipelined step.
func (t *Trainer) tuneStep() error {
	if err := t.holdStep(0); err != nil {
		return err
	}
	if err := t.Model.Step(t.Stream, t.held, t.noHooks()); err != nil {
		return err
	}
	if err := t.forgetPeaks(); err != nil {
		return err
	}
	return blas.Tune(t.World)
}

// learnAll enqueues both passes of all micro-batches of a step. The train stream then waits for the
// sums of gradients over the ranks.
func (t *Trainer) learnAll() error {
	h, last := t.noHooks(), len(t.held)-1
	commands := func() error { return t.Model.Step(t.Stream, t.held, h) }
	x := t.sharder
	if x == nil {
		h.Ready = func(micro, section int) error {
			if micro < last {
				return nil
			}
			return t.reducer.Ready(section, t.Stream)
		}
		if err := commands(); err != nil {
			return err
		}
		if err := t.reducer.Wait(t.Stream); err != nil {
			return err
		}
		return t.tie()
	}
	reduces := func(micro int) bool { return micro == last || t.State.Cfg.Shard.ScattersGrads() }
	h.Ready = func(micro, section int) error {
		if !reduces(micro) {
			return nil
		}
		return x.Ready(section, micro > 0, t.Stream)
	}
	h.Done = func(micro int) error {
		if !reduces(micro) {
			return nil
		}
		return x.Scatter.Wait(t.Stream)
	}
	if err := x.Around(t.Stream, x.Training, true, true, commands); err != nil {
		return err
	}
	return t.tie()
}

// tie enqueues the sum of both stages' gradients of the embeddings.
func (t *Trainer) tie() error {
	if t.tied.Size() < 2 {
		return nil
	}
	g := t.State.EmbeddingGrads()
	return spmd.AllReduce(t.tied.On(t.Stream), g, g, spmd.Sum)
}

// lookThrough computes this rank's part of a step's gradients again, and calls look when a section
// is done. It blocks. Every rank of the run calls it.
func (t *Trainer) lookThrough(step int, look func(section int) error) error {
	if err := t.holdStep(step); err != nil {
		return err
	}
	h := t.noHooks()
	h.Ready = func(_, section int) error { return look(section) }
	return t.apart(h)
}

// apart enqueues the passes of a step that learns nothing, with the weights that they need.
func (t *Trainer) apart(h gpt.StepHooks) error {
	return t.around(true, func() error { return t.Model.Step(t.Stream, t.held, h) })
}
