package run

import (
	"context"
	"errors"
	"fmt"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/trainer"
	"lockstep/spmd"
)

// loop runs the steps of a run, and whatever is due between them.
type loop struct {
	o    *Options
	t    *trainer.Trainer
	c    *saver // nil without checkpoints
	r    *report
	stop <-chan struct{} // closed when this rank is asked to end early

	doubt  bool // the last step was left out, and no validation has shown good weights since
	proven bool // the last validation is of the weights as they are
}

// train runs the remaining steps and reports them. c holds the checkpoints, or
// is nil. Every rank calls it.
//
// It returns early if stop was closed on any rank before the last step. All ranks then end after
// the same step, with a checkpoint of it if they keep checkpoints.
func (o *Options) train(ctx context.Context, w *spmd.World, t *trainer.Trainer, c *saver,
	stop <-chan struct{}) (early bool, err error) {
	o.announce(w, t)
	l := &loop{o: o, t: t, c: c, r: newReport(o, w, t, c), stop: stop}
	defer l.r.bar.Done()
	for step := t.First; step < o.steps && !early; step++ {
		if err := ctx.Err(); err != nil {
			return false, context.Cause(ctx)
		}
		if early, err = l.step(step); errors.As(err, new(trainer.Diverged)) {
			return false, c.blame(err, l.r.good == 0)
		} else if err != nil {
			return false, err
		}
	}
	return early, l.finish(early)
}

// announce logs what the run is going to train, and how.
func (o *Options) announce(w *spmd.World, t *trainer.Trainer) {
	path, why := t.Model.Attention()
	line := w.Log().Info()
	if o.Cfg.FP8 != layout.FP8Off {
		line = line.Str("fp8", o.FP8)
	}
	if o.Cfg.Shard.Mode != layout.ShardOff {
		line = line.Str("shard", o.shard)
	}
	if o.Cfg.Recompute != layout.RecomputeOff {
		line = line.Str("recompute", o.recompute)
	}
	if o.Cfg.Parts != 0 {
		line = line.Stringer("parts", o.Cfg.Parts)
	}
	if o.tp*o.pp > 1 {
		line = line.Int("dp", o.replicas(w.Size())).Int("tp", o.tp)
	}
	if o.pp > 1 {
		line = line.Int("pp", o.pp).Str("layers_of_stages", t.State.Cfg.Divided(o.Seq))
	}
	line.Str("model", o.model).Int("params", o.Cfg.ParamCount()).Int("layers", o.layers).Int("heads", o.heads).
		Int("channels", o.channels).Int("seq", o.Seq).Str("tokens", o.Tok.Name()).Int("vocab", o.Cfg.Vocab).
		Str("dtype", o.DType).Str("attention", path).Str("attention_why", why).Msg("model")
	line = w.Log().Info()
	if o.pp > 1 {
		line = line.Int("micro_batches", t.State.Cfg.Stage.Micro).Str("bubble", percent(t.State.Cfg.Idle(o.Seq)))
	}
	if o.optimizer != adamW {
		line = line.Str("optimizer", o.optimizer)
	}
	line.Int("steps", o.steps).Int("batch", o.Batch).Int("global_batch", o.GlobalBatch).
		Int("tokens_a_step", o.GlobalBatch*o.Seq).Int("train_tokens", t.Data.Train.Len).
		Int("val_tokens", t.Data.Val.Len).
		Int("val_sequences", t.ValSequences()).Float64("lr", o.lr).Int("buckets", t.Buckets()).Msg("training")
}

// step runs one step, reads the one before, and does what is due after it.
func (l *loop) step(step int) (early bool, err error) {
	if err := l.passOnStop(); err != nil {
		return false, err
	}
	if err := l.t.Enqueue(step); err != nil {
		return false, err
	}
	if step == l.t.First { // what tunes and compiles is not to count
		if err := l.t.ForgetTime(); err != nil {
			return false, err
		}
	}
	// The host reads the step before while this one runs.
	if err := l.r.upTo(l.t, step, nil); err != nil {
		return false, err
	}
	d := l.due(step)
	return d.early, l.do(d, step+1)
}

// passOnStop makes the next step tell all ranks that this one is asked to end early.
func (l *loop) passOnStop() error {
	select {
	case <-l.stop:
		l.stop = nil
		return l.t.AskToEnd()
	default:
		return nil
	}
}

// due says what to do after a step.
type due struct {
	early            bool // the run ends, though steps are left
	val, audit, save bool
}

// due returns what is due after a step. All ranks get the same answer.
func (l *loop) due(step int) due {
	done := step + 1
	last := done == l.o.steps
	every := func(n int) bool { return n > 0 && done%n == 0 }
	var d due
	d.early = !last && step > l.t.First && l.t.Ended(step-1)
	d.val = l.o.valBatches > 0 && (last || every(l.o.valEvery))
	d.save = l.c != nil && (last || d.early || every(l.o.saveEvery))
	// Every rank saves a part of what all ranks hold, so all must hold the same.
	d.audit = last || d.early || d.save || every(l.o.audit)
	return d
}

// do does what is due after a number of steps. If it needs the weights it waits for
// the last step, and reports it.
func (l *loop) do(d due, steps int) error {
	if !d.val && !d.audit {
		return nil
	}
	if d.audit {
		if err := l.t.Audit(steps); err != nil {
			return err
		}
	}
	var valLoss *float64
	if d.val {
		loss, err := l.t.Validate()
		if err != nil {
			return err
		}
		if !ops.Finite(loss) {
			return fmt.Errorf("validation after step %d: loss %g", steps, loss)
		}
		valLoss = &loss
	}
	if err := l.r.upTo(l.t, steps, valLoss); err != nil {
		return err
	}
	l.doubt, l.proven = l.t.BadRow > 0 && !d.val, d.val
	if !d.save {
		return nil
	}
	if l.doubt {
		l.r.w.Log().Warn().Int("steps", steps).
			Msg("not saved: the last step is left out, and a later one is to show first that the weights are good")
		return nil
	}
	return l.c.save(l.t, steps, l.r.record)
}

// finish waits for the last checkpoint and reports the run.
func (l *loop) finish(early bool) error {
	var err error
	if l.c != nil {
		l.r.bar.Done()
		l.c.saving.last()
		if err = l.c.Wait(); err == nil && l.proven {
			l.c.Proven()
		}
		l.c.saving.end()
	}
	switch {
	case !early && l.doubt:
		const left = "the last %d steps are left out, as their losses or gradients are not finite: the weights may " +
			"be no good, and are not saved"
		err = errors.Join(fmt.Errorf(left, l.t.BadRow), err)
	case early && l.doubt && err == nil:
		l.r.interrupted("ended early by a signal, and the last step was left out: nothing is saved after it, and " +
			"the same command goes on from an older checkpoint")
	case !early:
		err = errors.Join(l.r.summary(l.t, l.o.Cfg.ParamCount()), err)
	case err == nil:
		l.r.interrupted("ended early by a signal, after a checkpoint: the same command goes on from it")
	}
	return err
}
