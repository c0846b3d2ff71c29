package job

import (
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"

	"lockstep/internal/ccall"
)

// State is a rank's account of itself in a report.
type State struct {
	Phase   string          `json:"phase"`
	History json.RawMessage `json:"history,omitempty"` // its last calls, as a heartbeat
	Comms   []CommState     `json:"comms"`
	Streams []StreamState   `json:"streams,omitempty"`
	Files   *FileState      `json:"files,omitempty"`
	Run     Goroutine       `json:"run"`              // the goroutine of the program's own function
	Others  []Goroutine     `json:"others,omitempty"` // more goroutines of the program
}

// CommState is a communicator. Entered calls were begun, and Left of them are over. Every rank
// takes part in Calls of them.
type CommState struct {
	ID      string `json:"id"`
	Rank    int    `json:"rank"`
	Size    int    `json:"size"`
	Entered uint64 `json:"entered"`
	Left    uint64 `json:"left"`
	Calls   uint64 `json:"calls"`
	Last    string `json:"last,omitempty"`
	Alone   bool   `json:"alone,omitempty"`   // Last is a message or a group of messages
	At      string `json:"at,omitempty"`      // "from" where Last was called on a GPU; else the stack shows it
	Refused string `json:"refused,omitempty"` // "was refused" a call shortly before, and why
}

type StreamState struct {
	Name    string `json:"name"`
	Waiting uint64 `json:"waiting"`           // on a GPU those that are not known to have run
	Device  bool   `json:"device,omitempty"`  // it is on a GPU
	Command string `json:"command,omitempty"` // that runs, or waits to; on a GPU the first collective of these
	At      string `json:"at,omitempty"`      // "from" where it was enqueued
}

// Goroutine is one of the program's.
type Goroutine struct {
	State string   `json:"state,omitempty"` // as Go calls it: "sleep", "chan receive", "running"
	At    string   `json:"at,omitempty"`    // first place outside the framework
	Stack []string `json:"stack,omitempty"`
}

const (
	mostStack  = 24 // frames of a goroutine in a report
	mostOthers = 8
)

// Goroutines are marked by the first words of their stacks, such as "goroutine 7 ": no two have the
// same.
var marks struct {
	sync.Mutex
	programs map[*Job]string // that run a program's own function; of each job in this process
	keepers  map[string]bool // that watch over a program, which no report needs
}

// MarkProgram says that the calling goroutine runs the program's own function. Reports show its
// stack.
func (j *Job) MarkProgram() {
	marks.Lock()
	defer marks.Unlock()
	if marks.programs == nil {
		marks.programs = map[*Job]string{}
	}
	marks.programs[j] = goroutineHead()
}

// Unmark takes MarkProgram back.
func (j *Job) Unmark() {
	marks.Lock()
	defer marks.Unlock()
	delete(marks.programs, j)
}

// MarkKeeper says that the calling goroutine watches over the program, until unmark.
func MarkKeeper() (unmark func()) {
	head := goroutineHead()
	marks.Lock()
	defer marks.Unlock()
	if marks.keepers == nil {
		marks.keepers = map[string]bool{}
	}
	marks.keepers[head] = true
	return func() {
		marks.Lock()
		defer marks.Unlock()
		delete(marks.keepers, head)
	}
}

// marked returns the goroutine of a job's program, and the goroutines that are not its others: the
// programs of other jobs and the keepers.
func marked(j *Job) (program string, strangers map[string]bool) {
	marks.Lock()
	defer marks.Unlock()
	program, strangers = marks.programs[j], maps.Clone(marks.keepers)
	if strangers == nil {
		strangers = map[string]bool{}
	}
	for of, head := range marks.programs {
		strangers[head] = strangers[head] || of != j && head != program
	}
	return program, strangers
}

func goroutineHead() string {
	buf := make([]byte, 64)
	head, _, _ := strings.Cut(string(buf[:runtime.Stack(buf, false)]), "[")
	return head
}

// whereabouts says where the program is, which has not returned; "" where no code of it runs.
func (j *Job) whereabouts() string {
	jobs := []*Job{j}
	if t := j.led.Load(); t != nil {
		jobs = t.members()
	}
	for _, j := range jobs {
		if run, _ := j.Goroutines(); run.At != "" {
			return fmt.Sprintf("; the program is at %s [%s]", run.At, run.State)
		}
	}
	return ""
}

// Goroutines returns the goroutine of the program's own function, and others that have frames of
// the program. A nil job has none of the former.
func (j *Job) Goroutines() (run Goroutine, others []Goroutine) {
	program, strangers := marked(j)
	buf := make([]byte, 1<<20)
	for _, text := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		head, body, _ := strings.Cut(text, "\n")
		id, state, _ := strings.Cut(head, "[")
		state, _, _ = strings.Cut(state, "]")
		state, _, _ = strings.Cut(state, ", ") // how long, and what it is locked to
		g := Goroutine{State: state}
		for _, f := range ccall.Frames(body) {
			if f.Program && g.At == "" {
				g.At = f.Place
			}
			if len(g.Stack) < mostStack {
				g.Stack = append(g.Stack, f.Function+" "+f.Place)
			}
		}
		switch {
		case id == program:
			run = g
		case g.At != "" && !strangers[id] && len(others) < mostOthers:
			others = append(others, g)
		}
	}
	return run, others
}
