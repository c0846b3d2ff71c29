package main

import (
	"errors"
	"fmt"

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
func (t *trainer) wantGraphs() (bool, error) {
	switch t.graph {
	case "off":
		return false, nil
	case "on":
		if err := t.c.Capturable(); err != nil {
			return false, spmd.Usage(fmt.Errorf("--graph on: %w", err))
		}
		return true, nil
	}
	if t.w.OnHost() {
		return false, nil
	}
	if err := t.c.Capturable(); err != nil {
		t.w.Log().Info().AnErr("why", err).Msg("steps are not graphs")
		return false, nil
	}
	return true, nil
}

// tune has the products of all steps use their fastest algorithms, also of the first: a
// run that is resumed goes on with the bits of one that was not. For that it makes the
// passes of a step, whose gradients nobody looks at. It comes before the optimizer has its
// memory, since what is timed takes as much for a while. It blocks. Every rank of c calls it.
func (t *trainer) tune() error {
	if t.w.OnHost() {
		return nil
	}
	if err := t.state.Refresh(t.s); err != nil {
		return err
	}
	met := map[microKind]bool{}
	err := t.passes(0, func(k microKind, batch Batch) error {
		if met[k] {
			return nil
		}
		met[k] = true
		return t.model.ForwardBackward(t.s, batch, t.lossScale(), k.first, nil)
	})
	if err != nil {
		return err
	}
	if e := t.state.fp8; e != nil { // these passes do not count
		if err := spmd.Fill(t.s, e.peak, 0); err != nil {
			return err
		}
	}
	return blas.Tune(t.w)
}

// calibrate finds the scales of 8-bit floats for a step: those of its first micro-steps,
// on all ranks, with products of bfloat16. Every rank of c calls it.
func (t *trainer) calibrate(step int) error {
	if step >= t.steps {
		return nil
	}
	err := t.passes(step, func(k microKind, batch Batch) error {
		if !k.first {
			return nil
		}
		return t.model.Calibrate(t.s, batch, t.lossScale())
	})
	if err != nil {
		return err
	}
	// A batch that has no good numbers leaves the scales as they are, and ends the first step.
	gate := t.adam.gate
	if err := spmd.Fill(t.s, gate, 0); err != nil {
		return err
	}
	return t.nextScales(gate)
}

// nextScales enqueues the scales for the next step: those of all ranks.
func (t *trainer) nextScales(gate spmd.Buffer[float32]) error {
	e := t.state.fp8
	if err := spmd.AllReduce(t.c.On(t.s), e.peak, e.peak, spmd.Max); err != nil {
		return err
	}
	return e.nextScales(t.s, gate)
}

// passes gives do the micro-steps of a step, to enqueue what it wants of them beside the
// loading of what is learned from.
func (t *trainer) passes(step int, do func(k microKind, batch Batch) error) error {
	f := t.loaders[1].feed(t.micro(t.globalBatch, func(j int) int { return t.data.start(step, j) }))
	defer f.stop()
	for i := range t.microSteps(t.globalBatch) {
		batch, err := f.next(t.s)
		if err != nil {
			return err
		}
		if err := do(microKind{b: batch.B, first: i == 0, idle: t.idle(t.globalBatch, i)}, batch); err != nil {
			return err
		}
	}
	return nil
}

// enqueue enqueues one step; read has its outcome. Steps go up by one from the first.
// Every rank of c calls it.
func (t *trainer) enqueue(step int) error {
	r := &t.results[step%len(t.results)]
	if err := r.begin.Record(t.s); err != nil {
		return err
	}
	if err := t.adam.Prepare(t.s, t.rate.At(step)); err != nil {
		return err
	}
	micro := t.microSteps(t.globalBatch)
	for i := range micro {
		batch, err := t.train.next(t.s)
		if err != nil {
			return err
		}
		if err := t.microStep(microKind{batch.B, i == 0, i == micro-1, t.idle(t.globalBatch, i)}, batch); err != nil {
			return err
		}
	}
	if err := spmd.Copy(t.s, r.totals, t.state.Totals); err != nil {
		return err
	}
	if err := spmd.Copy(t.s, r.norm, t.adam.Norm); err != nil {
		return err
	}
	return r.end.Record(t.s)
}

// microStep enqueues a micro-step: the first of a kind by its commands, so that kernels
// are loaded and libraries have their memory; the others as a replay of what the second
// has captured. All ranks capture in the same step, since each ends every step with a
// micro-step of the same kind.
func (t *trainer) microStep(k microKind, batch Batch) error {
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
		if g, err = t.s.Capture(commands); err != nil {
			return err
		}
		t.graphs[k] = g
	}
	return g.Launch(t.s)
}

// microCommands enqueues the passes of a micro-step and, with the last of a step, what
// follows them: the sums over the ranks and the update.
func (t *trainer) microCommands(k microKind, batch Batch) error {
	if err := t.learn(k, batch); err != nil || !k.last {
		return err
	}
	// The update looks at the loss of all ranks.
	if err := spmd.AllReduce(t.c.On(t.s), t.state.Totals, t.state.Totals, spmd.Sum); err != nil {
		return err
	}
	if err := t.adam.Apply(t.s); err != nil || t.state.fp8 == nil {
		return err
	}
	return t.nextScales(t.adam.gate)
}

// learn enqueues the passes of a micro-step, and has the train stream wait for the sums of
// gradients over the ranks, where it makes any.
func (t *trainer) learn(k microKind, batch Batch) error {
	x := t.sharder
	var ready func(section int) error
	commands := func() error { return t.model.ForwardBackward(t.s, batch, t.scaleOf(k), k.first, ready) }
	switch {
	case x == nil && !k.last:
		return commands()
	case x == nil:
		ready = func(group int) error { return t.reducer.Ready(group, t.s) }
		if err := commands(); err != nil {
			return err
		}
		return t.reducer.Wait(t.s)
	}
	reduces := k.last || t.state.Cfg.Shard.scattersGrads()
	if reduces {
		ready = func(section int) error { return x.ready(section, !k.first, t.s) }
	}
	if err := x.around(t.s, x.training, k.first, reduces, commands); err != nil || !reduces {
		return err
	}
	return x.scatter.Wait(t.s)
}

// closeGraphs waits for the replays and gives up the graphs.
func (t *trainer) closeGraphs() error {
	var errs []error
	for _, g := range t.graphs {
		if g != nil {
			errs = append(errs, g.Close())
		}
	}
	t.graphs = nil
	return errors.Join(errs...)
}
