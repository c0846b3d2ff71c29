package route

import (
	"errors"
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
// communicator. It closes nothing if it fails: Unregister does.
//
// Collective over the communicator, in a turn; no collective is in flight.
// Nobody else enqueues collectives.
func (r *Router) Register(ptr unsafe.Pointer, n int) error {
	plain, err := r.registrar.Register(ptr, n)
	if err != nil {
		return err
	}
	r.known = append(r.known, known{ptr: ptr, plain: plain})
	if r.noSym || r.env.Symmetric == "never" {
		return nil
	}
	first := r.sym == nil
	if first {
		if err := r.openSym(); err != nil {
			return err
		}
	}
	if r.sym.windows != nil {
		window, err := r.sym.windows.Register(ptr, n)
		if err != nil {
			return err
		}
		r.known[len(r.known)-1].window = window
		if !window.Used() {
			if err := r.closeWindows(); err != nil {
				return err
			}
		}
	}
	switch {
	case r.sym.windows == nil && r.peers == nil:
		r.sym, r.noSym = nil, true
		if r.env.First == r {
			r.env.Log.Info().Str(r.env.Backend.Name(),
				r.registrar.Version()).Msg("AllocSymmetric: collectives have no faster path: there are no windows " +
				"of NCCL (from 2.27), or several nodes, and no GPUs that reach each other")
		}
	case first:
		return r.choosePaths()
	}
	return nil
}

// openSym makes what carries calls on symmetric memory. Collective over
// the communicator, in a turn.
func (r *Router) openSym() error {
	r.sym = &symComm{}
	// Nothing is wrong with GPUs that do not reach each other: all ranks learn it alike.
	if r.peers == nil {
		if err := r.reachPeers(); err != nil {
			r.env.Log.Debug().Err(err).Msg("small collectives on symmetric memory take no kernel between peers")
		}
	}
	// NCCL's symmetric kernels reach as far as NVLink does. Its other algorithms take the same time
	// with windows as without, and to measure them over a network would take long.
	if several, err := r.onSeveralNodes(); err != nil || several && r.env.Symmetric != "always" {
		return err
	}
	w, err := r.registrar.Symmetric(r.rank)
	if w == nil || err != nil {
		return err
	}
	r.sym.windows = w
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

// closeSym ends what there is for symmetric memory but the registrations. No graph
// may hold any of it any more. Collective over the communicator, in a turn.
func (r *Router) closeSym() error {
	if r.sym == nil {
		return nil
	}
	if w := r.sym.windows; w != nil {
		r.env.GPU.Forget(w)
	}
	err := r.closeWindows()
	r.sym = nil
	return err
}

// closeWindows ends the communicator with windows.
func (r *Router) closeWindows() error {
	var err error
	for i := range r.known {
		if w := r.known[i].window; w != nil {
			err = errors.Join(err, w.Close())
		}
	}
	if w := r.sym.windows; w != nil {
		r.sym.windows = nil
		r.env.GPU.Unwatch(w)
		err = errors.Join(err, w.Close())
	}
	return err
}

// ShareSymmetric has the communicator, of the same ranks as o, use what o has for symmetric memory.
func (r *Router) ShareSymmetric(o *Router) { r.sym, r.peers = o.sym, o.peers }
