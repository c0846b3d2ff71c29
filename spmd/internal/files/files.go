// Package files is what this process does with files that may be slow, or never answer: which step of that work it is in,
// and whether the program waits for it. A rank that does is not missing from a collective. It has a limit of its own for
// each step, and says in which it is to whoever watches the job.
package files

import (
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Step is a step of the work on a file that has not ended.
type Step struct {
	What  string // "sync of /checkpoints/step-00000001.tmp/shard-00000-of-00002.safetensors"
	Since time.Time
}

// steps are those of this process, in the order in which they began.
var steps struct {
	mu    sync.Mutex
	list  []*Step
	moved time.Time // when one began or ended last
}

// Do makes one step of the work on a file.
func Do(what string, fn func() error) error {
	s := &Step{what, time.Now()}
	steps.mu.Lock()
	steps.list, steps.moved = append(steps.list, s), s.Since
	steps.mu.Unlock()
	defer func() {
		steps.mu.Lock()
		defer steps.mu.Unlock()
		steps.moved = time.Now()
		steps.list = slices.DeleteFunc(steps.list, func(o *Step) bool { return o == s })
	}()
	return fn()
}

// Fault is called before every Change; an error from it becomes that of the change. Only tests set it.
var Fault func(op, path string) error

// Change is Do for an operation that tests can have fail.
func Change(op, path string, fn func() error) error {
	return Do(op+" of "+path, func() error {
		if Fault != nil {
			if err := Fault(op, path); err != nil {
				return &fs.PathError{Op: op, Path: path, Err: err}
			}
		}
		return fn()
	})
}

// Oldest returns the first step that began after a point in time and has not ended; nil where there is none.
func Oldest(after time.Time) *Step {
	steps.mu.Lock()
	defer steps.mu.Unlock()
	if i := slices.IndexFunc(steps.list, func(s *Step) bool { return s.Since.After(after) }); i >= 0 {
		return steps.list[i]
	}
	return nil
}

// Waiting is whether a program waits for its work on files. The zero value is ready for use.
type Waiting struct {
	// Patience is how long a rank may be in one call of MPI, or between two steps.
	Patience time.Duration

	used  atomic.Bool
	end   atomic.Int64 // when a long call ended, in Unix ns
	limit atomic.Int64 // of a step, in ns, in a call; else 0
}

// Enter says that the program is in a call that works on files, until leave. A step may take as long as limit.
func (w *Waiting) Enter(limit time.Duration) (leave func()) {
	start := time.Now()
	steps.mu.Lock()
	steps.moved = start
	steps.mu.Unlock()
	w.used.Store(true)
	w.limit.Store(int64(limit))
	return func() {
		w.limit.Store(0)
		if time.Since(start) > w.Patience/2 {
			w.end.Store(time.Now().UnixNano())
		}
	}
}

// Used says whether there has been such a call.
func (w *Waiting) Used() bool { return w.used.Load() }

// State is what a rank does with files, as it says in a report.
type State struct {
	What    string  `json:"what"`
	Seconds float64 `json:"seconds"`
	Waits   bool    `json:"waits,omitempty"` // the rank waits for it, and has not done so for too long
}

func (s *State) String() string { return fmt.Sprintf("%s, for %.1f s", s.What, s.Seconds) }

// State returns the oldest step of this rank, or what it does between two; nil where there is nothing to say. meets says that
// the rank waits for other ranks, not for files.
func (w *Waiting) State(meets bool) *State {
	limit := time.Duration(w.limit.Load())
	waits := limit != 0 && !meets
	if s := Oldest(time.Time{}); s != nil {
		took := time.Since(s.Since)
		return &State{s.What, took.Seconds(), waits && took < limit}
	}
	if waits {
		steps.mu.Lock()
		took := time.Since(steps.moved)
		steps.mu.Unlock()
		return &State{"work between two steps on files", took.Seconds(), took < w.Patience}
	}
	// The others have waited as long as this rank has, and may not give it the time to come.
	if end := w.end.Load(); end != 0 {
		if took := time.Since(time.Unix(0, end)); took < w.Patience {
			return &State{"work after long steps on files", took.Seconds(), true}
		}
	}
	return nil
}
