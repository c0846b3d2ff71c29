package spmd

import (
	"fmt"
	"lockstep/spmd/internal/control"
	"slices"
	"strings"
	"sync"
	"time"
)

// A file system may be slow, or never answer. Who waits for it in checkpoints is not missing from a collective: it has
// CheckpointConfig.Timeout for each step of the work on a file, and says in which it is.

// fileStep is a step of the work on a file that has not ended.
type fileStep struct {
	what  string // "sync of /checkpoints/step-00000001.tmp/shard-00000-of-00002.safetensors"
	since time.Time
}

// fileSteps are those of all checkpoints of this process, in the order in which they began.
var fileSteps struct {
	mu    sync.Mutex
	list  []*fileStep
	moved time.Time // when one began or ended last
}

// moved says that the work on files goes on.
func moved() {
	fileSteps.mu.Lock()
	fileSteps.moved = time.Now()
	fileSteps.mu.Unlock()
}

// onFile makes one step of the work on a file.
func onFile(what string, fn func() error) error {
	s := &fileStep{what, time.Now()}
	fileSteps.mu.Lock()
	fileSteps.list, fileSteps.moved = append(fileSteps.list, s), s.since
	fileSteps.mu.Unlock()
	defer func() {
		fileSteps.mu.Lock()
		defer fileSteps.mu.Unlock()
		fileSteps.moved = time.Now()
		fileSteps.list = slices.DeleteFunc(fileSteps.list, func(o *fileStep) bool { return o == s })
	}()
	return fn()
}

// othersFiles is what a step is called that has a limit of its own, awaitPart's.
const othersFiles = "wait for the files of other ranks in "

// oldestStep is the first step that began after a point in time and has not ended; nil where there is none.
func oldestStep(after time.Time) *fileStep {
	fileSteps.mu.Lock()
	defer fileSteps.mu.Unlock()
	if i := slices.IndexFunc(fileSteps.list, func(s *fileStep) bool { return s.since.After(after) }); i >= 0 {
		return fileSteps.list[i]
	}
	return nil
}

// enter says that this rank is in a call of the checkpoints, whose op it is, until leave.
func (c *Checkpoints) enter(op control.Call) (leave func()) {
	w, start := c.w, time.Now()
	c.op = op
	moved()
	w.filed.Store(true)
	w.fileLimit.Store(int64(c.cfg.Timeout))
	return func() {
		w.fileLimit.Store(0)
		if time.Since(start) > w.cfg.timeout()/2 {
			w.fileEnd.Store(time.Now().UnixNano())
		}
	}
}

// await returns what the work of a save came to, or that a step of it takes too long: then it may go on for ever.
func (c *Checkpoints) await(s *saving, result <-chan error) error {
	tick := time.NewTicker(min(time.Second/4, c.cfg.Timeout/8+1))
	defer tick.Stop()
	for {
		select {
		case err := <-result:
			return err
		case <-tick.C:
		}
		if step := oldestStep(s.begun); step != nil && !strings.HasPrefix(step.what, othersFiles) && time.Since(step.since) > c.cfg.Timeout {
			c.stage = nil // it may be read all the same
			return fmt.Errorf("%s has not ended in %v", step.what, c.cfg.Timeout)
		}
	}
}

// fileReport is what a rank does with files, in a report.
type fileReport struct {
	What    string  `json:"what"`
	Seconds float64 `json:"seconds"`
	Waits   bool    `json:"waits,omitempty"` // the rank waits for it, and has not done so for too long
}

// files is the oldest step of this rank, or what it does between two; nil where there is nothing to say.
func (w *World) files() *fileReport {
	limit, a := time.Duration(w.fileLimit.Load()), &w.control.st.activity
	waits := limit != 0 && a.entered.Load() == a.over()
	if s := oldestStep(time.Time{}); s != nil {
		took := time.Since(s.since)
		return &fileReport{s.what, took.Seconds(), waits && took < limit}
	}
	if waits {
		fileSteps.mu.Lock()
		took := time.Since(fileSteps.moved)
		fileSteps.mu.Unlock()
		return &fileReport{"work between two steps on files", took.Seconds(), took < w.cfg.timeout()}
	}
	// The others have waited as long as this rank has, and may not give it the time to come.
	if end := w.fileEnd.Load(); end != 0 {
		if took := time.Since(time.Unix(0, end)); took < w.cfg.timeout() {
			return &fileReport{"work after long steps on files", took.Seconds(), true}
		}
	}
	return nil
}

// slow finds the first rank that waits for files, while all ranks answer; nil where none does.
func slow(ranks []told) (first *told) {
	for i := range ranks {
		t := &ranks[i]
		if t.State == nil && !t.Left {
			return nil
		}
		if first == nil && t.Files != nil && t.Files.Waits {
			first = t
		}
	}
	return first
}

func (f *fileReport) String() string { return fmt.Sprintf("%s, for %.1f s", f.What, f.Seconds) }
