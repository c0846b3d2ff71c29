package library

import (
	"sync"

	"lockstep/spmd"
)

// PerWorld keeps a value for each world, such as the handle of a library. It is a package variable.
// Open makes the value at the first call of Of for a world, and registers with AtClose how to close
// it. The value lives as long as the world.
type PerWorld[T any] struct {
	Open func(*spmd.World) *T
}

// Of returns the value that p keeps for w. Not collective. It is safe for use by several
// goroutines, and allocates only the first time.
func (p *PerWorld[T]) Of(w *spmd.World) *T {
	kept := inside(w).Kept()
	v, ok := kept.Load(p)
	if !ok {
		v, _ = kept.LoadOrStore(p, sync.OnceValue(func() *T { return p.Open(w) }))
	}
	return v.(func() *T)()
}
