package spmd

import (
	"errors"
	"slices"
	"unsafe"

	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
)

// symmetric hands out memory that the backend knows: each chunk is allocated by it and
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
		Put: func(p unsafe.Pointer, _ int) error { return w.env.FreeSymmetric(p) }})
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
		c, err = w.env.AllocSymmetric(n)
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
	return slices.DeleteFunc(slices.Clone(y.w.comms), func(st *commState) bool { return !st.routes.OwnsSymmetric() })
}

func (y *symmetric) register(c unsafe.Pointer, n int) error {
	return y.w.control.st.Pass(control.AllocSymmetric, func() error {
		return y.w.gpu.GPU.Exclusive(func() error {
			for _, st := range y.owners() {
				if err := st.routes.Register(c, n); err != nil {
					return err
				}
			}
			node := y.w.near.st
			if !node.routes.OwnsSymmetric() {
				node.routes.ShareSymmetric(&y.w.all.st.routes)
			}
			return nil
		})
	})
}

// enter has a new communicator know what there is. Collective over it, in a turn.
func (y *symmetric) enter(st *commState) error {
	return y.w.gpu.GPU.Exclusive(func() error { return y.pool.EachChunk(st.routes.Register) })
}

// agreed gives the chunk back, and returns an error, where a rank failed. Collective.
func (y *symmetric) agreed(failure error, c unsafe.Pointer) error {
	err := y.w.channel.Agree(control.AllocSymmetric, failure)
	if err == nil {
		return nil
	}
	for _, st := range y.owners() {
		err = errors.Join(err, st.routes.Unregister(c))
	}
	if c != nil {
		err = errors.Join(err, y.w.env.FreeSymmetric(c))
	}
	return err
}
