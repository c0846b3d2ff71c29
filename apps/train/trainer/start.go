package trainer

import (
	"lockstep/apps/train/agree"
	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/weights"
	"lockstep/spmd"
	"lockstep/spmd/blas"
	"lockstep/spmd/parallel"
)

// Begin draws the start weights from seed, or reads them, and gives all ranks those of rank 0. The
// first step is then 0. It blocks. Every rank of c calls it.
func (t *Trainer) Begin(seed uint64) error {
	shared := t.State.Cfg.Shard.Mode == layout.ShardParameters
	var err error
	if t.Weights != nil {
		t.World.Log().Info().Str("from", t.Weights.Dir).Msg("reading the start weights")
	}
	switch {
	case t.Weights == nil:
		err = t.State.Init(seed) // the same numbers on every rank
	case shared:
		err = t.dealOut(t.Weights)
	case t.c.Rank() == 0:
		err = t.Weights.Load(t.State)
	}
	if err != nil {
		return err
	}
	if !shared {
		if err := parallel.SyncStart(t.c, t.State.Weights); err != nil {
			return err
		}
	}
	return t.StartAt(0)
}

// dealOut reads the weights of a folder on rank 0, and gives each rank its part. It
// blocks. Every rank of c calls it.
func (t *Trainer) dealOut(h *weights.Folder) error {
	const chunk = 1 << 20 // elements that go between ranks at a time
	stage, err := spmd.Alloc[float32](t.World, chunk)
	if err != nil {
		return err
	}
	defer stage.Free()
	for _, p := range t.State.Params {
		var x []float32
		if t.c.Rank() == 0 {
			x, err = h.Tensor(p.Uncut())
		}
		if _, err := agree.Among(t.World, t.c).Gather(nil, err); err != nil {
			return err
		}
		if t.c.Rank() != 0 {
			x = make([]float32, weights.Len(p.Uncut(), t.State.Cfg))
		}
		for lo := 0; lo < len(x); lo += chunk {
			piece := x[lo:min(lo+chunk, len(x))]
			b := stage.Slice(0, len(piece))
			if err := b.CopyFrom(piece); err != nil {
				return err
			}
			if err := spmd.Broadcast(t.c, b, 0); err != nil {
				return err
			}
			if err := b.CopyTo(piece); err != nil {
				return err
			}
		}
		if err := t.State.Set(p, x); err != nil {
			return err
		}
	}
	return nil
}

// StartAt makes step the next one, with the present weights and moments.
func (t *Trainer) StartAt(step int) error {
	t.First = step
	if err := t.Optimizer.Start(step, t.Skipped); err != nil {
		return err
	}
	if err := t.State.Refresh(t.Stream); err != nil {
		return err
	}
	if e := t.State.FP8; e != nil {
		err := error(nil)
		if t.Scales != nil {
			err = e.SetScales(t.Scales)
		} else {
			err = t.calibrate(step)
		}
		if err != nil {
			return err
		}
	}
	t.train = t.loaders[0].Feed(t.trainBatches(step))
	return nil
}

// tune finds the fastest algorithms of all products before the first step, so that a resumed run
// has the bits of an uninterrupted one. It runs the passes of a step and ignores the gradients. It
// blocks. Every rank of c calls it.
//
// It runs before the optimizer allocates its memory, since timing needs as much for a while.
func (t *Trainer) tune() error {
	if t.World.OnHost() {
		return nil
	}
	if err := t.State.Refresh(t.Stream); err != nil {
		return err
	}
	if t.pipelined() {
		return t.tuneStep()
	}
	met := map[microKind]bool{}
	for _, step := range t.Data.Growth.Begins() {
		err := t.passes(step, func(k microKind, batch gpt.Batch) error {
			if met[k] {
				return nil
			}
			met[k] = true
			return t.Model.ForwardBackward(t.Stream, batch, t.lossScale(k.of), k.first, nil)
		})
		if err != nil {
			return err
		}
	}
	if err := t.forgetPeaks(); err != nil {
		return err
	}
	return blas.Tune(t.World)
}

// forgetPeaks enqueues that the passes so far do not count for the scales of 8-bit floats.
func (t *Trainer) forgetPeaks() error {
	if t.State.FP8 == nil {
		return nil
	}
	return spmd.Fill(t.Stream, t.State.FP8.Peak, 0)
}

// calibrate finds the scales of 8-bit floats for a step from its first micro-steps on all ranks,
// with products of bfloat16. Every rank of c calls it.
func (t *Trainer) calibrate(step int) error {
	if step >= t.Steps {
		return nil
	}
	if err := t.calibrating(step); err != nil {
		return err
	}
	// A batch without good numbers leaves the scales as they are, and the first step fails.
	gate := t.Optimizer.Gate
	if err := spmd.Fill(t.Stream, gate, 0); err != nil {
		return err
	}
	return t.nextScales(gate)
}

// calibrating enqueues the passes of calibrate.
func (t *Trainer) calibrating(step int) error {
	if t.pipelined() {
		if err := t.holdStep(step); err != nil {
			return err
		}
		h := t.noHooks()
		h.Calibrate = true
		return t.apart(h)
	}
	return t.passes(step, func(k microKind, batch gpt.Batch) error {
		if !k.first {
			return nil
		}
		commands := func() error { return t.Model.Calibrate(t.Stream, batch, t.lossScale(k.of)) }
		if x := t.sharder; x != nil && x.EveryPass() {
			return x.Around(t.Stream, x.Training, true, false, commands)
		}
		return commands()
	})
}

// passes calls do for each micro-step of a step. It loads the batches apart
// from those of the training.
func (t *Trainer) passes(step int, do func(k microKind, batch gpt.Batch) error) error {
	n := t.Data.Growth.At(step)
	f := t.loaders[1].Feed(t.micro(n, func(j int) int { return t.Data.Start(step, j) }))
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
