package calls

import (
	"errors"
	"slices"
	"unsafe"

	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/transport"
)

// symmetric hands out memory that the backend knows: each chunk is allocated by it and registered
// with each communicator once. A buffer must lie at the same place of the same chunk on every rank,
// so nothing depends on how far this rank's streams have got. Blocks are used again in the order in
// which they were freed, and the wait for the streams comes after the choice.
type symmetric struct {
	r    *Rank
	mem  transport.Registrar // the world's
	pool exec.Pool           // its chunks are the same on all ranks
}

const symSlab = 32 << 20

func newSymmetric(r *Rank, mem transport.Registrar) *symmetric {
	y := &symmetric{r: r, mem: mem}
	r.GPU.Own(&y.pool)
	y.pool.Init(exec.Source{What: "symmetric device memory", SlabMax: 4 << 20, SlabSize: symSlab, Get: y.get,
		Put: func(p unsafe.Pointer, _ int) error { return y.mem.FreeMemory(p) }})
	return y
}

// alloc is collective over all ranks, with the same n.
func (y *symmetric) alloc(n int) (*exec.Block, error) {
	b := &exec.Block{Owner: y.r}
	err := y.pool.AllocAgreed(b, n, func(place int64) (bool, error) {
		places, err := y.r.Channel.Range(control.AllocSymmetric, place)
		return places.One(), err
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// get allocates a chunk and registers it with every communicator. Collective over all ranks, which
// all fail if one does.
func (y *symmetric) get(n int) (unsafe.Pointer, error) {
	r := y.r
	var c unsafe.Pointer
	err := r.Dev.Quiesce()
	if err == nil {
		c, err = y.mem.AllocMemory(n)
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
func (y *symmetric) owners() []*Comm {
	y.r.mu.Lock()
	defer y.r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(y.r.comms), func(c *Comm) bool { return !c.routes.OwnsSymmetric() })
}

func (y *symmetric) register(c unsafe.Pointer, n int) error {
	return y.r.Control.Pass(control.AllocSymmetric, func() error {
		return y.r.GPU.GPU.Exclusive(func() error {
			for _, st := range y.owners() {
				const inUse = false
				if err := st.routes.Register(c, n, inUse); err != nil {
					return err
				}
			}
			node := y.r.Node
			if !node.routes.OwnsSymmetric() {
				node.routes.ShareSymmetric(&y.r.All.routes)
			}
			return nil
		})
	})
}

// enter registers all chunks with a new communicator. Collective over it, in a turn.
func (y *symmetric) enter(c *Comm) error {
	const inUse = true
	return y.r.GPU.GPU.Exclusive(func() error {
		return y.pool.EachChunk(func(p unsafe.Pointer, n int) error { return c.routes.Register(p, n, inUse) })
	})
}

// agreed gives the chunk back, and returns an error, if a rank failed. Collective.
func (y *symmetric) agreed(failure error, c unsafe.Pointer) error {
	err := y.r.Channel.Agree(control.AllocSymmetric, failure)
	if err == nil {
		return nil
	}
	for _, st := range y.owners() {
		err = errors.Join(err, st.routes.Unregister(c))
	}
	if c != nil {
		err = errors.Join(err, y.mem.FreeMemory(c))
	}
	return err
}

// OpenSymmetric has the world hand out symmetric memory, if its backend has any.
func (r *Rank) OpenSymmetric() {
	if mem := r.All.routes.Registrar(); mem != nil {
		r.symmetric = newSymmetric(r, mem)
	}
}

// HasSymmetric reports whether there is symmetric memory.
func (r *Rank) HasSymmetric() bool { return r.symmetric != nil }

// SymmetricPool returns the pool of symmetric memory; nil if there is none.
func (r *Rank) SymmetricPool() *exec.Pool {
	if r.symmetric == nil {
		return nil
	}
	return &r.symmetric.pool
}

// AllocSymmetric allocates n bytes of it. Collective over all ranks, with the same n.
func (r *Rank) AllocSymmetric(n int) (*exec.Block, error) { return r.symmetric.alloc(n) }

// knowSymmetric has a new communicator know the symmetric memory that there is. Collective over it,
// in a turn.
func (r *Rank) knowSymmetric(c *Comm) error {
	if r.symmetric == nil || !c.routes.OwnsSymmetric() {
		return nil
	}
	return r.symmetric.enter(c)
}
