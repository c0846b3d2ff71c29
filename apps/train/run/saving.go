package run

import (
	"fmt"
	"sync"

	"lockstep/spmd"
	"lockstep/spmd/progress"
)

// saving is how far rank 0 is with the checkpoint that it writes beside the steps. Any goroutine may call its methods.
type saving struct {
	mu        sync.Mutex
	bytes, of int64
	told      *progress.Work // while nothing else goes on
}

// written takes how many bytes are written, of how many; none of none where that is over.
func (s *saving) written(bytes, of int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes > s.bytes {
		s.told.Add(bytes - s.bytes)
	}
	s.bytes, s.of = bytes, of
}

// note is what stands beside the loss; "" where no checkpoint is being written.
func (s *saving) note() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == 0 {
		return ""
	}
	return fmt.Sprintf("  saving %d %%", 100*s.bytes/s.of)
}

// alone tells of it as of work of its own, until end.
func (s *saving) alone(w *spmd.World) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == 0 {
		return func() {}
	}
	told := progress.Start(w, "saving", s.of, progress.Bytes).From(s.bytes)
	s.told = told
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told = nil
		told.Done()
	}
}
