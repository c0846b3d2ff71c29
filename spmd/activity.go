package spmd

import (
	"cmp"
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/files"
)

// activity is how far this rank has got on a communicator: what it entered last, and
// how many calls it has entered and left. Calls write it, at the cost of a few
// nanoseconds; who watches reads it while the program hangs.
type activity struct {
	entered atomic.Uint64
	left    atomic.Uint64
	calls   atomic.Uint64 // those entered in which every rank takes part
	what    atomic.Uint64 // kind, type, op and root
	n       atomic.Int64
	flight  *flight // of calls on a GPU, which end later than they are left; nil on the host
	ledger  ledger
	group   atomic.Pointer[group] // that was begun last, until it is used again: see commState.recycle
	peers   []atomic.Uint64       // for each rank the messages to it, and above them those received from it, modulo 1<<32
}

// enter notes a call, which came from site, or where that is nil from this stack.
func (a *activity) enter(c *call, site *ccall.Site) {
	if what := a.begin(c); what&ofEveryone != 0 {
		a.ledger.note(c, what, site)
	}
}

// begin is enter for a call that the ledger does not know yet.
func (a *activity) begin(c *call) (what uint64) {
	switch {
	case c.Kind == coll.Group:
		a.count(c)
		a.group.Store(c.group)
	case c.Kind.Traits().Message:
		a.count(c)
	}
	return a.set(c.what(), c.length())
}

// count counts the messages of a call. Nothing else counts for the same communicator at the same time.
func (a *activity) count(c *call) {
	if c.Kind == coll.Group {
		for i := range c.group.cmds {
			a.count(&c.group.cmds[i])
		}
		return
	}
	c.Messages(func(m coll.Call) bool {
		if m.Kind == coll.Send {
			a.exchange(int(m.Root), 1, 0)
		} else {
			a.exchange(int(m.Root), 0, 1)
		}
		return true
	})
}

// exchange counts messages to a peer and from it.
func (a *activity) exchange(peer int, sent, received uint32) {
	p := &a.peers[peer]
	v := p.Load()
	p.Store(uint64(uint32(v>>32)+received)<<32 | uint64(uint32(v)+sent))
}

// what is what activity keeps of a call, beside its length.
func (c *call) what() uint64 {
	w := whatOf(c.Kind, c.Type, int(c.Root)) | uint64(c.Op)<<16
	if c.everyone() {
		w |= ofEveryone
	}
	return w
}

// length is the elements of a call, and above them whom a SendRecv receives from.
func (c *call) length() int {
	if c.Kind == coll.SendRecv {
		return c.N | int(c.From)<<lengthBits
	}
	return c.N
}

const lengthBits = 45 // more than any length has

// whatOf is what for a call between two ranks.
func whatOf(kind coll.Kind, t elem.Type, root int) uint64 {
	return uint64(kind) | uint64(t)<<8 | uint64(uint32(root))<<32
}

// set makes a call the one that was entered last, and returns what it keeps of it.
func (a *activity) set(what uint64, n int) uint64 {
	if what&ofEveryone != 0 {
		a.calls.Add(1)
	}
	if a.what.Load() != what { // a store takes longer
		a.what.Store(what)
	}
	if a.n.Load() != int64(n) {
		a.n.Store(int64(n))
	}
	a.entered.Add(1)
	return what
}

// ofEveryone marks in activity.what a call in which every rank of the communicator takes part.
const ofEveryone = 1 << 31

func (a *activity) leave() { a.left.Add(1) }

// meets says whether this rank is in a call.
func (a *activity) meets() bool { return a.entered.Load() != a.over() }

// last describes the call that was entered last.
func (st *commState) last() string {
	a := &st.activity
	what := a.what.Load()
	if coll.Kind(what) == coll.Group {
		st.mu.Lock()
		defer st.mu.Unlock()
		if g := a.group.Load(); g != nil {
			return describeGroup(g.cmds, len(g.cmds))
		}
		if a.flight != nil {
			return cmp.Or(a.flight.lastGroup(), coll.Group.String())
		}
	}
	return describe(what, a.n.Load())
}

func describe(what uint64, n int64) string {
	c := callOf(what, n)
	return c.String()
}

// callOf is a call as activity keeps it.
func callOf(what uint64, n int64) call {
	c := call{Call: coll.Call{Kind: coll.Kind(what), Type: elem.Type(what >> 8), Op: elem.Op(uint8(what >> 16)), Root: int32(what >> 32), N: int(n)}}
	if c.Kind == coll.SendRecv {
		c.N, c.From = c.N&(1<<lengthBits-1), int32(c.N>>lengthBits)
	}
	return c
}

var cmdNames = [...]string{cmdCopy: "Copy", cmdFill: "Fill", cmdKernel: "kernel", cmdLibrary: "library", cmdGemm: "Gemm", cmdGemv: "Gemv",
	cmdFunc: "HostFunc", cmdRecord: "Record", cmdWait: "Wait", cmdGraph: "graph", cmdCall: "call"}

func (k cmdKind) String() string { return cmdNames[k] }

// everyone says whether all ranks of the communicator make the call: not messages, nor
// groups of nothing else.
func (c *call) everyone() bool {
	if c.Kind != coll.Group {
		return !c.Kind.Traits().Message
	}
	return slices.ContainsFunc(c.group.cmds, func(c call) bool { return !c.Kind.Traits().Message })
}

// rankState is what a rank says of itself in a report.
type rankState struct {
	Phase   string        `json:"phase"`
	Comms   []commReport  `json:"comms"`
	Streams []queueReport `json:"streams,omitempty"`
	Files   *files.State  `json:"files,omitempty"`
	Run     goroutine     `json:"run"`              // the goroutine of the program's own function
	Others  []goroutine   `json:"others,omitempty"` // more goroutines of the program
}

// commReport is a communicator: Entered calls were begun, Left of them are over, and in
// Calls of them every rank takes part.
type commReport struct {
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

// queueReport is a stream with work on it.
type queueReport struct {
	Name    string `json:"name"`
	Waiting uint64 `json:"waiting"`           // on a GPU those that are not known to have run
	Device  bool   `json:"device,omitempty"`  // it is on a GPU
	Command string `json:"command,omitempty"` // that runs, or waits to; on a GPU the first collective of these
	At      string `json:"at,omitempty"`      // "from" where it was enqueued
}

// goroutine is one of the program's.
type goroutine struct {
	State string   `json:"state,omitempty"` // as Go calls it: "sleep", "chan receive", "running"
	At    string   `json:"at,omitempty"`    // first place outside the framework
	Stack []string `json:"stack,omitempty"`
}

const (
	mostStack  = 24 // frames of a goroutine in a report
	mostOthers = 8
)

// state is this rank's part of a report. It takes no lock that a call holds while it
// waits.
func (w *World) state() []byte {
	s := rankState{Phase: w.phase.Load().(string), Files: w.files.State(w.control.st.activity.meets())}
	w.mu.Lock()
	comms, streams := slices.Clone(w.comms), slices.Clone(w.streams)
	w.mu.Unlock()
	for _, st := range comms {
		a := &st.activity
		c := commReport{ID: st.id, Rank: st.rank, Size: st.size, Entered: a.entered.Load(), Left: a.over(), Calls: a.calls.Load()}
		if c.Entered > 0 {
			c.Last, c.Alone = st.last(), a.what.Load()&ofEveryone == 0
		}
		switch {
		case coll.Kind(a.what.Load()).Traits().Own: // of the framework's own
			c.Last = a.ledger.last()
		case a.flight != nil:
			c.At = a.flight.lastPlace()
		}
		s.Comms = append(s.Comms, c)
	}
	for _, st := range streams {
		if r, busy := st.q.report(); busy {
			r.Name = st.name
			for _, c := range comms {
				if what, place, ok := c.activity.on(st.dev); ok {
					r.Command, r.At = what, place
					break
				}
			}
			s.Streams = append(s.Streams, r)
		}
	}
	s.Run, s.Others = goroutines()
	b, err := json.Marshal(s)
	if err != nil {
		return nil // it holds nothing that JSON has not
	}
	return b
}

// callerHead begins the stack of the goroutine that called Watch, as "goroutine 7 "; no two goroutines have the same.
var callerHead atomic.Pointer[string]

func noteCaller() {
	buf := make([]byte, 64)
	head, _, _ := strings.Cut(string(buf[:runtime.Stack(buf, false)]), "[")
	callerHead.Store(&head)
}

// goroutines returns the goroutine of the program's own function, or that called Watch, and others that have frames of
// the program.
func goroutines() (run goroutine, others []goroutine) {
	caller := callerHead.Load()
	buf := make([]byte, 1<<20)
	for _, text := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		head, body, _ := strings.Cut(text, "\n")
		id, state, _ := strings.Cut(head, "[")
		state, _, _ = strings.Cut(state, "]")
		state, _, _ = strings.Cut(state, ", ") // how long, and what it is locked to
		g := goroutine{State: state}
		main := false
		for _, f := range ccall.Frames(body) {
			if f.Program && g.At == "" {
				g.At = f.Place
			}
			main = main || f.Function == "lockstep/spmd.(*World).supervise"
			if len(g.Stack) < mostStack {
				g.Stack = append(g.Stack, f.Function+" "+f.Place)
			}
		}
		switch {
		case strings.Contains(body, "spmd.(*World).supervise.func"), caller != nil && id == *caller:
			run = g
		case g.At != "" && !main && len(others) < mostOthers:
			others = append(others, g)
		}
	}
	return run, others
}

func (q *hostQueue) report() (queueReport, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	done := q.done.Load()
	if done == q.tail {
		return queueReport{}, false
	}
	c := &q.ring[done%uint64(len(q.ring))]
	r := queueReport{Waiting: q.tail - done, Command: c.kind.String(), At: "from " + c.site.String()}
	if c.kind == cmdCall {
		r.Command = c.call.String()
	}
	return r, true
}

func (q *gpuQueue) report() (queueReport, bool) {
	passed, tail := q.passed(), q.tail.Load()
	return queueReport{Waiting: tail - min(passed, tail), Device: true}, tail > passed
}
