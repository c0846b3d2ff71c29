package trainer

import (
	"errors"

	"lockstep/apps/train/gpt"
	"lockstep/spmd"
)

// Enqueue enqueues one step. Read returns its result. Steps go up by one from
// First. Every rank of c calls it.
func (t *Trainer) Enqueue(step int) error {
	r := &t.results[step%len(t.results)]
	if err := r.begin.Record(t.Stream); err != nil {
		return err
	}
	if err := t.Optimizer.Prepare(t.Stream, t.RateAt(step)); err != nil {
		return err
	}
	n := t.Data.Growth.At(step)
	micro := t.microSteps(n)
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
		if err := t.microStep(microKind{batch.B, i == 0, i == micro-1, t.idle(n, i), n}, batch); err != nil {
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

// RateAt returns the learning rate of a step.
func (t *Trainer) RateAt(step int) float64 { return t.Rate.At(step) * t.Data.Growth.Rate(step) }

// microStep enqueues a micro-step. The first of a kind runs as commands, so that kernels are loaded
// and libraries have their memory. The second is captured, and replayed from then on.
//
// All ranks capture in the same step, since each ends every step with a
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

// microCommands enqueues the passes of a micro-step. The last of a step adds the sums
// over the ranks and the update.
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

// learn enqueues the passes of a micro-step. If it sums gradients over the ranks, the
// train stream waits for the sums.
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
		return t.reduce(k, func(done func(group int) error) error {
			ready = done
			return commands()
		})
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

// reduce enqueues the passes of a step's last micro-step. Each group of gradients is summed
// over the ranks when it is done.
func (t *Trainer) reduce(k microKind, passes func(done func(group int) error) error) error {
	last := len(t.State.Groups) - 1
	gathers := k.first && t.gathersRows(k.of)
	if gathers {
		t.State.RowsOf = &t.c
		defer func() { t.State.RowsOf = nil }()
	}
	err := passes(func(group int) error {
		switch {
		case t.tables == nil || group < last:
			return t.reducer.Ready(group, t.Stream)
		case gathers:
			return nil
		}
		return t.tables.Ready(0, t.Stream)
	})
	if err == nil && t.tables != nil && !gathers {
		err = t.tables.Wait(t.Stream)
	}
	if err != nil {
		return err
	}
	return t.reducer.Wait(t.Stream)
}

// gathersRows says whether each rank sums the tables' gradients of a step by itself,
// from the rows of all ranks.
func (t *Trainer) gathersRows(n int) bool {
	ranks := t.c.Size()
	return ranks > 1 && n%ranks == 0 && n/ranks <= t.Batch && t.Model.RowsFit(n/ranks*t.Seq, ranks)
}

// nextScales enqueues the scales for the next step. They come from all ranks: ranks with parts of a
// layer then have the same scales, and each has those of all layers for the checkpoint.
func (t *Trainer) nextScales(gate spmd.Buffer[float32]) error {
	e := t.State.FP8
	if err := spmd.AllReduce(t.all.On(t.Stream), e.Peak, e.Peak, spmd.Max); err != nil {
		return err
	}
	return e.NextScales(t.Stream, gate)
}

// around enqueues both passes of a micro-step that learns nothing, with the weights that they need.
// changed says that a step may have changed weights since they were gathered.
func (t *Trainer) around(changed bool, commands func() error) error {
	if t.sharder == nil {
		return commands()
	}
	return t.sharder.Around(t.Stream, t.sharder.Training, changed, false, commands)
}

// closeGraphs waits for the replays and closes the graphs.
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

// gather enqueues that this rank gets the weights after the last step, including those that other
// ranks update, as far as it has memory for them. Every rank of c calls it.
func (t *Trainer) gather() error {
	if t.sharder == nil {
		return nil
	}
	return t.sharder.Gather(t.Stream)
}
