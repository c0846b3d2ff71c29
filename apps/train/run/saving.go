package run

import (
	"fmt"
	"sync"

	"lockstep/spmd"
	"lockstep/spmd/telemetry"
)

// saving follows the checkpoint that rank 0 writes beside the steps. Any
// goroutine may call its methods.
type saving struct {
	w *spmd.World

	mu        sync.Mutex
	bytes, of int64
	told      *telemetry.Work // of the checkpoint that is being written
	alone     bool            // nothing else goes on
}

// written notes that so many bytes are written.
func (s *saving) written(bytes, of int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told == nil {
		s.told = telemetry.StartWork(s.w, "saving", of, "bytes").SetBeside(!s.alone)
	}
	s.told.Add(max(bytes-s.bytes, 0))
	s.bytes, s.of = bytes, of
}

// end notes that the checkpoint is written.
func (s *saving) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told.Done()
	s.bytes, s.of, s.told = 0, 0, nil
}

// note returns the text beside the loss, or "" if no checkpoint is being written.
func (s *saving) note() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == 0 {
		return ""
	}
	return fmt.Sprintf("  saving %d %%", 100*s.bytes/s.of)
}

// last notes that nothing else is going on, so the live line is the checkpoint's.
func (s *saving) last() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alone = true
	s.told.SetBeside(false)
}
