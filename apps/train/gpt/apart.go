package gpt

import (
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
)

// NewState returns the state of a model whose passes are another package's. Its memory is
// allocated, or only counted without a world. Passes allocate from Space.
func NewState[A ops.Act](w *spmd.World, cfg layout.Config) (*State, *Memory[A]) {
	m, at := &State{Cfg: cfg, World: w, space: layout.Space{W: w}}, &Memory[A]{}
	var n int
	m.Params, m.Groups, n = layout.Of(cfg)
	at.take(m, n)
	return m, at
}

// Space returns the space of the state's memory.
func (m *State) Space() *layout.Space { return &m.space }

// Place settles where each group of a state of NewState is, once its memory is allocated.
func (x *Memory[A]) Place(m *State) error {
	if m.space.Err == nil {
		x.place(m)
	}
	return m.space.Err
}
