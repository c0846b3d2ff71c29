package trainer

import (
	"errors"
	"fmt"

	"lockstep/apps/train/gpt"
	"lockstep/spmd"
	"lockstep/spmd/blas"
)

// microKind is what distinguishes the micro-steps of a run: each kind enqueues the same
// commands on the same memory every time, so that one graph can stand for it.
type microKind struct {
	b           int  // sequences
	first, last bool // of its step
	idle        bool // counts nothing: other ranks have a micro-step more than this one
}

// wantGraphs says whether micro-steps are to be graphs. Where nothing else is asked for
// they are on a GPU: there a replay costs the host less than enqueuing again. It fails
// where graphs are asked for that the communicator cannot be in.
func (t *Trainer) wantGraphs() (bool, error) {
	switch t.Graph {
	case "off":
		return false, nil
	case "on":
		if err := t.all.Capturable(); err != nil {
			return false, spmd.Usage(fmt.Errorf("--graph on: %w", err))
		}
		return true, nil
	}
	if t.World.OnHost() {
		return false, nil
	}
	if err := t.all.Capturable(); err != nil {
		t.World.Log().Info().AnErr("why", err).Msg("steps are not graphs")
		return false, nil
	}
	return true, nil
}

// tune has the products of all steps use their fastest algorithms, those of the first step
// too: so a run that is resumed goes on with the bits of one that was not. It makes the
// passes of a step, whose gradients nobody looks at. It comes before the optimizer takes
// its memory, since timing needs as much for a while. It blocks. Every rank of c calls it.
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
	err := t.passes(0, func(k microKind, batch gpt.Batch) error {
		if met[k] {
			return nil
		}
		met[k] = true
		return t.Model.ForwardBackward(t.Stream, batch, t.lossScale(), k.first, nil)
	})
	if err != nil {
		return err
	}
	if err := t.forgetPeaks(); err != nil {
		return err
	}
	return blas.Tune(t.World)
}

// forgetPeaks enqueues that passes so far do not count for the scales of 8-bit floats.
func (t *Trainer) forgetPeaks() error {
	if t.State.FP8 == nil {
		return nil
	}
	return spmd.Fill(t.Stream, t.State.FP8.Peak, 0)
}

// calibrate finds the scales of 8-bit floats for a step: those of its first micro-steps,
// on all ranks, with products of bfloat16. Every rank of c calls it.
func (t *Trainer) calibrate(step int) error {
	if step >= t.Steps {
		return nil
	}
	if err := t.calibrating(step); err != nil {
		return err
	}
	// A batch that has no good numbers leaves the scales as they are, and ends the first step.
	gate := t.Optimizer.Gate
	if err := spmd.Fill(t.Stream, gate, 0); err != nil {
		return err
	}
	return t.nextScales(gate)
}

// calibrating enqueues the passes that calibrate looks at.
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
		commands := func() error { return t.Model.Calibrate(t.Stream, batch, t.lossScale()) }
		if x := t.sharder; x != nil && x.EveryPass() {
			return x.Around(t.Stream, x.Training, true, false, commands)
		}
		return commands()
	})
}

// nextScales enqueues the scales for the next step: those of all ranks, so that those with other parts of a layer
// have the same, and each those of all layers, which a checkpoint holds.
func (t *Trainer) nextScales(gate spmd.Buffer[float32]) error {
	e := t.State.FP8
	if err := spmd.AllReduce(t.all.On(t.Stream), e.Peak, e.Peak, spmd.Max); err != nil {
		return err
	}
	return e.NextScales(t.Stream, gate)
}

// passes calls do for each micro-step of a step, with its batch, which is loaded apart from
// what the run learns from.
func (t *Trainer) passes(step int, do func(k microKind, batch gpt.Batch) error) error {
	f := t.loaders[1].Feed(t.micro(t.GlobalBatch, func(j int) int { return t.Data.Start(step, j) }))
	defer f.Stop()
	for i := range t.microSteps(t.GlobalBatch) {
		batch, err := f.Next(t.Stream)
		if err != nil {
			return err
		}
		if err := do(microKind{b: batch.B, first: i == 0, idle: t.idle(t.GlobalBatch, i)}, batch); err != nil {
			return err
		}
	}
	return nil
}

// Enqueue enqueues one step, whose outcome Read returns. Steps go up by one from First.
// Every rank of c calls it.
func (t *Trainer) Enqueue(step int) error {
	r := &t.results[step%len(t.results)]
	if err := r.begin.Record(t.Stream); err != nil {
		return err
	}
	if err := t.Optimizer.Prepare(t.Stream, t.Rate.At(step)); err != nil {
		return err
	}
	micro := t.microSteps(t.GlobalBatch)
	if t.pipelined() {
		if err := t.hold(t.train); err != nil {
			return err
		}
		if err := t.microStep(microKind{first: true, last: true}, gpt.Batch{}); err != nil {
			return err
		}
		micro = 0
	}
	for i := range micro {
		batch, err := t.train.Next(t.Stream)
		if err != nil {
			return err
		}
		if err := t.microStep(microKind{batch.B, i == 0, i == micro-1, t.idle(t.GlobalBatch, i)}, batch); err != nil {
			return err
		}
	}
	if err := spmd.Copy(t.Stream, r.totals, t.State.Totals); err != nil {
		return err
	}
	if err := spmd.Copy(t.Stream, r.norm, t.Optimizer.Norm); err != nil {
		return err
	}
	return r.end.Record(t.Stream)
}

// microStep enqueues a micro-step. The first of a kind goes by its commands, so that
// kernels are loaded and libraries have their memory. The second is captured, and replayed
// from then on. All ranks capture in the same step, since each ends every step with a
// micro-step of the same kind.
func (t *Trainer) microStep(k microKind, batch gpt.Batch) error {
	commands := func() error { return t.microCommands(k, batch) }
	g, met := t.graphs[k]
	switch {
	case t.graphs == nil:
		return commands()
	case !met:
		t.graphs[k] = nil
		return commands()
	case g == nil:
		var err error
		if g, err = t.Stream.Capture(commands); err != nil {
			return err
		}
		t.graphs[k] = g
	}
	return g.Launch(t.Stream)
}

// microCommands enqueues the passes of a micro-step and, with the last of a step, what
// follows them: the sums over the ranks and the update.
func (t *Trainer) microCommands(k microKind, batch gpt.Batch) error {
	if err := t.learn(k, batch); err != nil || !k.last {
		return err
	}
	if err := t.sumRows(); err != nil {
		return err
	}
	// The update looks at the loss of all ranks.
	if err := t.countLoss(); err != nil {
		return err
	}
	if err := spmd.AllReduce(t.all.On(t.Stream), t.State.Totals, t.State.Totals, spmd.Sum); err != nil {
		return err
	}
	if err := t.Optimizer.Apply(t.Stream); err != nil || t.State.FP8 == nil {
		return err
	}
	return t.nextScales(t.Optimizer.Gate)
}

// learn enqueues the passes of a micro-step, and has the train stream wait for the sums of
// gradients over the ranks, where it makes any.
func (t *Trainer) learn(k microKind, batch gpt.Batch) error {
	if t.pipelined() {
		return t.learnAll()
	}
	x := t.sharder
	var ready func(section int) error
	commands := func() error { return t.Model.ForwardBackward(t.Stream, batch, t.scaleOf(k), k.first, ready) }
	switch {
	case x == nil && !k.last:
		return commands()
	case x == nil:
		ready = func(group int) error { return t.reducer.Ready(group, t.Stream) }
		if err := commands(); err != nil {
			return err
		}
		return t.reducer.Wait(t.Stream)
	}
	reduces := k.last || t.State.Cfg.Shard.ScattersGrads()
	if reduces {
		ready = func(section int) error { return x.Ready(section, !k.first, t.Stream) }
	}
	if err := x.Around(t.Stream, x.Training, k.first, reduces, commands); err != nil || !reduces {
		return err
	}
	return x.Scatter.Wait(t.Stream)
}

// closeGraphs waits for the replays and gives up the graphs.
func (t *Trainer) closeGraphs() error {
	var errs []error
	for _, g := range t.graphs {
		if g != nil {
			errs = append(errs, g.Close())
		}
	}
	t.graphs = nil
	return errors.Join(errs...)
}
