package main

import (
	"errors"
	"slices"

	"lockstep/spmd"
	"lockstep/spmd/ddp"
)

// sharder moves what the ranks share of the training state: weights to the passes that read
// them, gradients to the ranks that update with them.
//
// Where every rank has all weights, those that others have updated come in the first
// micro-step of a step. Where each has a shard, those of the layers come in every pass.
type sharder struct {
	state   *State
	kept    *ddp.Gatherer[float32] // of the groups that are not layers'
	layers  layerGatherer
	scatter *ddp.Scatterer

	keptPass, training, forward *ddp.Pass
}

// layerGatherer is a Gatherer of the groups of layers, whatever the type of their elements.
type layerGatherer interface {
	Pass(groups ...int) (*ddp.Pass, error)
	Begin(p *ddp.Pass, s *spmd.Stream) error
	Need(group int, s *spmd.Stream) error
	Done(group int, s *spmd.Stream) error
	End(s *spmd.Stream) error
	Close() error
}

// newSharder returns the sharder of a model's state. Every rank of c calls it.
func (m *Model[A]) newSharder(c spmd.Comm) (*sharder, error) {
	x := &sharder{state: &m.State}
	if err := openSharder(x, m, c); err != nil {
		return nil, errors.Join(err, x.Close())
	}
	return x, nil
}

func openSharder[A Act](x *sharder, m *Model[A], c spmd.Comm) (err error) {
	part, layers := &m.sharded, len(m.Groups)-2
	all := m.Cfg.Shard.Mode < shardParameters // every rank has all weights
	// Weights that have come are rounded for products.
	rounds := func(first int) func(int, *spmd.Stream) error {
		mats, half := any(m.at.mats).([]spmd.Buffer[spmd.BF16])
		if !half {
			return nil
		}
		return func(i int, s *spmd.Stream) error { return roundWeights(s, mats[first+i], m.at.weights[first+i]) }
	}
	kept := ddp.GathererConfig[float32]{After: rounds(layers)}
	if !all {
		kept.Before = func(i int, to spmd.Buffer[float32], s *spmd.Stream) error {
			return spmd.Copy(s, to, part.weights.Slice(part.Shard(layers+i)))
		}
	}
	if x.kept, err = ddp.NewGatherer(c, m.at.weights[layers:], kept); err != nil {
		return err
	}
	if all {
		x.layers, err = ddp.NewGatherer(c, m.at.weights[:layers], ddp.GathererConfig[float32]{After: rounds(0)})
	} else {
		x.layers, err = ddp.NewGatherer(c, m.at.mats[:layers], ddp.GathererConfig[A]{Before: func(i int, to spmd.Buffer[A], s *spmd.Stream) error {
			own := part.weights.Slice(part.Shard(i))
			if half, ok := any(to).(spmd.Buffer[spmd.BF16]); ok {
				return roundWeights(s, half, own)
			}
			return spmd.Copy(s, any(to).(spmd.Buffer[float32]), own)
		}})
	}
	if err != nil {
		return err
	}
	shards := make([]spmd.Buffer[float32], len(m.Groups))
	for i := range shards {
		if m.Cfg.Shard.scattersGrads() {
			shards[i] = part.grads.Slice(part.Shard(i))
		} else {
			shards[i] = m.Grads.Slice(part.Part(i))
		}
	}
	if x.scatter, err = ddp.NewScatterer(c, m.grads, shards, spmd.Sum); err != nil {
		return err
	}
	// Forward begins with the last groups; the embeddings are used first of all.
	var there []int
	for i := range layers {
		there = append(there, layers-1-i)
	}
	if x.keptPass, err = x.kept.Pass(1, 0); err != nil {
		return err
	}
	if x.forward, err = x.layers.Pass(there...); err != nil {
		return err
	}
	x.training, err = x.layers.Pass(slices.Concat(there, m.Cfg.groupsBack())...)
	return err
}

// Close waits for what is on its way and ends the sharder.
func (x *sharder) Close() error {
	var errs []error
	if x.kept != nil {
		errs = append(errs, x.kept.Close())
	}
	if x.layers != nil {
		errs = append(errs, x.layers.Close())
	}
	if x.scatter != nil {
		errs = append(errs, x.scatter.Close())
	}
	return errors.Join(errs...)
}

// everyPass says whether every pass moves weights, and so concerns all ranks.
func (x *sharder) everyPass() bool { return x.state.Cfg.Shard.Mode == shardParameters }

// gather enqueues on s that this rank has all weights that the state has memory for, as the
// last step has left them.
func (x *sharder) gather(s *spmd.Stream) error {
	if err := x.kept.Begin(x.keptPass, s); err != nil {
		return err
	}
	if err := x.getKept(s); err != nil || x.everyPass() {
		return err
	}
	if err := x.layers.Begin(x.forward, s); err != nil {
		return err
	}
	for i := len(x.state.Groups) - 3; i >= 0; i-- {
		if err := errors.Join(x.layers.Need(i, s), x.layers.Done(i, s)); err != nil {
			return err
		}
	}
	if err := x.layers.End(s); err != nil || x.state.fp8 == nil {
		return err
	}
	return x.state.fp8.castWeights(s, x.state.half)
}

// getKept has s wait for the groups that are not layers', which are on their way.
func (x *sharder) getKept(s *spmd.Stream) error {
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

// around runs a pass on s that has the weights it needs. pass is that of the layers. changed
// says that weights may have changed since they were gathered, reduces that each section's
// gradients are going to be ready.
func (x *sharder) around(s *spmd.Stream, pass *ddp.Pass, changed, reduces bool, commands func() error) error {
	st := x.state
	defer func() { st.around = hooks{} }()
	switch {
	case changed && st.fp8 != nil: // its weights are cast together
		if err := x.gather(s); err != nil {
			return err
		}
	case changed:
		if err := x.kept.Begin(x.keptPass, s); err != nil {
			return err
		}
	}
	moving := x.everyPass() || changed && st.fp8 == nil
	if moving {
		if err := x.layers.Begin(pass, s); err != nil {
			return err
		}
		st.around.need = func(section int) error {
			if section != st.Cfg.embeddings() {
				return x.layers.Need(layerGroup(section), s)
			}
			if !changed {
				return nil
			}
			return x.getKept(s)
		}
		st.around.done = func(section int) error { return x.layers.Done(layerGroup(section), s) }
	}
	if reduces {
		st.around.write = func(section int) error { return x.scatter.Use(layerGroup(section), s) }
	}
	if err := commands(); err != nil || !moving {
		return err
	}
	return x.layers.End(s)
}

// ready tells the scatterer that a section's gradients are complete. add says that they are
// to be added to those of micro-batches before.
func (x *sharder) ready(section int, add bool, s *spmd.Stream) error {
	add = add && x.state.Cfg.Shard.scattersGrads()
	switch {
	case section == 0: // a LayerNorm, which is among the vectors
		return nil
	case section < x.state.Cfg.embeddings():
		return x.scatter.Ready(layerGroup(section), add, s)
	}
	n := len(x.state.Groups)
	if err := x.scatter.Ready(n-2, add, s); err != nil {
		return err
	}
	return x.scatter.Ready(n-1, add, s)
}
