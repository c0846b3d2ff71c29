package spmd

// Await has enqueue put work on s that writes every element of b once, and blocks until the host
// sees all of them. b is memory of AllocPinned that no earlier work writes any more. On a GPU that
// is some microseconds before Synchronize would return: the work need not have ended. Only
// Synchronize tells whether the work has failed behind b, and waits for its other results. Await
// calls enqueue and Synchronize on the host, if MPI carries the collectives, and for other memory
// and elements of 1 and 2 bytes.
func Await[T Elem](s *Stream, b Buffer[T], enqueue func() error) error {
	a, err := s.rank().Awaited(s.queue(), b.block(), b.addr(), b.Bytes(), sizeOf[T]())
	if err != nil {
		return err
	}
	a.Mark()
	if err := enqueue(); err != nil {
		return err
	}
	return a.Wait(s.Synchronize)
}
