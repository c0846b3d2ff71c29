package spmd

import (
	"cmp"
	"slices"
	"sync/atomic"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/job"
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

func (q *hostQueue) report() (job.StreamState, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	done := q.done.Load()
	if done == q.tail {
		return job.StreamState{}, false
	}
	c := &q.ring[done%uint64(len(q.ring))]
	r := job.StreamState{Waiting: q.tail - done, Command: c.kind.String(), At: "from " + c.site.String()}
	if c.kind == cmdCall {
		r.Command = c.call.String()
	}
	return r, true
}

func (q *gpuQueue) report() (job.StreamState, bool) {
	passed, tail := q.passed(), q.tail.Load()
	return job.StreamState{Waiting: tail - min(passed, tail), Device: true}, tail > passed
}
