package spmd

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/internal/ccall"
)

// block is one allocation. Handles (Buffer) point to it, so that a use after
// Free is found whatever copy of the handle it is made through.
type block struct {
	w     *World
	pool  *pool // nil for an empty buffer
	ptr   unsafe.Pointer
	bytes int // asked for
	size  int // of the size class
	freed atomic.Bool
	at    ccall.Site // where it was freed
}

// source is where a pool gets its memory from.
type source struct {
	what     string // "host memory", "device memory", ...
	host     bool   // the host addresses it
	slabMax  int    // blocks up to this size are cut from a shared chunk
	slabSize int    // of such a chunk
	get      func(n int) (unsafe.Pointer, error)
	put      func(p unsafe.Pointer, n int) error
	// quiet returns when get and put cannot disturb collectives in flight; nil
	// where they never do.
	quiet func() error
	// room says what is free for the message of an allocation that failed; nil
	// where nobody knows.
	room func() string
}

// pool hands out memory by size class and never gives a block out again before
// every stream has passed the point where it was freed. What it got it keeps: the
// driver's allocator is asked only for more.
type pool struct {
	source
	mu      sync.Mutex
	free    map[int][]unsafe.Pointer // by size class
	waiting []retired
	slab    unsafe.Pointer // rest of the chunk that small blocks are cut from
	left    int            // bytes in it
	chunks  map[unsafe.Pointer]int
	inUse   int // bytes handed out
	held    int // bytes of all chunks
	closed  atomic.Bool
	inOrder bool // blocks are used again in the order of Free (see symmetric)
}

// retired is a freed block that streams may still be using.
type retired struct {
	ptr   unsafe.Pointer
	class int
	marks []point // the ends of the streams when it was freed
}

const (
	hugePage  = 2 << 20
	alignment = 256 // of every block: vector units and cuBLAS alike
)

func (p *pool) init(s source) {
	p.source = s
	p.free, p.chunks = map[int][]unsafe.Pointer{}, map[unsafe.Pointer]int{}
}

// sizeClass rounds up to the next of four steps for each power of two: at most a
// quarter of a block is lost, and blocks of nearby sizes are interchangeable.
func sizeClass(n int) int {
	if n <= alignment {
		return alignment
	}
	step := max(alignment, 1<<(bits.Len(uint(n-1))-3))
	return (n + step - 1) / step * step
}

// alloc returns memory for n bytes. Its contents are undefined. Where it has to ask
// the source it waits without the lock: others go on allocating and freeing.
func (p *pool) alloc(w *World, n int) (*block, error) {
	class := sizeClass(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.reuse(w, n, class); b != nil {
		return b, nil
	}
	if p.quiet != nil && !p.closed.Load() && (class > p.slabMax || p.left < class) {
		p.mu.Unlock()
		err := p.quiet()
		p.mu.Lock()
		if err != nil {
			return nil, err
		}
		if b := p.reuse(w, n, class); b != nil {
			return b, nil
		}
	}
	if p.closed.Load() {
		return nil, errors.New("the world is closed")
	}
	ptr, err := p.grow(class)
	if err != nil && len(p.waiting) > 0 {
		p.mu.Unlock()
		p.await()
		p.mu.Lock()
		if b := p.reuse(w, n, class); b != nil {
			return b, nil
		}
		ptr, err = p.grow(class)
	}
	if exact := (n + hugePage - 1) / hugePage * hugePage; err != nil && exact < class && exact > p.slabMax {
		if ptr, err = p.grow(exact); err == nil {
			class = exact // where memory is short nothing is rounded up
		}
	}
	if err != nil {
		room := ""
		if p.room != nil {
			room = p.room() + ", "
		}
		return nil, fmt.Errorf("out of %s: asked for %d bytes; %s%d in use, %d held by the pool: %w", p.what, n, room, p.inUse, p.held, err)
	}
	p.inUse += class
	return &block{w: w, pool: p, ptr: ptr, size: class, bytes: n}, nil
}

// reuse takes a free block of the class; nil where there is none.
func (p *pool) reuse(w *World, n, class int) *block {
	if p.closed.Load() {
		return nil
	}
	p.reclaim()
	l := p.free[class]
	if len(l) == 0 {
		return nil
	}
	b := &block{w: w, pool: p, ptr: l[len(l)-1], size: class, bytes: n}
	p.free[class] = l[:len(l)-1]
	p.inUse += class
	return b
}

// await waits until the streams have passed all blocks that were freed so far:
// memory is short. It does not say if they did not; the next try to get some does.
func (p *pool) await() {
	p.mu.Lock()
	var marks []point
	for _, r := range p.waiting {
		marks = append(marks, r.marks...)
	}
	p.mu.Unlock()
	_ = waitFor(marks)
}

// patience bounds waits that hardly a program ever meets.
const patience = 2 * time.Minute

var errImpatient = fmt.Errorf("what is in flight did not finish in %v", patience)

// waitFor looks, without blocking in a library, until all points are reached, one of
// their queues has failed, or patience is at its end.
func waitFor(points []point) error {
	for start := time.Now(); !passed(points); nap() {
		for _, p := range points {
			if err := p.failure(); err != nil {
				return err
			}
		}
		if time.Since(start) > patience {
			return errImpatient
		}
	}
	return nil
}

func (p *pool) grow(class int) (unsafe.Pointer, error) {
	if class > p.slabMax {
		return p.chunk(class)
	}
	if p.left < class {
		c, err := p.chunk(p.slabSize)
		if err != nil {
			return nil, err
		}
		p.slab, p.left = c, p.slabSize
	}
	ptr := p.slab
	p.slab, p.left = unsafe.Add(p.slab, class), p.left-class
	return ptr, nil
}

// chunk gets memory from the source. Where that has none, what lies unused in
// other size classes is given back first.
func (p *pool) chunk(n int) (unsafe.Pointer, error) {
	ptr, err := p.get(n)
	if err != nil {
		p.reclaim()
		if p.trim() {
			ptr, err = p.get(n)
		}
	}
	if err != nil {
		return nil, err
	}
	p.chunks[ptr] = n
	p.held += n
	return ptr, nil
}

// trim gives back the free blocks that are chunks of their own, and says whether
// there were any.
func (p *pool) trim() bool {
	given := false
	for class, l := range p.free {
		if class <= p.slabMax {
			continue
		}
		for _, ptr := range l {
			if p.put(ptr, class) == nil {
				delete(p.chunks, ptr)
				p.held -= class
				given = true
			}
		}
		delete(p.free, class)
	}
	return given
}

// release takes a block back. Streams with work in flight keep it waiting.
func (p *pool) release(b *block, marks []point) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return // its memory is gone already
	}
	p.inUse -= b.size
	if len(marks) == 0 && !p.inOrder {
		p.free[b.size] = append(p.free[b.size], b.ptr)
		return
	}
	p.waiting = append(p.waiting, retired{b.ptr, b.size, marks})
}

// reclaim moves the blocks that no stream can use any more to the free lists.
func (p *pool) reclaim() {
	if p.inOrder {
		return
	}
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
		if !m.q.reached(m.seq) {
			return false
		}
	}
	return true
}

// close gives everything back. The streams have ended.
func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed.Store(true)
	var err error
	for c, n := range p.chunks {
		err = errors.Join(err, p.put(c, n))
	}
	p.chunks, p.slab, p.left, p.free, p.waiting = nil, nil, 0, nil, nil
	return err
}

// hostSource is memory from mmap, not from the Go heap: it does not move, C may
// keep its address, and the collector does not scan it. Huge pages where they fit.
func hostSource() source {
	maps := map[unsafe.Pointer][]byte{}
	return source{
		what: "host memory", host: true, slabMax: 1 << 16, slabSize: hugePage,
		get: func(n int) (unsafe.Pointer, error) {
			size := n
			if n >= hugePage {
				size += hugePage // room to align
			}
			m, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
			if err != nil {
				return nil, fmt.Errorf("mmap of %d bytes: %w", size, err)
			}
			at := 0
			if r := int(uintptr(unsafe.Pointer(&m[0])) % hugePage); n >= hugePage && r != 0 {
				at = hugePage - r
			}
			if n >= hugePage {
				_ = unix.Madvise(m[at:at+n], unix.MADV_HUGEPAGE) // advice: a kernel without huge pages is slower, not wrong
			}
			ptr := unsafe.Pointer(&m[at])
			maps[ptr] = m
			return ptr, nil
		},
		put: func(p unsafe.Pointer, _ int) error {
			m := maps[p]
			delete(maps, p)
			return syscall.Munmap(m)
		},
	}
}
