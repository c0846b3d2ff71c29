package route

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"lockstep/spmd/internal/transport"
)

// Registrar returns the communicator's transport, where that takes symmetric memory; else nil.
func (r *Router) Registrar() transport.Registrar { return r.registrar }

// OwnsSymmetric reports whether the communicator registers symmetric memory for itself. One of the
// world's ranks may use what the world has.
func (r *Router) OwnsSymmetric() bool { return r.registrar != nil && r.owns }

// known is memory that the communicators have registered.
type known struct {
	ptr           unsafe.Pointer
	plain, window transport.Registration // window is nil if there are none
}

// Register has both communicators know the bytes at ptr. The first memory makes the second
// communicator, if symmetric kernels carry something. It closes nothing if it fails: Unregister
// does. If the bytes are not inUse it may write to them.
//
// Collective over the communicator, in a turn; no collective is in flight.
// Nobody else enqueues collectives.
func (r *Router) Register(ptr unsafe.Pointer, n int, inUse bool) error {
	plain, err := r.registrar.Register(ptr, n, inUse)
	if err != nil {
		return err
	}
	r.known = append(r.known, known{ptr: ptr, plain: plain})
	if !r.asked {
		r.asked = true
		if err := r.openWindows(); err != nil {
			return err
		}
	}
	if r.windows == nil {
		return nil
	}
	window, err := r.windows.Register(ptr, n, inUse)
	if err != nil {
		return err
	}
	r.known[len(r.known)-1].window = window
	if !window.Used() {
		return r.closeWindows()
	}
	return nil
}

// openWindows makes the second communicator. Collective over the communicator, in a turn.
func (r *Router) openWindows() error {
	s, err := r.chooseSpans()
	if s == nil || err != nil {
		if r.env.First == r && err == nil && r.env.Symmetric == "auto" {
			const none = "AllocSymmetric: collectives take no symmetric kernels of NCCL: there are several nodes, or " +
				"it is not known where they are faster on %d ranks with %s (bench ways measures it)"
			r.env.Log.Info().Msg(fmt.Sprintf(none, r.size, r.env.GPU.Dev.Name()))
		}
		return err
	}
	w, err := r.registrar.Symmetric(r.rank)
	if w == nil || err != nil {
		return err
	}
	r.windows, r.spans = w, s
	r.env.GPU.Watch(w, w.Failure)
	return nil
}

// Unregister takes memory out of both communicators.
func (r *Router) Unregister(ptr unsafe.Pointer) error {
	var err error
	for _, k := range r.known {
		if k.ptr == ptr {
			err = errors.Join(err, k.close())
		}
	}
	r.known = slices.DeleteFunc(r.known, func(k known) bool { return k.ptr == ptr })
	return err
}

func (k *known) close() error {
	var err error
	if k.window != nil {
		err = k.window.Close()
	}
	return errors.Join(err, k.plain.Close())
}

// closeWindows ends what there is for symmetric memory but the registrations. No graph may hold any
// of it any more. Collective over the communicator, in a turn.
func (r *Router) closeWindows() error {
	w := r.windows
	if w == nil {
		return nil
	}
	var err error
	for i := range r.known {
		if w := r.known[i].window; w != nil {
			err = errors.Join(err, w.Close())
		}
	}
	r.windows = nil
	r.env.GPU.Forget(w)
	r.env.GPU.Unwatch(w)
	return errors.Join(err, w.Close())
}

// ShareSymmetric has the communicator, of the same ranks as o, use what o has for symmetric memory.
func (r *Router) ShareSymmetric(o *Router) { r.windows, r.spans = o.windows, o.spans }
