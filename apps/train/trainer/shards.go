package trainer

import (
	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/spmd"
)

// shards is the exchange of ranks that share a part of the training's state (--shard). Each updates
// with its part of the gradients.
type shards struct {
	s    *spmd.Stream // of the training
	mode layout.Sharding
	*gpt.Sharder
}

func openShards(t *Trainer) (*shards, error) {
	x, err := t.Model.NewSharder(t.c)
	if err != nil {
		return nil, err
	}
	t.keep(x.Close)
	t.Optimizer.MeasureNorm = func(s *spmd.Stream, norm spmd.Buffer[float32]) error {
		return x.Scatter.ClipNorm(0, norm, s)
	}
	return &shards{t.Stream, t.State.Cfg.Shard, x}, nil
}

// learn sums in a step's last micro-step, and in all if a rank keeps no more than its shard of the
// gradients.
func (x *shards) learn(k microKind, passes func(ready func(section int) error) error) error {
	reduces := k.last || x.mode.ScattersGrads()
	var ready func(section int) error
	if reduces {
		ready = func(section int) error { return x.ready(k.first, section) }
	}
	err := x.Around(x.s, gpt.Pass{Changed: k.first, Reduces: reduces}, func() error { return passes(ready) })
	if err != nil || !reduces {
		return err
	}
	return x.Scatter.Wait(x.s)
}

// ready makes a section's gradients go to the ranks that update with them.
func (x *shards) ready(first bool, section int) error {
	if first || !x.mode.ScattersGrads() {
		return x.Ready(section, x.s)
	}
	return x.Add(section, x.s)
}

func (x *shards) learnAll(micro int, h gpt.StepHooks, passes func(h gpt.StepHooks) error) error {
	reduces := func(i int) bool { return i == micro-1 || x.mode.ScattersGrads() }
	h.Ready = func(i, section int) error {
		if !reduces(i) {
			return nil
		}
		return x.ready(i == 0, section)
	}
	h.Done = func(i int) error {
		if !reduces(i) {
			return nil
		}
		return x.Scatter.Wait(x.s)
	}
	return x.Around(x.s, gpt.Pass{Changed: true, Reduces: true}, func() error { return passes(h) })
}

func (x *shards) around(p gpt.Pass, commands func() error) error { return x.Around(x.s, p, commands) }
func (x *shards) gather() error                                  { return x.Gather(x.s) }
func (x *shards) together() bool                                 { return x.EveryPass() }
func (x *shards) buckets() int                                   { return x.Buckets() }
