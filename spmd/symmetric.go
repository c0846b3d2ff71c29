package spmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"lockstep/nccl"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	ncclt "lockstep/spmd/internal/transport/nccl"
)

// symmetric hands out memory that NCCL knows: each chunk is allocated by NCCL and
// registered with each communicator once. A buffer must lie at the same
// place of the same chunk on every rank, so nothing here depends on how far this
// rank's streams have got: blocks are used again in the order in which they were
// freed, and the wait for the streams comes after the choice.
type symmetric struct {
	w    *World
	pool exec.Pool // its chunks are the same on all ranks
}

const symSlab = 32 << 20

func newSymmetric(w *World) *symmetric {
	y := &symmetric{w: w}
	w.gpu.Own(&y.pool)
	y.pool.Init(exec.Source{What: "symmetric device memory", SlabMax: 4 << 20, SlabSize: symSlab, Get: y.get,
		Put: func(p unsafe.Pointer, _ int) error { return nccl.MemFree(w.gpu.GPU.Dev, p) }})
	return y
}

// alloc is collective over all ranks, with the same n.
func (y *symmetric) alloc(n int) (*block, error) {
	b := &block{Owner: y.w}
	err := y.pool.AllocAgreed(b, n, func(place int64) (bool, error) {
		places, err := y.w.channel.Range(control.AllocSymmetric, place)
		return places.One(), err
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// get allocates a chunk and registers it with every communicator. Collective over all
// ranks, which all fail where one does.
func (y *symmetric) get(n int) (unsafe.Pointer, error) {
	w := y.w
	var c unsafe.Pointer
	err := w.dev.Quiesce()
	if err == nil {
		c, err = nccl.MemAlloc(w.gpu.GPU.Dev, n)
	}
	if err := y.agreed(err, c); err != nil {
		return nil, err
	}
	if err := y.agreed(y.register(c, n), c); err != nil {
		return nil, err
	}
	return c, nil
}

// owners are the communicators that register memory for themselves, in the order in
// which they were made.
func (y *symmetric) owners() []*commState {
	y.w.mu.Lock()
	defer y.w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(y.w.comms), func(st *commState) bool { return st.nccl == nil || !st.ownsNCCL })
}

func (y *symmetric) register(c unsafe.Pointer, n int) error {
	return y.w.control.st.Pass(control.AllocSymmetric, func() error {
		return y.w.gpu.GPU.Exclusive(func() error {
			for _, st := range y.owners() {
				if err := st.register(c, n); err != nil {
					return err
				}
			}
			if node := y.w.NodeComm.st; !node.ownsNCCL {
				node.sym, node.peers = y.w.Comm.st.sym, y.w.Comm.st.peers
			}
			return nil
		})
	})
}

// enter has a new communicator know what there is. Collective over it, in a turn.
func (y *symmetric) enter(st *commState) error {
	return y.w.gpu.GPU.Exclusive(func() error { return y.pool.EachChunk(st.register) })
}

// agreed gives the chunk back, and returns an error, where a rank failed. Collective.
func (y *symmetric) agreed(failure error, c unsafe.Pointer) error {
	err := y.w.channel.Agree(control.AllocSymmetric, failure)
	if err == nil {
		return nil
	}
	for _, st := range y.owners() {
		err = errors.Join(err, st.unregister(c))
	}
	if c != nil {
		err = errors.Join(err, nccl.MemFree(y.w.gpu.GPU.Dev, c))
	}
	return err
}

// known is memory that the communicators have registered.
type known struct {
	ptr    unsafe.Pointer
	reg    *nccl.Registration
	window *nccl.Window
}

// register has both communicators, the second of which the first memory makes, know the
// bytes at ptr. It closes nothing where it fails: unregister does.
//
// Collective over st, in a turn; no collective is in flight. Nobody else enqueues collectives.
func (st *commState) register(ptr unsafe.Pointer, n int) error {
	reg, err := st.nccl.Comm.Register(ptr, n)
	if err != nil {
		return err
	}
	st.known = append(st.known, known{ptr: ptr, reg: reg})
	if st.noSym || st.w.cfg.Symmetric == "never" {
		return nil
	}
	first := st.sym == nil
	if first {
		if err := st.openSym(); err != nil {
			return err
		}
	}
	if st.sym.nccl != nil {
		window, err := st.sym.nccl.Comm.RegisterWindow(ptr, n)
		if err != nil {
			return err
		}
		st.known[len(st.known)-1].window = window
		if !window.Registered() {
			if err := st.closeWindows(); err != nil {
				return err
			}
		}
	}
	switch {
	case st.sym.nccl == nil && st.peers == nil:
		st.sym, st.noSym = nil, true
		if st.w.Comm.st == st {
			st.w.Log.Info().Str("nccl", nccl.VersionString()).Msg("AllocSymmetric: collectives have no faster path: there are no windows of NCCL (from 2.27), or several nodes, and no GPUs that reach each other")
		}
	case first:
		return st.choosePaths()
	}
	return nil
}

// openSym makes what carries calls on symmetric memory. Collective over st, in a turn.
func (st *commState) openSym() error {
	st.sym = &symComm{}
	w := st.w
	// Nothing is wrong with GPUs that do not reach each other: all ranks learn it alike.
	if st.peers == nil {
		if err := st.reachPeers(); err != nil {
			w.Log.Debug().Err(err).Msg("small collectives on symmetric memory take no kernel between peers")
		}
	}
	if nccl.Version() < 22700 {
		return nil
	}
	// NCCL's symmetric kernels reach as far as NVLink does. Its other algorithms take the same time with windows as without, and
	// to measure them over a network would take long.
	if several, err := st.onSeveralNodes(); err != nil || several && w.cfg.Symmetric != "always" {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), exec.Patience)
	defer cancel()
	c, err := st.nccl.Comm.Split(ctx, 0, st.rank, nccl.Config{})
	if err != nil {
		return fmt.Errorf("a second communicator, for symmetric memory: %w", err)
	}
	st.sym.nccl = ncclt.New(c, w.gpu.GPU.Word())
	w.gpu.GPU.Watch(c, c.AsyncError)
	return nil
}

// unregister takes memory out of both communicators.
func (st *commState) unregister(ptr unsafe.Pointer) error {
	var err error
	for _, k := range st.known {
		if k.ptr == ptr {
			err = errors.Join(err, k.close())
		}
	}
	st.known = slices.DeleteFunc(st.known, func(k known) bool { return k.ptr == ptr })
	return err
}

func (k *known) close() error {
	var err error
	if k.window != nil {
		err = k.window.Close()
	}
	return errors.Join(err, k.reg.Close())
}

// closeSym ends what there is for symmetric memory but the registrations. No graph
// may hold any of it any more. Collective over st, in a turn.
func (st *commState) closeSym() error {
	if st.sym == nil {
		return nil
	}
	st.w.gpu.GPU.Forget(st.sym.nccl)
	err := st.closeWindows()
	st.sym = nil
	return err
}

// closeWindows ends the communicator with windows.
func (st *commState) closeWindows() error {
	var err error
	for i := range st.known {
		if w := st.known[i].window; w != nil {
			err = errors.Join(err, w.Close())
		}
	}
	if c := st.sym.nccl; c != nil {
		st.sym.nccl = nil
		st.w.gpu.GPU.Unwatch(c.Comm)
		err = errors.Join(err, c.Comm.Close())
	}
	return err
}
