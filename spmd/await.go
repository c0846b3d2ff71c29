package spmd

import "lockstep/spmd/internal/exec"

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
	a.Mark()
	if err := enqueue(); err != nil {
		return err
	}
	return a.Wait(s.Synchronize)
}

// awaited returns what looks at b while s writes it.
func (b Buffer[T]) awaited(s *Stream) (exec.Await, error) {
	return s.s.Awaited(b.blk, b.addr(), b.Bytes(), sizeOf[T]())
}
