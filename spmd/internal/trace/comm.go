package trace

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"lockstep/spmd/internal/coll"
)

// Ledger notes the calls of a communicator of a rank. A nil Ledger notes nothing.
type Ledger struct {
	t          *Tracer
	id         int32
	name       string
	rank, size int
	calls      atomic.Uint64   // of all ranks so far
	peers      []atomic.Uint64 // for each rank the messages to it, and above them those received from it, modulo 1<<32
	// For calls on the host, one at a time: their caller is in its turn in MPI.
	host sampler
	now  Entry
	// For calls that a device carries.
	mu     sync.Mutex
	device sampler
}

// Entry is a call of a communicator that was begun. It is used again and again.
type Entry struct {
	Event
	Parts []Event // of a group, where events are kept
	mark  Mark
	on    *Thread
}

// Group is the calls of a coll.Group.
type Group interface {
	Len() int
	Part(i int) *coll.Call
}

// mostComms bounds what is kept of communicators that a program makes again and again.
const mostComms = 1 << 12

// Comm returns the Ledger that notes the calls of a communicator. name is the same on all its
// ranks.
func (t *Tracer) Comm(name string, rank, size int) *Ledger {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.comms) == mostComms {
		return nil
	}
	c := &Ledger{t: t, id: int32(len(t.comms)), name: name, rank: rank, size: size, peers: make([]atomic.Uint64, size)}
	t.comms = append(t.comms, c)
	return c
}

// Rename gives the communicator its name, where that was not known before.
func (c *Ledger) Rename(name string) {
	if c == nil {
		return
	}
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	c.name = name
}

// Begin begins a call on the host, on a line of events. g is its calls if it is a coll.Group. The
// caller is in its turn in MPI, until End.
func (c *Ledger) Begin(on *Thread, call *coll.Call, g Group) {
	if c == nil {
		return
	}
	c.describe(&c.now, call, g)
	c.now.on, c.now.mark = on, c.choose(&c.host, c.now.Seq, perSecondHost)
	if c.now.mark.weight != 0 {
		c.now.Start = Now()
	}
}

// End ends the call that was begun last. One that has failed has no number, since it
// did not wait for the others.
func (c *Ledger) End(err error) {
	if c == nil {
		return
	}
	if err != nil {
		e := &c.now.Event
		e.Seq, e.Received, e.Peer, e.From = 0, 0, -1, -1
		c.now.Parts = c.now.Parts[:0]
	}
	if c.now.mark.weight != 0 {
		c.now.End = Now()
	}
	c.note(&c.now)
}

// Issue begins a call that a device carries, on a line of events, and
// says whether it is to be timed.
func (c *Ledger) Issue(to *Entry, on *Thread, call *coll.Call, g Group) Mark {
	if c == nil {
		return Mark{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.describe(to, call, g)
	to.on, to.mark = on, c.choose(&c.device, to.Seq, perSecondDevice)
	return to.mark
}

// Note notes a call that was issued, and timed if it was to be.
func (c *Ledger) Note(call *Entry) {
	if c != nil {
		c.note(call)
	}
}

// Replay begins the replay of a graph with calls of the communicator, on a device.
func (c *Ledger) Replay(to *Entry, on *Thread, holds *Content) Mark {
	to.Parts = to.Parts[:0]
	to.Event = Event{Comm: c.id, Seq: c.calls.Add(1), Bytes: holds.moved, Peer: -1, From: -1, Class: Replay,
		Kind: coll.Graph}
	to.on, to.mark = on, on.Choose(Replay)
	c.t.Holds(holds)
	return to.mark
}

// Untimed says that the times of a call are not known.
func (c *Entry) Untimed() { c.mark = Mark{} }

// choose has all ranks choose the same calls, as far as they have equally many in a second.
func (c *Ledger) choose(s *sampler, seq uint64, limit uint32) Mark {
	if c.t.keeps {
		return Mark{weight: 1}
	}
	s.count(limit)
	return Mark{weight: s.weight(uint32(seq * 0x9e3779b97f4a7c15 >> 40))}
}

// note counts a call, and keeps it.
func (c *Ledger) note(call *Entry) {
	t, e := c.t, &call.Event
	if call.on == nil {
		return
	}
	t.mu.Lock()
	e.Thread = call.on.id
	if t.keeps {
		e.Name = t.name(e.Kind.String())
	}
	factor := 0.0
	if e.Class != Replay && call.mark.weight != 0 {
		factor = BusFactor(e.Kind, c.size)
	}
	t.note(e, call.mark, factor)
	if e.Class == Collective && e.Seq > 0 && call.mark.weight != 0 {
		t.late[t.sampled%samples] = sample{c.id, e.Seq, e.Start, e.End}
		t.sampled++
	}
	for i := range call.Parts {
		p := &call.Parts[i]
		p.Start, p.End, p.Thread, p.Name = e.Start, e.End, e.Thread, t.name(p.Kind.String())
		t.keep(p, call.mark)
	}
	t.mu.Unlock() // a defer takes longer
}

// describe says what a call is, and gives it its numbers.
func (c *Ledger) describe(to *Entry, call *coll.Call, g Group) {
	to.Parts = to.Parts[:0]
	if call.Kind != coll.Group {
		c.describeOne(&to.Event, call)
		if to.Class == Collective {
			to.Seq = c.calls.Add(1)
		}
		return
	}
	e := Event{Comm: c.id, Peer: -1, From: -1, Kind: coll.Group, Class: Message}
	for i := range g.Len() {
		var p Event
		c.describeOne(&p, g.Part(i))
		e.Bytes += p.Bytes
		if p.Class == Collective {
			e.Class = Collective
		}
		if c.t.keeps {
			to.Parts = append(to.Parts, p)
		}
	}
	if e.Class == Collective {
		e.Seq = c.calls.Add(1)
	}
	to.Event = e
}

// describeOne is describe of a call that is no group. A message has its numbers. It is
// written in place, not copied.
func (c *Ledger) describeOne(e *Event, call *coll.Call) {
	e.Start, e.End, e.Seq, e.Received, e.Thread, e.Name = 0, 0, 0, 0, 0, 0
	e.Comm, e.Peer, e.From, e.Kind, e.Bytes, e.Class = c.id, -1, -1, call.Kind, call.Bytes(c.size), Collective
	if !call.Kind.Traits().Message {
		return
	}
	e.Class = Message
	to, from := call.Peers()
	if to >= 0 {
		e.Peer, e.Seq = int32(to), uint64(uint32(c.peers[to].Add(1)))
	}
	if from >= 0 {
		e.From, e.Received = int32(from), c.peers[from].Add(1<<32)>>32
	}
}

// logOf returns the power of two in which a number of bytes lies.
func logOf(bytes int64) uint8 { return uint8(bits.Len64(uint64(bytes))) }

// BusFactor returns how many times its bytes a call of a kind must at least move over the slowest
// link between ranks. It makes the bandwidths of different calls and numbers of ranks comparable.
// Source: nccl-tests, doc/PERFORMANCE.md.
func BusFactor(k coll.Kind, ranks int) float64 {
	n := float64(max(ranks, 1))
	switch k {
	case coll.AllReduce:
		return 2 * (n - 1) / n
	case coll.AllGather, coll.ReduceScatter, coll.AllToAll, coll.AllGatherV, coll.ReduceScatterV, coll.AllToAllV,
		coll.Gather, coll.GatherV, coll.Scatter, coll.ScatterV:
		return (n - 1) / n
	}
	return 1
}
