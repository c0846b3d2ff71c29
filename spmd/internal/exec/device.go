package exec

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rs/zerolog"

	"lockstep/internal/elem"
)

// Device runs the queues, events and graphs of one world.
type Device interface {
	// Name is "host", or the GPU's name.
	Name() string
	// Pools are the device's memory.
	Pools() Pools
	// Describe adds the device and its libraries to the start line.
	Describe(line *zerolog.Event)
	// Limits are what kernels may use; none on the host.
	Limits() Limits
	// Room returns how many bytes of memory are free, and how many there are.
	Room() (free, total int, err error)
	// ToDevice copies n bytes from Go's memory to the device's and returns when they are there.
	// ToHost copies back.
	ToDevice(dst, src unsafe.Pointer, n int) error
	ToHost(dst, src unsafe.Pointer, n int) error
	// SetAll sets n elements to the low bits of v and returns when it is done.
	SetAll(t elem.Type, dst unsafe.Pointer, n int, v elem.Bits) error
	// Advise says how n bytes at p of a block of managed memory will be used.
	Advise(b *Block, p unsafe.Pointer, n int, a Advice) error
	// Unadvise undoes what was said of a block of managed memory before it was freed.
	Unadvise(b *Block) error
	// Quiesce returns when no collective is in flight that a call which waits for the device would
	// disturb.
	Quiesce() error
	// NewQueue returns a new queue.
	NewQueue(name string, p Priority) (Queue, error)
	// NewTimer returns a new timer.
	NewTimer() Timer
	// NewBuilder returns a Builder, which makes a graph of a capture.
	NewBuilder() Builder
	// All returns the queues that are not closed.
	All() []Queue
	// Marks returns the ends of the queues that have work in flight.
	Marks() []Point
	// Settle returns when no queue uses the block any more, or never will. With another queue, it
	// makes what is enqueued there from now on wait for that instead.
	Settle(b *Block, behind Queue) error
	// KeepSigning has the queues tell how far they are, now and then, until stop.
	KeepSigning(every time.Duration, stop <-chan struct{})
	// EndJobs returns when the host has done all jobs that queues wait for. No more jobs come.
	EndJobs()
	// Close ends events and queues, whose work is over, gives the memory back, and the device up.
	Close() error
}

// Limits are what a GPU has.
type Limits struct {
	Multiprocessors int
	// SharedMemory is the most that a block of a kernel may have, in bytes. It includes what the
	// kernel declares itself.
	SharedMemory int
}

// Pools are the kinds of memory of a device. On the host they are one pool.
type Pools struct {
	Device  *Pool
	Pinned  *Pool // of the host, which the device copies from and to
	Managed *Pool // that both address
}

// Priority orders queues of a device.
type Priority int

// The priorities.
const (
	Low    Priority = -1
	Normal Priority = 0
	High   Priority = 1
)

// Queues has the queues of one device.
type Queues struct {
	mu    sync.Mutex
	list  []Queue
	seats [shared]atomic.Pointer[Queue]
	races *Races // nil without --check
}

// Add adds a queue.
func (s *Queues) Add(q Queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, q)
	n := &q.Place().n
	for *n = 0; *n < shared; *n++ {
		if s.seats[*n].CompareAndSwap(nil, &q) {
			break
		}
	}
	if s.races != nil {
		q.Place().strand = s.races.enters(q)
	}
}

// Remove takes a queue out, whose work is over.
func (s *Queues) Remove(q Queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.list)
	s.list = slices.DeleteFunc(s.list, func(o Queue) bool { return o == q })
	if seat := q.Place().n; len(s.list) < n && seat < shared {
		s.seats[seat].Store(nil)
	}
	if len(s.list) < n && s.races != nil {
		s.races.leaves(q)
	}
}

// All returns a copy of the list.
func (s *Queues) All() []Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list)
}

// Marks returns the ends of the queues that have work in flight.
func (s *Queues) Marks() []Point { return s.marks(func(Queue) bool { return true }) }

// marks is Marks of some queues.
func (s *Queues) marks(of func(Queue) bool) (ends []Point) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.list {
		if of(q) && !q.Idle() {
			ends = append(ends, q.End())
		}
	}
	return ends
}

// Explanation adds to a failure of a device what a kernel has found.
type Explanation struct{ fn atomic.Pointer[func() string] }

// Set has fn say what was found; "" is nothing.
func (e *Explanation) Set(fn func() string) { e.fn.Store(&fn) }

// Of adds the kernel's finding to a failure.
func (e *Explanation) Of(err error) error {
	if fn := e.fn.Load(); fn != nil {
		if text := (*fn)(); text != "" {
			return fmt.Errorf("%s: %w", text, err)
		}
	}
	return err
}

// Scratch is memory for the commands of one queue, or of one lane of a capture, one after the
// other.
type Scratch struct{ block *Block }

// Get returns memory of at least n bytes. Earlier memory that is too small goes to retire.
func (s *Scratch) Get(p *Pool, n int, retire func(*Block)) (*Block, error) {
	if s.block != nil && s.block.Size >= n {
		return s.block, nil
	}
	b := &Block{}
	if err := p.Alloc(b, n); err != nil {
		return nil, err
	}
	if s.block != nil {
		retire(s.block)
	}
	s.block = b
	return b, nil
}

// Take returns the memory, which the Scratch then has no more; nil if there is none.
func (s *Scratch) Take() *Block {
	b := s.block
	s.block = nil
	return b
}
