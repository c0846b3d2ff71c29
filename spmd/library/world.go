package library

import (
	"lockstep/cuda"
	"lockstep/spmd"
	"lockstep/spmd/internal/world"
)

func inside(w *spmd.World) *world.World { return (*world.World)(w) }

// GPU returns the device that the world's buffers and streams are on, for libraries that are opened
// for it; nil if that is the host.
func GPU(w *spmd.World) *cuda.Device {
	if d := inside(w).Rank().GPU; d != nil {
		return d.GPU.Dev
	}
	return nil
}

// Quiet waits until no collective that this rank enqueued is in flight. Call it before an operation
// that may wait for the device, such as loading code, or allocating memory by the driver. A
// collective on the device waits for other ranks, which may be waiting for this one. On the host
// there is nothing to wait for.
func Quiet(w *spmd.World) error { return inside(w).Rank().Dev.Quiesce() }

// AtClose has World.Close call fn when the streams are through and the graphs are closed, while all
// else is still there. fn closes what was opened for the GPU, and makes no collective calls. The
// function that was registered last is called first. cancel takes fn back.
func AtClose(w *spmd.World, fn func() error) (cancel func()) { return inside(w).AtClose(fn) }

// Emitted has Emit on this rank give each line to fn, with its end, until cancel is called. fn
// keeps no bytes of the line.
func Emitted(w *spmd.World, fn func(line []byte)) (cancel func()) { return inside(w).Emitted(fn) }

// WorldOf returns the world of c for a call of a package on top of spmd. If this rank cannot make
// calls on c, the error names op and says why not: c is the zero Comm, which has no world, or
// closed, or without this rank.
func WorldOf(c spmd.Comm, op string) (w *spmd.World, err error) {
	in := world.Comm(c).Comm()
	if in != nil {
		w = (*spmd.World)(in.Of().Owner.(*world.World))
	}
	return w, in.Usable(op)
}
