// Package verify finds ranks of a job that make different calls. A Recorder keeps, for each
// communicator, how far this rank has got and its last calls. It costs some nanoseconds a call.
// Heartbeats bring that to rank 0. There an Analyzer finds ranks that have made different calls,
// and ranks that wait for something that cannot come any more.
//
// With --check a Checker compares every call before it is made.
package verify

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
)

// Recorder is how far this rank has got on a communicator: the last call that it entered, how many
// calls it has entered and left, and its last calls. Calls write it. The watchdog reads it while
// the program hangs.
type Recorder struct {
	entered atomic.Uint64
	left    atomic.Uint64
	calls   atomic.Uint64 // those entered in which every rank takes part
	what    atomic.Uint64 // of the last, as Packed has it
	n       atomic.Int64
	device  *inFlight       // calls on a GPU, which end later than they are left; nil on the host
	peers   []atomic.Uint64 // for each rank the messages to it, and above them those received from it, modulo 1<<32
	history history

	ID         string // of the communicator, the same on all its ranks
	Rank, Size int    // in the communicator
	// the place of a program in a call on the host: "from FILE:LINE" or "at FILE:LINE"; else ""
	Place func() string

	mu      sync.Mutex
	group   Group          // that was begun last, until Forget; its calls are read under mu
	sends   map[int]string // with --check the last message to each rank
	refused *refusal       // the last; nil for none
	told    uint64         // how many calls of all ranks rank 0 has been told of; the Reporter's
}

func NewRecorder(id string, rank, size int) *Recorder {
	return &Recorder{ID: id, Rank: rank, Size: size, peers: make([]atomic.Uint64, size),
		Place: func() string { return "" }}
}

// Begin enters a call. g is its calls if it is a coll.Group. Note adds it to the history.
func (r *Recorder) Begin(c *coll.Call, g Group) Packed {
	if c.Kind == coll.Group || c.Kind.Traits().Message {
		return r.beginMessages(c, g)
	}
	p := packMessage(c.Kind, c.Type, int(c.Root), c.N) // as Pack does, without a call
	p.what |= uint64(c.Op)<<16 | ofEveryone
	r.Enter(p)
	return p
}

// beginMessages is Begin for a call that has messages, or may have some.
func (r *Recorder) beginMessages(c *coll.Call, g Group) Packed {
	switch c.Kind {
	case coll.SendRecv: // as count and Pack do, without calls
		if c.Root == c.From {
			r.exchange(int(c.Root), 1, 1)
		} else {
			r.exchange(int(c.Root), 1, 0)
			r.exchange(int(c.From), 0, 1)
		}
		p := packMessage(c.Kind, c.Type, int(c.Root), c.N|int(c.From)<<lengthBits)
		r.Enter(p)
		return p
	case coll.Group:
		for i := range g.Len() {
			in, _ := g.Call(i)
			r.count(in)
		}
		r.mu.Lock()
		r.group = g
		r.mu.Unlock()
	default:
		r.count(c)
	}
	p := Pack(c, g)
	r.Enter(p)
	return p
}

// BeginMessage is Begin for a Send or Recv of n elements.
func (r *Recorder) BeginMessage(kind coll.Kind, t elem.Type, peer, n int) {
	if kind == coll.Send {
		r.exchange(peer, 1, 0)
	} else {
		r.exchange(peer, 0, 1)
	}
	r.Enter(packMessage(kind, t, peer, n))
}

// count counts the messages of a call. Nothing else counts for the same communicator at the same
// time.
func (r *Recorder) count(c *coll.Call) {
	to, from := c.Peers()
	if to >= 0 {
		r.exchange(to, 1, 0)
	}
	if from >= 0 {
		r.exchange(from, 0, 1)
	}
}

// exchange counts messages to a peer and from it.
func (r *Recorder) exchange(peer int, sent, received uint32) {
	p := &r.peers[peer]
	v := p.Load()
	p.Store(uint64(uint32(v>>32)+received)<<32 | uint64(uint32(v)+sent))
}

// Enter makes a call the one that was entered last. It counts no messages.
func (r *Recorder) Enter(p Packed) {
	if p.Everyone() {
		r.calls.Add(1)
	}
	if r.what.Load() != p.what { // a store takes longer
		r.what.Store(p.what)
	}
	if r.n.Load() != p.n {
		r.n.Store(p.n)
	}
	r.entered.Add(1)
}

// Leave ends the call that was entered last. On a GPU it may still run.
func (r *Recorder) Leave() { r.left.Add(1) }

// Note adds a call that every rank makes to the history. A nil site stands for this stack.
func (r *Recorder) Note(p Packed, c *coll.Call, g Group, memory Memory, site *ccall.Site) {
	if p.Everyone() {
		r.history.note(p, c, g, memory, site)
	}
}

// Forget says that a group is about to be used again.
func (r *Recorder) Forget(g Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.group == g {
		r.group = nil
	}
}

func (r *Recorder) packed() Packed { return Packed{r.what.Load(), r.n.Load()} }

// Meets reports whether this rank is in a call that is not known to be over.
func (r *Recorder) Meets() bool { return r.entered.Load() > r.over() }

// over returns how many calls are known to be over.
func (r *Recorder) over() uint64 {
	if r.device == nil {
		return r.left.Load()
	}
	return r.device.over(&r.left)
}

// Position implements job.Work: how many calls the host has entered, and whether it is in one.
func (r *Recorder) Position() (at uint64, busy bool) {
	entered, left := r.entered.Load(), r.left.Load()
	return entered, entered != left
}

// Stuck implements job.Work. Position says all there is to say.
func (r *Recorder) Stuck(time.Time, time.Duration) bool { return false }

// String describes the call that was entered last, and the communicator.
func (r *Recorder) String() string {
	if r.ID == control.ID {
		return r.last()
	}
	return fmt.Sprintf("%s on %q", r.last(), r.ID)
}

// last describes the call that was entered last.
func (r *Recorder) last() string {
	p := r.packed()
	if p.kind() != coll.Group {
		return p.String()
	}
	if text := r.openGroup(); text != "" {
		return text
	}
	if r.device != nil {
		return cmp.Or(r.device.lastGroup(), coll.Group.String())
	}
	return coll.Group.String()
}

// openGroup describes the group that was begun last; "" if it is used again.
func (r *Recorder) openGroup() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.group
	if g == nil {
		return ""
	}
	var first []coll.Call
	for i := range min(g.Len(), mostNamed) {
		c, _ := g.Call(i)
		first = append(first, *c)
	}
	return describeGroup(first, g.Len())
}

// Snapshot is a report's view of a communicator.
type Snapshot struct {
	Entered, Over, Calls uint64 // calls begun, known to be over, and of all ranks
	Last                 string // that was entered; "" before the first
	Alone                bool   // Last is a message or a group of messages
	At                   string // "from" where Last was called, of a call on a GPU
	Refused              string // "was refused" a call shortly before, and why
}

// Snapshot takes no lock that a call holds while it waits.
func (r *Recorder) Snapshot() Snapshot {
	s := Snapshot{Entered: r.entered.Load()}
	s.Over, s.Calls = min(r.over(), s.Entered), r.calls.Load() // a call may begin and end meanwhile
	if s.Entered > 0 {
		s.Last, s.Alone = r.last(), !r.packed().Everyone()
	}
	if f, _ := r.lastRefused(); f.Why != "" && s.Calls <= f.At+recentCalls {
		s.Refused = fmt.Sprintf("was refused %s before: %s", f.Kind, f.Why)
	}
	switch {
	case r.packed().kind().Traits().Own:
		s.Last = r.history.last()
	case r.device != nil:
		s.At = r.device.lastPlace()
	}
	return s
}
