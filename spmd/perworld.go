package spmd

import "sync"

// PerWorld is what a package on top of this one keeps for each world, such as the handle of
// a library: a package variable whose Open makes it when a world is first asked for it. What
// has to be closed Open registers with World.AtClose; the value itself lives as long as the
// world.
type PerWorld[T any] struct {
	Open func(*World) *T
}

// Of returns what p keeps for w. Not collective. It is safe for use by several goroutines,
// and allocates nothing but the first time.
func (p *PerWorld[T]) Of(w *World) *T {
	v, ok := w.kept.Load(p)
	if !ok {
		v, _ = w.kept.LoadOrStore(p, sync.OnceValue(func() *T { return p.Open(w) }))
	}
	return v.(func() *T)()
}
