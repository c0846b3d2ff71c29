package spmd

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"lockstep/nccl"
)

// symmetric hands out memory that NCCL knows: each chunk is allocated by NCCL and
// registered with the world's communicator once. A buffer must lie at the same
// place of the same chunk on every rank, so nothing here depends on how far this
// rank's streams have got: blocks are used again in the order in which they were
// freed, and the wait for the streams comes after the choice.
type symmetric struct {
	w      *World
	pool   pool // its free blocks are in waiting, with the points to wait for
	chunks []symChunk
	told   sync.Once
}

type symChunk struct {
	ptr    unsafe.Pointer
	window *nccl.Window       // nil before NCCL 2.27
	reg    *nccl.Registration // nil where there is a window
}

const symSlab = 32 << 20

func newSymmetric(w *World) *symmetric {
	y := &symmetric{w: w}
	y.pool.init(source{what: "symmetric device memory", slabMax: 4 << 20, slabSize: symSlab, get: y.get,
		put: func(p unsafe.Pointer, _ int) error { return nccl.MemFree(w.gpu.dev, p) }})
	y.pool.inOrder = true
	return y
}

// alloc is collective over all ranks, with the same n.
func (y *symmetric) alloc(n int) (*block, error) {
	class := sizeClass(n)
	p := &y.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return nil, errors.New("the world is closed")
	}
	at := -1
	for i, r := range p.waiting {
		if r.class == class {
			at = i
			break
		}
	}
	place := int64(-1) // of the block that is to be used again
	if at >= 0 {
		place = y.place(p.waiting[at].ptr)
	}
	lo, hi, err := y.w.spread(place)
	if err != nil {
		return nil, err
	}
	b := &block{w: y.w, pool: p, size: class, bytes: n}
	var r retired
	if at >= 0 { // taken, or given up: the ranks did not free in the same order
		r = p.waiting[at]
		p.waiting = append(p.waiting[:at], p.waiting[at+1:]...)
	}
	if lo == hi && place >= 0 {
		if err := waitFor(r.marks); err != nil {
			return nil, fmt.Errorf("streams that used the memory before: %w", err)
		}
		b.ptr = r.ptr
	} else if b.ptr, err = p.grow(class); err != nil {
		return nil, err
	}
	p.inUse += class
	return b, nil
}

// place is a block's chunk and its offset there, as one number.
func (y *symmetric) place(ptr unsafe.Pointer) int64 {
	for i, c := range y.chunks {
		if off := uintptr(ptr) - uintptr(c.ptr); uintptr(ptr) >= uintptr(c.ptr) && off < uintptr(y.pool.chunks[c.ptr]) {
			return int64(i)<<40 | int64(off)
		}
	}
	return -1
}

// get allocates and registers a chunk. Collective over all ranks, which all fail
// where one does.
func (y *symmetric) get(n int) (unsafe.Pointer, error) {
	w := y.w
	var c symChunk
	err := w.quiet()
	if err == nil {
		c.ptr, err = nccl.MemAlloc(w.gpu.dev, n)
	}
	if err := y.agreed(err, &c); err != nil {
		return nil, err
	}
	c.window, err = w.Comm.st.nccl.RegisterWindow(c.ptr, n)
	if err == nil && !c.window.Registered() {
		y.tell("NCCL has no windows on this machine")
	}
	if errors.As(err, new(*nccl.VersionError)) {
		y.tell(err.Error())
		c.reg, err = w.Comm.st.nccl.Register(c.ptr, n)
	}
	if err := y.agreed(err, &c); err != nil {
		return nil, err
	}
	y.chunks = append(y.chunks, c)
	return c.ptr, nil
}

// agreed gives the chunk back, and returns an error, where a rank failed. Collective.
func (y *symmetric) agreed(failure error, c *symChunk) error {
	why, rank, err := y.w.agreeInTurn(failure)
	switch {
	case err == nil && rank < 0:
		return nil
	case err == nil && failure == nil:
		err = fmt.Errorf("rank %d: %s", rank, why.text)
	case err == nil:
		err = failure
	}
	if c.window != nil {
		err = errors.Join(err, c.window.Close())
	}
	if c.reg != nil {
		err = errors.Join(err, c.reg.Close())
	}
	if c.ptr != nil {
		err = errors.Join(err, nccl.MemFree(y.w.gpu.dev, c.ptr))
	}
	return err
}

// tell says once why symmetric memory is no better than other memory.
func (y *symmetric) tell(why string) {
	y.told.Do(func() {
		y.w.Log.Info().Str("why", why).Msg("AllocSymmetric: small collectives have no faster path")
	})
}

// deregister takes the chunks out of the communicator, which is about to go.
func (y *symmetric) deregister() error {
	var err error
	for _, c := range y.chunks {
		if c.window != nil {
			err = errors.Join(err, c.window.Close())
		}
		if c.reg != nil {
			err = errors.Join(err, c.reg.Close())
		}
	}
	y.chunks = nil
	return err
}
