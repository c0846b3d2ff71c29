package job

import (
	"runtime"
	"strings"
	"sync/atomic"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/files"
)

// State is what a rank says of itself in a report.
type State struct {
	Phase   string        `json:"phase"`
	Comms   []CommState   `json:"comms"`
	Streams []StreamState `json:"streams,omitempty"`
	Files   *files.State  `json:"files,omitempty"`
	Run     Goroutine     `json:"run"`              // the goroutine of the program's own function
	Others  []Goroutine   `json:"others,omitempty"` // more goroutines of the program
}

// CommState is a communicator. Entered calls were begun, and Left of them are over. Every rank takes part in Calls of them.
type CommState struct {
	ID      string `json:"id"`
	Rank    int    `json:"rank"`
	Size    int    `json:"size"`
	Entered uint64 `json:"entered"`
	Left    uint64 `json:"left"`
	Calls   uint64 `json:"calls"`
	Last    string `json:"last,omitempty"`
	Alone   bool   `json:"alone,omitempty"` // Last is a message or a group of messages
	At      string `json:"at,omitempty"`    // "from" where Last was called, for calls on a GPU; else the stack shows it
}

// StreamState is a stream with work on it.
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

// Goroutines are marked by the first words of their stacks, such as "goroutine 7 ": no two have the same.
var (
	programMark atomic.Pointer[string] // of the goroutine that runs the program's own function
	keeperMark  atomic.Pointer[string] // of the one that watches over it, which no report needs
)

// MarkProgram says that the calling goroutine runs the program's own function. Reports show its stack.
func MarkProgram() { programMark.Store(goroutineHead()) }

// markKeeper says that the calling goroutine watches over the program, until unmark.
func markKeeper() (unmark func()) {
	keeperMark.Store(goroutineHead())
	return func() { keeperMark.Store(nil) }
}

func goroutineHead() *string {
	buf := make([]byte, 64)
	head, _, _ := strings.Cut(string(buf[:runtime.Stack(buf, false)]), "[")
	return &head
}

// Goroutines returns the goroutine of the program's own function, and others that have frames of the program.
func Goroutines() (run Goroutine, others []Goroutine) {
	program, keeper := programMark.Load(), keeperMark.Load()
	is := func(head *string, id string) bool { return head != nil && *head == id }
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
		case is(program, id):
			run = g
		case g.At != "" && !is(keeper, id) && len(others) < mostOthers:
			others = append(others, g)
		}
	}
	return run, others
}
