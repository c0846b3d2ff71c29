package spmd

import (
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/world"
)

// Packages of this module that are parts of this one, such as hostdata and managed, see what lies
// behind a World, a Comm and a Stream. Others cannot use it.

// Inside returns what lies behind w, for parts of this package.
func (w *World) Inside() *world.World { return w.in }

// Inside returns what lies behind c, for parts of this package.
func (c Comm) Inside() *calls.Comm { return c.c }

// Inside returns what lies behind s, for parts of this package.
func (s *Stream) Inside() exec.Queue { return s.q }
