package spmd

import "lockstep/spmd/internal/inside"

// What the packages on top of this one need of it, and applications do not.
func init() {
	inside.World = func(w *World) inside.Rank {
		return inside.Rank{Channel: w.channel, Files: &w.files, Timeout: w.cfg.timeout()}
	}
	inside.CheckBuffer = func(w *World, b any) error { return w.checkBlock(b.(anyBuffer).memory()) }
}

// anyBuffer is a Buffer of any type.
type anyBuffer interface{ memory() *block }

func (b Buffer[T]) memory() *block { return b.blk }
