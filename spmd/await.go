package spmd

import "lockstep/spmd/internal/exec"

// Await has enqueue put work on s that writes every element of b once, and blocks until
// the host sees all of them. b is memory of AllocPinned that no earlier work writes any
// more. On a GPU that is some microseconds before Synchronize would return: the work need
// not have ended. What else it writes, and whether it failed behind b, is known after
// Synchronize only. On the host, where MPI carries the collectives, and for other memory
// and elements of 1 and 2 bytes, Await is enqueue and Synchronize.
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

// Awaiter is Await for many turns: Mark, what is enqueued, and Wait.
type Awaiter struct {
	s *Stream
	a exec.Await
}

// NewAwaiter returns what waits for b while s writes it.
func NewAwaiter[T Elem](s *Stream, b Buffer[T]) (Awaiter, error) {
	a, err := s.w.in.Awaited(s.q, b.blk, b.addr(), b.Bytes(), sizeOf[T]())
	return Awaiter{s, a}, err
}

// Mark prepares the memory. It comes before what is enqueued.
func (a Awaiter) Mark() { a.a.Mark() }

// Wait blocks until the host sees what was enqueued since Mark.
func (a Awaiter) Wait() error { return a.a.Wait(a.s.Synchronize) }
