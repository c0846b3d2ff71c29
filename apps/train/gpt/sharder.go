package gpt

import (
	"errors"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
	"lockstep/spmd/parallel"
)

// Sharder moves the shared parts of the training state: weights to the passes that read them,
// gradients to the ranks that update with them.
//
// If every rank has all weights, those that other ranks have updated come in the first micro-step
// of a step. If each rank has a shard, the layers' weights come in every pass.
type Sharder struct {
	state   *State
	kept    *parallel.Gatherer[float32] // of the groups that are not layers'
	layers  layerGatherer
	Scatter *parallel.Scatterer

	keptPass, training, forward *parallel.Pass
}

// layerGatherer is a Gatherer of the groups of layers, whatever the type of their elements.
type layerGatherer interface {
	Pass(groups ...int) (*parallel.Pass, error)
	Begin(p *parallel.Pass, s *spmd.Stream) error
	Need(group int, s *spmd.Stream) error
	Done(group int, s *spmd.Stream) error
	End(s *spmd.Stream) error
	Close() error
}

// newSharder returns the sharder of a state. training lists the groups of layers in the order in
// which the passes of a micro-step use them. Every rank of c calls it.
func newSharder[A ops.Act](m *State, at *Memory[A], c spmd.Comm, training []int) (*Sharder, error) {
	x := &Sharder{state: m}
	if err := openSharder(x, at, c, training); err != nil {
		return nil, errors.Join(err, x.Close())
	}
	return x, nil
}

func openSharder[A ops.Act](x *Sharder, at *Memory[A], c spmd.Comm, training []int) (err error) {
	m := x.state
	part, layers := &m.Sharded, layout.VectorGroup(m.Groups)
	all := m.Cfg.Shard.Mode < layout.ShardParameters // every rank has all weights
	// Products need rounded copies of the weights that have come.
	rounds := func(first int) func(int, *spmd.Stream) error {
		mats, half := any(at.Mats).([]spmd.Buffer[spmd.BF16])
		if !half {
			return nil
		}
		return func(i int, s *spmd.Stream) error {
			if err := ops.RoundWeights(s, mats[first+i], at.Weights[first+i]); err != nil || all || m.FP8 == nil {
				return err
			}
			return m.FP8.CastGroup(s, first+i, mats[first+i])
		}
	}
	kept := parallel.GathererConfig[float32]{After: rounds(layers)}
	if !all {
		kept.Before = func(i int, to spmd.Buffer[float32], s *spmd.Stream) error {
			return spmd.Copy(s, to, part.Weights.Slice(part.Shard(layers+i)))
		}
	}
	if x.kept, err = parallel.NewGatherer(c, at.Weights[layers:], kept); err != nil {
		return err
	}
	if all {
		x.layers, err = parallel.NewGatherer(c, at.Weights[:layers], parallel.GathererConfig[float32]{After: rounds(0)})
	} else {
		x.layers, err = parallel.NewGatherer(c, at.Mats[:layers],
			parallel.GathererConfig[A]{Before: func(i int, to spmd.Buffer[A], s *spmd.Stream) error {
				own := part.Weights.Slice(part.Shard(i))
				if half, ok := any(to).(spmd.Buffer[spmd.BF16]); ok {
					return ops.RoundWeights(s, half, own)
				}
				return spmd.Copy(s, any(to).(spmd.Buffer[float32]), own)
			}, After: func(i int, s *spmd.Stream) error {
				if m.FP8 == nil {
					return nil
				}
				return m.FP8.CastGroup(s, i, any(at.Mats).([]spmd.Buffer[spmd.BF16])[i])
			}})
	}
	if err != nil {
		return err
	}
	shards := make([]spmd.Buffer[float32], len(m.Groups))
	for i := range shards {
		if m.Cfg.Shard.ScattersGrads() {
			shards[i] = part.Grads.Slice(part.Shard(i))
		} else {
			shards[i] = m.Grads.Slice(part.Part(i))
		}
	}
	if x.Scatter, err = parallel.NewScatterer(c, m.grads, shards, spmd.Sum); err != nil {
		return err
	}
	// A pass begins with the embeddings.
	if x.keptPass, err = x.kept.Pass(1, 0); err != nil {
		return err
	}
	if x.forward, err = x.layers.Pass(m.Cfg.GroupsThere()...); err != nil {
		return err
	}
	x.training, err = x.layers.Pass(training...)
	return err
}

// Close waits for everything that is on its way and ends the sharder.
func (x *Sharder) Close() error {
	var errs []error
	if x.kept != nil {
		errs = append(errs, x.kept.Close())
	}
	if x.layers != nil {
		errs = append(errs, x.layers.Close())
	}
	if x.Scatter != nil {
		errs = append(errs, x.Scatter.Close())
	}
	return errors.Join(errs...)
}

// EveryPass reports whether every pass moves weights, and so concerns all ranks.
func (x *Sharder) EveryPass() bool { return x.state.Cfg.Shard.Mode == layout.ShardParameters }

// Gather enqueues on s that this rank gets the weights after the last step, all that the state
// has memory for.
func (x *Sharder) Gather(s *spmd.Stream) error {
	if err := x.kept.Begin(x.keptPass, s); err != nil {
		return err
	}
	if err := x.getKept(s); err != nil || x.EveryPass() {
		return err
	}
	if err := x.layers.Begin(x.forward, s); err != nil {
		return err
	}
	for i := layout.VectorGroup(x.state.Groups) - 1; i >= 0; i-- {
		if err := errors.Join(x.layers.Need(i, s), x.layers.Done(i, s)); err != nil {
			return err
		}
	}
	if err := x.layers.End(s); err != nil || x.state.FP8 == nil {
		return err
	}
	return x.state.FP8.CastWeights(s, x.state.Half)
}

// getKept makes s wait for the groups that are not layers' and are on their way.
func (x *Sharder) getKept(s *spmd.Stream) error {
	for _, i := range []int{1, 0} {
		if err := x.kept.Need(i, s); err != nil {
			return err
		}
		if err := x.kept.Done(i, s); err != nil {
			return err
		}
	}
	return x.kept.End(s)
}

// Buckets returns how many parts the gradients go in between the ranks.
func (x *Sharder) Buckets() int { return len(x.state.Groups) }

// Pass says what a pass is that Around runs. The zero value is both passes of a micro-step, with
// the weights that were gathered before.
type Pass struct {
	Forward bool // the forward pass alone
	Changed bool // weights may have changed since they were gathered
	Reduces bool // each section's gradients are going to be ready
}

// Around runs a pass on s with the weights that it needs.
func (x *Sharder) Around(s *spmd.Stream, p Pass, commands func() error) error {
	st := x.state
	defer func() { st.around = hooks{} }()
	order, changed := x.training, p.Changed
	if p.Forward {
		order = x.forward
	}
	switch {
	// weights are cast together, or passes interleave
	case changed && (st.FP8 != nil || st.Cfg.Stage.Stages > 1):
		if err := x.Gather(s); err != nil {
			return err
		}
		changed = false
	case changed:
		if err := x.kept.Begin(x.keptPass, s); err != nil {
			return err
		}
	}
	moving := x.EveryPass() || changed
	if moving {
		if err := x.layers.Begin(order, s); err != nil {
			return err
		}
		st.around.need = func(section int) error {
			if section != st.Cfg.Embeddings() {
				return x.layers.Need(layout.LayerGroup(section), s)
			}
			if !changed {
				return nil
			}
			return x.getKept(s)
		}
		st.around.done = func(section int) error { return x.layers.Done(layout.LayerGroup(section), s) }
	}
	if p.Reduces {
		st.around.write = func(section int) error { return x.Scatter.Use(layout.LayerGroup(section), s) }
	}
	if err := commands(); err != nil || !moving {
		return err
	}
	return x.layers.End(s)
}

// Ready tells the scatterer that a section's gradients are complete.
func (x *Sharder) Ready(section int, s *spmd.Stream) error {
	return x.complete(section, s, x.Scatter.Ready)
}

// Add is Ready for gradients that are added to earlier micro-batches' gradients.
func (x *Sharder) Add(section int, s *spmd.Stream) error {
	return x.complete(section, s, x.Scatter.Add)
}

// complete calls ready for the groups that a section completes.
func (x *Sharder) complete(section int, s *spmd.Stream, ready func(group int, s *spmd.Stream) error) error {
	switch {
	case section == 0: // a LayerNorm, which is among the vectors
		return nil
	case section < x.state.Cfg.Embeddings():
		return ready(layout.LayerGroup(section), s)
	}
	groups := x.state.Groups
	if err := ready(layout.VectorGroup(groups), s); err != nil {
		return err
	}
	return ready(layout.EmbeddingGroup(groups), s)
}
