package verify

import (
	"fmt"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/transport"
)

// Mode is --check.
type Mode int

// The modes, in the order of job.CheckModes.
const (
	Off    Mode = iota
	Sample      // of the collectives of a communicator the first, and then every 64th
	On
)

const sampleEvery = 64

// Checker compares the calls of a communicator over its ranks before they are made. It has a
// communicator of its own: a rank that calls nothing more must not meet another call.
type Checker struct {
	comm transport.Host
	rec  *Recorder
	seen uint64          // collectives
	hash [1]control.Span // of the signature of one of them, over the ranks
}

// NewChecker returns the checker of the communicator whose recorder is rec. comm has the same
// ranks, and becomes its own.
func NewChecker(comm transport.Host, rec *Recorder) *Checker { return &Checker{comm: comm, rec: rec} }

// Close gives up the checker's communicator. Collective.
func (k *Checker) Close() error { return k.comm.Close() }

// Check compares a call, if the mode says so. The recorder has begun it, and the caller is in its
// turn in MPI. site is the place of the call; nil stands for this stack. rest compares what comes
// only while the call is made: it follows that, in a turn. It is nil for nothing.
//
// In a group it compares the collectives and then the messages. With captured set it compares the
// collectives alone: the peer of a captured message need not capture.
//
// Collective over the ranks that the call concerns.
func (k *Checker) Check(
	mode Mode, c *coll.Call, g Group, memory Memory, captured bool, site *ccall.Site,
) (rest func() error, err error) {
	if everyone(c, g) {
		if err := k.checkCollectives(mode, c, g, memory, site); err != nil {
			return nil, err
		}
	}
	if captured || c.Kind != coll.Group && !c.Kind.Traits().Message {
		return nil, nil
	}
	return k.checkMessages(mode, c, g, site)
}

func (k *Checker) mismatch(at, what string) error {
	return fmt.Errorf("%s: %w: %s (%s, %d ranks)", at, ErrMismatch, what, k.rec.ID, k.rec.Size)
}

// where returns the place of a call.
func where(site *ccall.Site) string {
	if site != nil {
		return site.String()
	}
	return ccall.At()
}

type message struct {
	placed // the sender's
	mine   signature
	peer   int
	recv   bool
}

// messagesOf appends the messages that a call is made of.
func messagesOf(list []message, c *coll.Call) []message {
	c.Messages(func(m coll.Call) bool {
		s := signature{kind: int64(m.Kind), typ: int64(m.Type), n: int64(m.N)}
		list = append(list, message{mine: s, peer: int(m.Root), recv: m.Kind == coll.Recv})
		return true
	})
	return list
}

// checkMessages compares the messages of a call with those that their receivers expect. The sender
// tells what it will send, and from where, before it does. One message is compared before it moves.
// Of several, those that are received are compared in rest: they may come only after others, which
// this call sends, have arrived.
func (k *Checker) checkMessages(mode Mode, c *coll.Call, g Group, site *ccall.Site) (rest func() error, err error) {
	var list []message
	if c.Kind == coll.Group {
		for i := range g.Len() {
			if in, _ := g.Call(i); in.Kind.Traits().Message {
				list = messagesOf(list, in)
			}
		}
	} else {
		list = messagesOf(list, c)
	}
	var received []*message
	var sent []coll.Call
	for i := range list {
		m := &list[i]
		switch {
		case mode == Sample && !k.sampled(list[i:]):
		case m.recv:
			received = append(received, m)
		default:
			m.placed = place(m.mine, where(site))
			k.rec.sent(m.peer, m.after())
			sent = append(sent, coll.Call{Kind: coll.Send, Src: unsafe.Pointer(&m.placed),
				N: int(unsafe.Sizeof(m.placed)), Type: elem.Uint8, Root: int32(m.peer)})
		}
	}
	if len(sent) > 0 {
		err = k.comm.Group(nil, sent, nil)
	}
	if err != nil || len(received) == 0 {
		return nil, err
	}
	rest = func() error {
		for _, m := range received {
			if err := k.compare(m, site); err != nil {
				return err
			}
		}
		return nil
	}
	if len(list) == 1 {
		return nil, rest()
	}
	return rest, nil
}

// compare receives what a sender tells, and compares it with what its message is expected to be.
func (k *Checker) compare(m *message, site *ccall.Site) error {
	err := k.comm.Recv(unsafe.Pointer(&m.placed), int(unsafe.Sizeof(m.placed)), elem.Uint8, m.peer)
	if err != nil || m.n == m.mine.n && (m.typ == m.mine.typ || m.n == 0) {
		return err
	}
	at := where(site)
	return k.mismatch(at, fmt.Sprintf("rank %d %v; rank %d at %s: %v", m.peer, &m.placed, k.rec.Rank, at, &m.mine))
}

// sampled reports whether Sample compares the first of the messages that are left of a call. Both
// ends find it by its number between them.
func (k *Checker) sampled(left []message) bool {
	v := k.rec.peers[left[0].peer].Load()
	number := uint32(v)
	if left[0].recv {
		number = uint32(v >> 32)
	}
	for _, m := range left[1:] {
		if m.peer == left[0].peer && m.recv == left[0].recv {
			number--
		}
	}
	return (number-1)%sampleEvery == 0
}

// sent keeps the last message to a rank, for reports that nobody has received it.
func (r *Recorder) sent(peer int, what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sends == nil {
		r.sends = map[int]string{}
	}
	r.sends[peer] = what
}

// lastSent returns the last message to a rank, if --check has noted it.
func (r *Recorder) lastSent(peer int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sends[peer]
}
