package run

import (
	"fmt"
	"sync"

	"lockstep/spmd"
	"lockstep/spmd/progress"
)

// saving is how far rank 0 is with the checkpoint that it writes beside the steps. Any
// goroutine may call its methods.
type saving struct {
	w *spmd.World

	mu        sync.Mutex
	bytes, of int64
	told      *progress.Work // of the checkpoint that is being written
	alone     bool           // nothing else goes on
}

// written takes how many bytes are written, of how many.
func (s *saving) written(bytes, of int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told == nil {
		s.told = progress.Start(s.w, "saving", of, progress.Bytes).Beside(!s.alone)
	}
	s.told.Add(max(bytes-s.bytes, 0))
	s.bytes, s.of = bytes, of
}

// end is that nothing is being written any more.
func (s *saving) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told.Done()
	s.bytes, s.of, s.told = 0, 0, nil
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

// last says that nothing else goes on: a live line is that of the checkpoint.
func (s *saving) last() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alone = true
	s.told.Beside(false)
}
