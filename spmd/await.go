package spmd

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"lockstep/internal/ccall"
)

// Await has enqueue put work on s that writes every element of b once, and blocks until
// the host sees all of them. b is memory of AllocPinned that no earlier work writes any
// more. On a GPU that is some microseconds before Synchronize would return: the work need
// not have ended. What else it writes, and whether it failed behind b, is known after
// Synchronize only. On the host, where MPI carries the collectives, and for other memory
// and elements of 1 and 2 bytes, Await is enqueue and Synchronize.
func Await[T Elem](s *Stream, b Buffer[T], enqueue func() error) error {
	a, err := b.awaited(s)
	if err != nil {
		return err
	}
	a.mark()
	if err := enqueue(); err != nil {
		return err
	}
	return a.wait()
}

// awaiter looks at memory that a device writes.
type awaiter struct {
	s     *Stream
	q     written
	words []uint32 // of the memory; none where there is nothing to see
	seen  int
	// What the stream held before the work, which is over when that has written.
	before uint64
}

// written is a queue of which the host sees what it writes before it knows that it has.
type written interface {
	Tail() uint64 // commands enqueued
	Pass(seq uint64)
}

const (
	// unwritten marks words. Where the work writes just that, the end of the stream tells.
	unwritten = 0x7ff7a55a
	// awaitFor is how long to look before Synchronize gains nothing that counts.
	awaitFor = time.Millisecond
)

func (b Buffer[T]) awaited(s *Stream) (awaiter, error) {
	a := awaiter{s: s}
	if s.q.Lane() != nil {
		return a, fmt.Errorf("%s: Await: stream %q is being captured", ccall.At(), s.name)
	}
	if err := s.w.checkBlock(b.blk); err != nil {
		return a, err
	}
	// MPI may keep in the memory of a result what is not the result yet.
	if q, ok := s.q.(written); ok && !s.w.Comm.st.handed() && b.n > 0 && b.blk.Pool == s.w.dev.Pools().Pinned && sizeOf[T]() >= 4 {
		a.q = q
		a.words = unsafe.Slice((*uint32)(b.addr()), b.Bytes()/4)
	}
	return a, nil
}

func (a *awaiter) mark() {
	if len(a.words) > 0 {
		a.before = a.q.Tail()
	}
	for i := range a.words {
		atomic.StoreUint32(&a.words[i], unwritten)
	}
	a.seen = 0
}

func (a *awaiter) wait() error {
	for start := time.Now(); len(a.words) > 0 && time.Since(start) < awaitFor; {
		for range 32 {
			for a.seen < len(a.words) && atomic.LoadUint32(&a.words[a.seen]) != unwritten {
				a.seen++
			}
			if a.seen == len(a.words) {
				a.q.Pass(a.before) // or what was issued would pile up where nobody synchronizes
				return nil
			}
		}
	}
	return a.s.Synchronize()
}
