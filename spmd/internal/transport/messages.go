package transport

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// box is the messages from one rank to another, in their order. A message is a copy: its sender
// goes on, and a group may receive where it sends from.
type box struct {
	sent  atomic.Uint64
	taken uint64 // the receiver's
	mu    sync.Mutex
	full  []letter // sent; those before first are taken
	first int
	spare [][]byte
}

// letter is a message of a type.
type letter struct {
	data []byte
	t    elem.Type
}

// put adds a message.
func (b *box) put(data []byte, t elem.Type) {
	b.mu.Lock()
	var m []byte
	if n := len(b.spare); n > 0 {
		m, b.spare = b.spare[n-1], b.spare[:n-1]
	}
	// a receiver that is always behind lets it grow no further
	if len(b.full) == cap(b.full) && b.first > len(b.full)/2 {
		n := copy(b.full, b.full[b.first:])
		clear(b.full[n:])
		b.full, b.first = b.full[:n], 0
	}
	b.full = append(b.full, letter{append(m[:0], data...), t})
	b.mu.Unlock()
	b.sent.Add(1)
}

// take takes the first message out. There is one.
func (b *box) take() letter {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.full[b.first]
	b.full[b.first] = letter{}
	if b.first++; b.first == len(b.full) {
		b.full, b.first = b.full[:0], 0
	}
	b.taken++
	return m
}

const (
	mostSpare = 8       // messages that a box keeps for reuse
	longSpare = 1 << 20 // and their most bytes
)

// recycle gives a message back that was taken.
func (b *box) recycle(m []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.spare) < mostSpare && cap(m) <= longSpare {
		b.spare = append(b.spare, m)
	}
}

func (r *Member) box(from, to int) *box { return &r.g.boxes[from*r.size+to] }

// Group implements Transport: all messages that are sent are on their
// way before one is waited for.
func (r *Member) Group(_ Issuer, cs []coll.Call, _ unsafe.Pointer) error {
	r.messages = AppendMessages(r.messages[:0], cs)
	return r.start(r.messages)
}

// start sends and receives messages.
func (r *Member) start(messages []coll.Call) error {
	for i := range messages {
		if m := &messages[i]; m.Kind == coll.Send {
			if err := r.send(m); err != nil {
				return err
			}
		}
	}
	var failure error
	for i := range messages {
		if m := &messages[i]; m.Kind == coll.Recv {
			if err := r.receive(m); err != nil && failure == nil {
				failure = err
			}
		}
	}
	return failure
}

func (r *Member) send(c *coll.Call) error {
	if err := r.checkPeer(c); err != nil {
		return err
	}
	r.box(r.rank, int(c.Root)).put(bytesAt(c.Src, c.N*c.Type.Size()), c.Type)
	r.team.wake()
	return nil
}

func (r *Member) receive(c *coll.Call) error {
	if err := r.checkPeer(c); err != nil {
		return err
	}
	from := int(c.Root)
	b := r.box(from, r.rank)
	if err := r.await(&b.sent, b.taken+1, r.g.members[from]); err != nil {
		return r.failed(c, err)
	}
	m := b.take()
	defer b.recycle(m.data)
	if err := Wrong(c, len(m.data), m.t); err != nil {
		return r.failed(c, err)
	}
	copy(bytesAt(c.Dst, len(m.data)), m.data)
	return nil
}
