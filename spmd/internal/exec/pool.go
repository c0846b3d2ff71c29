package exec

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/internal/ccall"
)

// Block is one allocation. Handles point to it, so that a use after its end is found
// whatever copy of the handle it is made through.
type Block struct {
	Pool  *Pool // nil for an empty block
	Owner any   // who asked for it, in whose calls alone it may be used
	Ptr   unsafe.Pointer
	Bytes int // asked for
	Size  int // of the size class
	Freed atomic.Bool
	At    ccall.Site // where it was freed
	uses  uses
	// touched is by which commands, with --check.
	touched atomic.Pointer[history]
}

// Source is where a pool gets its memory from.
type Source struct {
	What     string // "host memory", "device memory", ...
	Host     bool   // the host addresses it
	Private  bool   // a program may not address it: on a GPU it could not
	SlabMax  int    // blocks up to this size are cut from a shared chunk
	SlabSize int    // of such a chunk
	Get      func(n int) (unsafe.Pointer, error)
	Put      func(p unsafe.Pointer, n int) error
	// Quiesce returns when Get and Put cannot disturb collectives in flight; nil if they never do.
	Quiesce func() error
	// Room says what is free for the message of an allocation that failed; nil if nobody knows.
	Room func() string
}

// Pool hands out memory by size class and never gives a block out again before every stream has
// passed the point where it was freed. It keeps what it got: the driver's allocator is asked only
// for more.
type Pool struct {
	Source
	mu      sync.Mutex
	free    map[int][]unsafe.Pointer // by size class
	waiting []retired
	slab    unsafe.Pointer // rest of the chunk that small blocks are cut from
	left    int            // bytes in it
	chunks  map[unsafe.Pointer]int
	order   []unsafe.Pointer // of chunks, as they came
	inUse   int              // bytes handed out
	peak    int              // the most that inUse has been
	held    int              // bytes of all chunks
	closed  atomic.Bool
	inOrder bool // blocks are used again in the order of Release, by AllocAgreed
}

// retired is a freed block that streams may still be using.
type retired struct {
	ptr   unsafe.Pointer
	class int
	marks []Point // the ends of the streams when it was freed
}

const (
	hugePage  = 2 << 20
	Alignment = 256 // of every block: vector units and cuBLAS alike
)

// Init makes an empty pool of p.
func (p *Pool) Init(s Source) {
	p.Source = s
	p.free, p.chunks = map[int][]unsafe.Pointer{}, map[unsafe.Pointer]int{}
}

var errClosed = errors.New("the world is closed")

// large is from where a block is likely to stay, and what is lost of it counts.
const large = 32 << 20

// SizeClass rounds up to the next of four steps for each power of two: at most a
// quarter of a block is lost, and blocks of nearby sizes are interchangeable. For
// large blocks there are 32 steps: at most 3 % are lost.
func SizeClass(n int) int {
	if n <= Alignment {
		return Alignment
	}
	steps := 3
	if n > large {
		steps = 6
	}
	step := max(Alignment, 1<<(bits.Len(uint(n-1))-steps))
	return (n + step - 1) / step * step
}

// Alloc makes b a block of n bytes. Their contents are undefined. If it has to ask the source it
// waits without the lock: others go on allocating and freeing.
func (p *Pool) Alloc(b *Block, n int) error {
	class := SizeClass(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reuse(b, n, class) {
		return nil
	}
	if p.Quiesce != nil && !p.closed.Load() && (class > p.SlabMax || p.left < class) {
		p.mu.Unlock()
		err := p.Quiesce()
		p.mu.Lock()
		if err != nil {
			return err
		}
		if p.reuse(b, n, class) {
			return nil
		}
	}
	if p.closed.Load() {
		return errClosed
	}
	ptr, err := p.grow(class)
	if err != nil && len(p.waiting) > 0 {
		p.mu.Unlock()
		p.await()
		p.mu.Lock()
		if p.reuse(b, n, class) {
			return nil
		}
		ptr, err = p.grow(class)
	}
	if exact := (n + hugePage - 1) / hugePage * hugePage; err != nil && exact < class && exact > p.SlabMax {
		if ptr, err = p.grow(exact); err == nil {
			class = exact // where memory is short nothing is rounded up
		}
	}
	if err != nil {
		room := ""
		if p.Room != nil {
			room = p.Room() + ", "
		}
		return fmt.Errorf("out of %s: asked for %d bytes; %s%d in use, %d held by the pool: %w",
			p.What, n, room, p.inUse, p.held, err)
	}
	p.took(class)
	b.Pool, b.Ptr, b.Size, b.Bytes = p, ptr, class, n
	return nil
}

// took counts bytes that are handed out.
func (p *Pool) took(n int) {
	p.inUse += n
	p.peak = max(p.peak, p.inUse)
}

// Peak returns the most bytes that were handed out at one time.
func (p *Pool) Peak() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peak
}

// InUse returns the bytes that are handed out.
func (p *Pool) InUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inUse
}

// reuse makes b a free block of the class, if there is one.
func (p *Pool) reuse(b *Block, n, class int) bool {
	if p.closed.Load() {
		return false
	}
	p.reclaim()
	l := p.free[class]
	if len(l) == 0 {
		return false
	}
	b.Pool, b.Ptr, b.Size, b.Bytes = p, l[len(l)-1], class, n
	p.free[class] = l[:len(l)-1]
	p.took(class)
	return true
}

// await waits until the streams have passed all blocks that were freed so far:
// memory is short. It does not say if they did not; the next try to get some does.
func (p *Pool) await() {
	p.mu.Lock()
	var marks []Point
	for _, r := range p.waiting {
		marks = append(marks, r.marks...)
	}
	p.mu.Unlock()
	_ = WaitFor(marks)
}

func (p *Pool) grow(class int) (unsafe.Pointer, error) {
	if class > p.SlabMax {
		return p.chunk(class)
	}
	if p.left < class {
		c, err := p.chunk(p.SlabSize)
		if err != nil {
			return nil, err
		}
		p.slab, p.left = c, p.SlabSize
	}
	ptr := p.slab
	p.slab, p.left = unsafe.Add(p.slab, class), p.left-class
	return ptr, nil
}

// AllocAgreed is Alloc for memory that has to lie at the same place on all ranks. Nothing depends
// on how far the queues of this rank have got: the block of the class that was released first is
// taken again, if agree says that all ranks mean the same one, and the wait for the queues comes
// after the choice. agree is given the block's chunk, by the order of Get, and the offset there as
// one number, -1 for none. A pool serves Alloc or AllocAgreed, not both. Collective as agree is.
func (p *Pool) AllocAgreed(b *Block, n int, agree func(place int64) (same bool, err error)) error {
	class := SizeClass(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inOrder = true
	if p.closed.Load() {
		return errClosed
	}
	at := slices.IndexFunc(p.waiting, func(r retired) bool { return r.class == class })
	place := int64(-1)
	if at >= 0 {
		place = p.place(p.waiting[at].ptr)
	}
	same, err := agree(place)
	if err != nil {
		return err
	}
	var r retired
	if at >= 0 { // taken, or given up: the ranks did not release in the same order
		r = p.waiting[at]
		p.waiting = append(p.waiting[:at], p.waiting[at+1:]...)
	}
	if same && place >= 0 {
		if err := WaitFor(r.marks); err != nil {
			return fmt.Errorf("streams that used the memory before: %w", err)
		}
		b.Ptr = r.ptr
	} else if b.Ptr, err = p.grow(class); err != nil {
		return err
	}
	b.Pool, b.Size, b.Bytes = p, class, n
	p.took(class)
	return nil
}

// place returns a block's chunk and its offset there, as one number.
func (p *Pool) place(ptr unsafe.Pointer) int64 {
	for i, c := range p.order {
		if off := uintptr(ptr) - uintptr(c); uintptr(ptr) >= uintptr(c) && off < uintptr(p.chunks[c]) {
			return int64(i)<<40 | int64(off)
		}
	}
	return -1
}

// EachChunk calls fn with what the pool has got from its source and holds, in that
// order, until it fails. The pool is locked meanwhile.
func (p *Pool) EachChunk(fn func(c unsafe.Pointer, n int) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.order {
		if err := fn(c, p.chunks[c]); err != nil {
			return err
		}
	}
	return nil
}

// chunk gets memory from the source. If that has none, what lies unused in other size classes is
// given back first.
func (p *Pool) chunk(n int) (unsafe.Pointer, error) {
	ptr, err := p.Get(n)
	if err != nil {
		p.reclaim()
		if p.trim() {
			ptr, err = p.Get(n)
		}
	}
	if err != nil {
		return nil, err
	}
	p.chunks[ptr] = n
	p.order = append(p.order, ptr)
	p.held += n
	return ptr, nil
}

// trim gives back the free blocks that are chunks of their own, and says whether
// there were any.
func (p *Pool) trim() bool {
	given := false
	for class, l := range p.free {
		if class <= p.SlabMax {
			continue
		}
		p.free[class] = slices.DeleteFunc(l, func(ptr unsafe.Pointer) bool {
			if p.Put(ptr, class) != nil {
				return false
			}
			delete(p.chunks, ptr)
			p.order = slices.DeleteFunc(p.order, func(c unsafe.Pointer) bool { return c == ptr })
			p.held -= class
			given = true
			return true
		})
	}
	return given
}

// Closed reports whether Close was called.
func (p *Pool) Closed() bool { return p.closed.Load() }

// Release takes a block back, which queues may be using up to their marks.
func (p *Pool) Release(b *Block, marks []Point) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return // its memory is gone already
	}
	p.inUse -= b.Size
	if len(marks) == 0 && !p.inOrder {
		p.free[b.Size] = append(p.free[b.Size], b.Ptr)
		return
	}
	p.waiting = append(p.waiting, retired{b.Ptr, b.Size, marks})
}

// reclaim moves the blocks that no stream can use any more to the free lists.
func (p *Pool) reclaim() {
	if p.inOrder {
		return
	}
	rest := p.waiting[:0]
	for _, r := range p.waiting {
		if reached(r.marks) {
			p.free[r.class] = append(p.free[r.class], r.ptr)
		} else {
			rest = append(rest, r)
		}
	}
	p.waiting = rest
}

// Close gives everything back. The queues have ended.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed.Store(true)
	var err error
	for c, n := range p.chunks {
		err = errors.Join(err, p.Put(c, n))
	}
	p.chunks, p.order, p.slab, p.left, p.free, p.waiting = nil, nil, nil, 0, nil, nil
	return err
}

// HostSource is memory from mmap, not from the Go heap: it does not move, C may
// keep its address, and the collector does not scan it. Huge pages where they fit.
func HostSource() Source {
	maps := map[unsafe.Pointer][]byte{}
	return Source{
		What: "host memory", Host: true, SlabMax: 1 << 16, SlabSize: hugePage,
		Get: func(n int) (unsafe.Pointer, error) {
			size := n
			if n >= hugePage {
				size += hugePage // room to align
			}
			const access, kind = syscall.PROT_READ | syscall.PROT_WRITE, syscall.MAP_PRIVATE | syscall.MAP_ANON
			m, err := syscall.Mmap(-1, 0, size, access, kind)
			if err != nil {
				return nil, fmt.Errorf("mmap of %d bytes: %w", size, err)
			}
			at := 0
			if r := int(uintptr(unsafe.Pointer(&m[0])) % hugePage); n >= hugePage && r != 0 {
				at = hugePage - r
			}
			if n >= hugePage {
				// It is advice: a kernel without huge pages is slower, not wrong.
				_ = unix.Madvise(m[at:at+n], unix.MADV_HUGEPAGE)
			}
			ptr := unsafe.Pointer(&m[at])
			maps[ptr] = m
			return ptr, nil
		},
		Put: func(p unsafe.Pointer, _ int) error {
			m := maps[p]
			delete(maps, p)
			return syscall.Munmap(m)
		},
	}
}
