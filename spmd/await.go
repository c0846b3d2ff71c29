package spmd

import "lockstep/spmd/internal/exec"

// Await has enqueue put work on s that writes every element of b once, and blocks until the host
// sees all of them. b is memory of AllocPinned that no earlier work writes any more. On a GPU that
// is some microseconds before Synchronize would return: the work need not have ended. Only
// Synchronize tells whether the work has failed behind b, and waits for its other results. Await
// calls enqueue and Synchronize on the host, if MPI carries the collectives, and for other memory
// and elements of 1 and 2 bytes.
func Await[T Elem](s *Stream, b Buffer[T], enqueue func() error) error {
	a, err := NewAwaiter(s, b)
	if err != nil {
		return err
	}
	a.Mark()
	if err := enqueue(); err != nil {
		return err
	}
	return a.Wait()
}

// Awaiter is Await for many turns. A turn calls Mark, enqueues the work, and calls Wait.
type Awaiter struct {
	s *Stream
	a exec.Await
}

// NewAwaiter returns an Awaiter for b, which work on s writes.
func NewAwaiter[T Elem](s *Stream, b Buffer[T]) (Awaiter, error) {
	a, err := s.rank().Awaited(s.queue(), b.block(), b.addr(), b.Bytes(), sizeOf[T]())
	return Awaiter{s, a}, err
}

// Mark prepares the memory. Call it before enqueueing the work.
func (a Awaiter) Mark() { a.a.Mark() }

// Wait blocks until the host sees the results of the work that was enqueued since Mark.
func (a Awaiter) Wait() error { return a.a.Wait(a.s.Synchronize) }
