package spmd

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/internal/ccall"
)

// block is one allocation. Handles (Buffer) point to it, so that a use after
// Free is found whatever copy of the handle it is made through.
type block struct {
	w     *World
	ptr   unsafe.Pointer
	bytes int // asked for
	size  int // of the size class
	freed atomic.Bool
	at    ccall.Site // where it was freed
}

// pool hands out host memory by size class and never gives a block out again
// before every stream has passed the point where it was freed. Its memory comes
// from mmap, not from the Go heap: it does not move, C may keep its address, and
// the collector does not scan it.
type pool struct {
	mu      sync.Mutex
	free    map[int][]unsafe.Pointer // by size class
	waiting []retired
	slab    []byte // rest of the chunk that small blocks are cut from
	chunks  [][]byte
	inUse   int // bytes handed out
	held    int // bytes mapped
	closed  atomic.Bool
}

// retired is a freed block that streams may still be using.
type retired struct {
	ptr   unsafe.Pointer
	class int
	marks []point // the ends of the streams when it was freed
}

const (
	hugePage  = 2 << 20
	alignment = 256     // of every block: vector units and cuBLAS alike
	slabLimit = 1 << 16 // blocks up to this size are cut from a shared chunk
)

// sizeClass rounds up to the next of four steps for each power of two: at most a
// quarter of a block is lost, and blocks of nearby sizes are interchangeable.
func sizeClass(n int) int {
	if n <= alignment {
		return alignment
	}
	step := max(alignment, 1<<(bits.Len(uint(n-1))-3))
	return (n + step - 1) / step * step
}

// alloc returns memory for n bytes. Its contents are undefined.
func (p *pool) alloc(w *World, n int) (*block, error) {
	class := sizeClass(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return nil, errors.New("the world is closed")
	}
	p.reclaim()
	b := &block{w: w, size: class}
	if l := p.free[class]; len(l) > 0 {
		b.ptr, p.free[class] = l[len(l)-1], l[:len(l)-1]
		p.inUse += class
		return b, nil
	}
	ptr, err := p.grow(class)
	if err != nil {
		return nil, fmt.Errorf("out of memory: asked for %d bytes, %d in use, %d held by the pool: %w", n, p.inUse, p.held, err)
	}
	b.ptr = ptr
	p.inUse += class
	return b, nil
}

func (p *pool) grow(class int) (unsafe.Pointer, error) {
	if class <= slabLimit {
		if len(p.slab) < class {
			c, err := p.mmap(hugePage)
			if err != nil {
				return nil, err
			}
			p.slab = c
		}
		ptr := unsafe.Pointer(&p.slab[0])
		p.slab = p.slab[class:]
		return ptr, nil
	}
	c, err := p.mmap(class)
	if err != nil {
		return nil, err
	}
	return unsafe.Pointer(&c[0]), nil
}

// mmap maps n zeroed bytes, huge pages where they fit.
func (p *pool) mmap(n int) ([]byte, error) {
	size := n
	if n >= hugePage {
		size += hugePage // room to align
	}
	m, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", size, err)
	}
	p.chunks = append(p.chunks, m)
	p.held += size
	if n < hugePage {
		return m, nil
	}
	if r := int(uintptr(unsafe.Pointer(&m[0])) % hugePage); r != 0 {
		m = m[hugePage-r:]
	}
	m = m[:n]
	_ = unix.Madvise(m, unix.MADV_HUGEPAGE) // advice: a kernel without huge pages is slower, not wrong
	return m, nil
}

// release takes a block back. Streams with work in flight keep it waiting.
func (p *pool) release(b *block, marks []point) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return // its memory is gone already
	}
	p.inUse -= b.size
	if len(marks) == 0 {
		p.free[b.size] = append(p.free[b.size], b.ptr)
		return
	}
	p.waiting = append(p.waiting, retired{b.ptr, b.size, marks})
}

// reclaim moves the blocks that no stream can use any more to the free lists.
func (p *pool) reclaim() {
	rest := p.waiting[:0]
	for _, r := range p.waiting {
		if passed(r.marks) {
			p.free[r.class] = append(p.free[r.class], r.ptr)
		} else {
			rest = append(rest, r)
		}
	}
	p.waiting = rest
}

func passed(marks []point) bool {
	for _, m := range marks {
		if m.q.done.Load() < m.seq {
			return false
		}
	}
	return true
}

// close unmaps everything. The streams have ended.
func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed.Store(true)
	var err error
	for _, c := range p.chunks {
		err = errors.Join(err, syscall.Munmap(c))
	}
	p.chunks, p.slab, p.free, p.waiting = nil, nil, nil, nil
	return err
}
