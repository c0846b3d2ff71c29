package gpt

import (
	"lockstep/apps/train/kernels"
	"lockstep/apps/train/layout"
	"lockstep/spmd"
)

// NewState is the state of a model whose passes are not this package's: its memory is taken, or
// without a world only counted. Space is where passes take theirs.
func NewState[A kernels.Act](w *spmd.World, cfg layout.Config) (*State, *Memory[A]) {
	m, at := &State{Cfg: cfg, World: w, space: layout.Space{W: w}}, &Memory[A]{}
	var n int
	m.Params, m.Groups, n = layout.Of(cfg)
	at.take(m, n)
	return m, at
}

// Space is what the state's memory was taken from.
func (m *State) Space() *layout.Space { return &m.space }

// Place settles where each group of a state of NewState is, once its memory is there.
func (x *Memory[A]) Place(m *State) error {
	if m.space.Err == nil {
		x.place(m)
	}
	return m.space.Err
}
