package gpt

import (
	"lockstep/apps/train/kernels"
	"lockstep/apps/train/layout"
	"lockstep/spmd"
)

// NewState is the state of a model whose passes are not this package's, on ranks that have all of it: its memory is taken, or
// without a world only counted. Space is where passes take theirs.
func NewState[A kernels.Act](w *spmd.World, cfg layout.Config) *State {
	m := &State{Cfg: cfg, World: w, space: layout.Space{W: w}}
	var n int
	m.Params, m.Groups, n = layout.Of(cfg)
	m.Sharded.Partition = cfg.PartitionOf(m.Groups)
	layout.Take(&m.space, n, &m.Weights, &m.Grads)
	if kernels.IsHalf[A]() {
		layout.Take(&m.space, n, &m.Half)
	}
	layout.Take(&m.space, 2, &m.Totals)
	return m
}

// Space is what the state's memory was taken from.
func (m *State) Space() *layout.Space { return &m.space }

// Place settles where each group of a state of NewState is, once its memory is there.
func Place[A kernels.Act](m *State) (at Places[A], err error) {
	if m.space.Err != nil {
		return at, m.space.Err
	}
	m.Loss = m.Totals.Slice(0, 1)
	at.Weights, m.grads = layout.GroupsOf(m.Groups, m.Weights), layout.GroupsOf(m.Groups, m.Grads)
	at.Grads = m.grads
	if mats, same := any(m.Weights).(spmd.Buffer[A]); same {
		at.Mats = layout.GroupsOf(m.Groups, mats)
	} else {
		at.Mats = layout.GroupsOf(m.Groups, any(m.Half).(spmd.Buffer[A]))
	}
	return at, nil
}
