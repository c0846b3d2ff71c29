package trainer

import (
	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/spmd"
	"lockstep/spmd/parallel"
)

// replicas is the exchange of ranks that each have all weights and all gradients.
type replicas struct {
	s       *spmd.Stream // of the training
	reducer *parallel.Reducer[float32]
	tables  *tables // nil if the model has none
}

func openReplicas(t *Trainer) (_ *replicas, err error) {
	x, groups := &replicas{s: t.Stream}, t.State.GradGroups()
	if t.State.Cfg.Has(layout.RMSNorms) {
		last := len(groups) - 1
		if x.tables, err = openTables(t, groups[last:]); err != nil {
			return nil, err
		}
		groups = groups[:last]
	}
	x.reducer, err = parallel.NewReducer(t.c, groups,
		parallel.ReducerConfig{BucketBytes: t.bucketBytes(), Op: spmd.Sum})
	if err != nil {
		return nil, err
	}
	t.keep(x.reducer.Close)
	return x, nil
}

// bucketBytes returns the size of gradients that go between the ranks in one all-reduce.
func (t *Trainer) bucketBytes() int {
	switch {
	case t.BucketMiB > 0:
		return t.BucketMiB << 20
	case t.World.OnHost(): // A small model, too, has several: the first are under way while backward goes on.
		return min(4<<20, t.State.Grads.Bytes()/4)
	case t.World.Nodes() > 1, t.State.Cfg.Parts != 0:
		// A network is slower than GPUs compute, and a modern model's steps are short, so most
		// of the time is to be hidden.
		return 64 << 20
	default: // An all-reduce beside matrix products takes multiprocessors from them, which costs more than it hides.
		return 1 << 30
	}
}

// learn lets only a step's last micro-step sum. The gradients of the others are added up before.
func (x *replicas) learn(k microKind, passes func(ready func(section int) error) error) error {
	if !k.last {
		return passes(nil)
	}
	ready := func(section int) error { return x.reducer.Ready(section, x.s) }
	if x.tables != nil {
		before := passes
		passes = func(ready func(section int) error) error { return x.tables.learn(k, ready, before) }
	}
	if err := passes(ready); err != nil {
		return err
	}
	return x.reducer.Wait(x.s)
}

func (x *replicas) learnAll(micro int, h gpt.StepHooks, passes func(h gpt.StepHooks) error) error {
	h.Ready = func(i, section int) error {
		if i < micro-1 {
			return nil
		}
		return x.reducer.Ready(section, x.s)
	}
	if err := passes(h); err != nil {
		return err
	}
	return x.reducer.Wait(x.s)
}

func (x *replicas) around(_ gpt.Pass, commands func() error) error { return commands() }
func (x *replicas) gather() error                                  { return nil }
func (x *replicas) together() bool                                 { return false }

func (x *replicas) buckets() int {
	if x.tables == nil {
		return x.reducer.Buckets()
	}
	return x.reducer.Buckets() + x.tables.reducer.Buckets()
}
