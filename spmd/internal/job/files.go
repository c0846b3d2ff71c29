package job

import (
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// FileStep is a step of the work on a file that has not ended.
type FileStep struct {
	What  string // "sync of /checkpoints/step-00000001.tmp/shard-00000-of-00002.safetensors"
	Since time.Time
}

// FileWork is the work of a rank on files that may be slow, or never answer: which step it is in,
// and whether the program waits for it. A rank that waits for files is not missing from a
// collective. It has a limit of its own for each step, and says which step it is in to whoever
// watches the job. The zero value is ready for use.
type FileWork struct {
	// Patience is how long a rank may be in one call of MPI, or between two steps.
	Patience time.Duration

	mu    sync.Mutex
	steps []*FileStep // in the order in which they began
	moved time.Time   // when one began or ended last

	used  atomic.Bool
	end   atomic.Int64 // when a long call ended, in Unix ns
	limit atomic.Int64 // of a step, in ns, in a call; else 0
}

// Do makes one step of the work on a file.
func (w *FileWork) Do(what string, fn func() error) error {
	s := &FileStep{what, time.Now()}
	w.mu.Lock()
	w.steps, w.moved = append(w.steps, s), s.Since
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.moved = time.Now()
		w.steps = slices.DeleteFunc(w.steps, func(o *FileStep) bool { return o == s })
	}()
	return fn()
}

// FileFault is called before every Change; its error becomes the error of the change. Only tests
// set it.
var FileFault func(op, path string) error

// Change is Do for an operation that tests can have fail.
func (w *FileWork) Change(op, path string, fn func() error) error {
	return w.Do(op+" of "+path, func() error {
		if FileFault != nil {
			if err := FileFault(op, path); err != nil {
				return &fs.PathError{Op: op, Path: path, Err: err}
			}
		}
		return fn()
	})
}

// Oldest returns the first step that began after a point in time and has not ended; nil if there is
// none.
func (w *FileWork) Oldest(after time.Time) *FileStep {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.IndexFunc(w.steps, func(s *FileStep) bool { return s.Since.After(after) }); i >= 0 {
		return w.steps[i]
	}
	return nil
}

// Enter says that the program is in a call that works on files, until leave. A step may take as
// long as limit.
func (w *FileWork) Enter(limit time.Duration) (leave func()) {
	start := time.Now()
	w.mu.Lock()
	w.moved = start
	w.mu.Unlock()
	w.used.Store(true)
	w.limit.Store(int64(limit))
	return func() {
		w.limit.Store(0)
		if time.Since(start) > w.Patience/2 {
			w.end.Store(time.Now().UnixNano())
		}
	}
}

// Used reports whether there has been such a call.
func (w *FileWork) Used() bool { return w.used.Load() }

// FileState is a rank's work on files, as a report shows it.
type FileState struct {
	What    string  `json:"what"`
	Seconds float64 `json:"seconds"`
	Waits   bool    `json:"waits,omitempty"` // the rank waits for it, and has not done so for too long
}

func (s *FileState) String() string { return fmt.Sprintf("%s, for %.1f s", s.What, s.Seconds) }

// State returns the oldest step of this rank, or its work between two steps; nil if there is
// nothing to say. meets says that the rank waits for other ranks, not for files.
func (w *FileWork) State(meets bool) *FileState {
	limit := time.Duration(w.limit.Load())
	waits := limit != 0 && !meets
	if s := w.Oldest(time.Time{}); s != nil {
		took := time.Since(s.Since)
		return &FileState{s.What, took.Seconds(), waits && took < limit}
	}
	if waits {
		w.mu.Lock()
		took := time.Since(w.moved)
		w.mu.Unlock()
		return &FileState{"work between two steps on files", took.Seconds(), took < w.Patience}
	}
	// The others have waited as long as this rank has, and may not give it the time to come.
	if end := w.end.Load(); end != 0 {
		if took := time.Since(time.Unix(0, end)); took < w.Patience {
			return &FileState{"work after long steps on files", took.Seconds(), true}
		}
	}
	return nil
}
