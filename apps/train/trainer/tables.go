package trainer

import (
	"lockstep/apps/train/gpt"
	"lockstep/spmd"
	"lockstep/spmd/parallel"
)

// tables sums the gradients of the tables over the ranks: the last section's.
type tables struct {
	s       *spmd.Stream // of the training
	c       spmd.Comm
	state   *gpt.State
	model   gpt.Passes
	reducer *parallel.Reducer[float32]
	seq     int
	most    int // sequences of a micro-step
}

// openTables is for a model whose embeddings are only looked up: few of their rows by each batch.
func openTables(t *Trainer, grads []spmd.Buffer[float32]) (*tables, error) {
	r, err := parallel.NewReducer(t.c, grads, parallel.ReducerConfig{Op: spmd.Sum})
	if err != nil {
		return nil, err
	}
	t.keep(r.Close)
	return &tables{s: t.Stream, c: t.c, state: t.State, model: t.Model, reducer: r, seq: t.Seq, most: t.Batch}, nil
}

// learn enqueues the passes of a step's last micro-step. others is called for the other sections.
func (x *tables) learn(k microKind, others func(section int) error,
	passes func(ready func(section int) error) error) error {
	gathers := k.first && x.gathersRows(k.of)
	if gathers {
		x.state.RowsOf = &x.c
		defer func() { x.state.RowsOf = nil }()
	}
	last := len(x.state.Groups) - 1
	err := passes(func(section int) error {
		switch {
		case section < last:
			return others(section)
		case gathers:
			return nil
		}
		return x.reducer.Ready(0, x.s)
	})
	if err != nil || gathers {
		return err
	}
	return x.reducer.Wait(x.s)
}

// gathersRows reports whether each rank sums the gradients of a step of n sequences by itself, from
// the rows of all ranks.
func (x *tables) gathersRows(n int) bool {
	ranks := x.c.Size()
	return ranks > 1 && n%ranks == 0 && n/ranks <= x.most && x.model.RowsFit(n/ranks*x.seq, ranks)
}
