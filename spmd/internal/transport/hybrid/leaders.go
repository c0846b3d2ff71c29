package hybrid

import (
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/internal/shm"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/transport"
)

// give begins to send bytes to the leader of another process. They must stay as they are until given.
func (c *Comm) give(call *coll.Call, process int, src unsafe.Pointer, bytes int) error {
	at := address{comm: c.id, turn: c.turn, from: int32(c.mine), to: int32(process)}
	return c.send(call, c.process[process], at, transport.What(call), transport.Alike(call), src, bytes)
}

// send begins to send a message to another process, which is over when given.
func (c *Comm) send(call *coll.Call, process int, to address, what uint64, n int, src unsafe.Pointer, bytes int) error {
	if c.under == len(c.sending) {
		c.sending = append(c.sending, new(transfer))
	}
	whole, err := c.open.post.send(c.sending[c.under], process, to, what, n, src, bytes)
	if err != nil {
		return c.failed(call, err)
	}
	if !whole {
		c.under++
	}
	return nil
}

// sent waits for all that send has begun.
func (c *Comm) sent(call *coll.Call) error {
	for _, t := range c.sending[:c.under] {
		if err := c.open.post.sent(t); err != nil {
			return c.failed(call, err)
		}
	}
	c.under = 0
	return nil
}

// given ends the rounds of the leaders: it is sent, and returns what get has found.
func (c *Comm) given(call *coll.Call) error {
	if err := c.sent(call); err != nil {
		return err
	}
	return c.takeDiffers(call)
}

// takeDiffers returns what get has found, once.
func (c *Comm) takeDiffers(call *coll.Call) error {
	err := c.differs
	if c.differs = nil; err == nil {
		return nil
	}
	return c.failed(call, err)
}

// get returns what the leader of another process has given, until released. A long one may lie at dst, where that is not nil.
// One of another call, or of another length, is no data: the rounds go on, so that nobody waits for this leader, and given
// returns the error.
func (c *Comm) get(call *coll.Call, process int, dst unsafe.Pointer, bytes int) (m *message, data unsafe.Pointer, err error) {
	c.wanted = wanted{address{comm: c.id, turn: c.turn, from: int32(process), to: int32(c.mine)}, dst, bytes}
	if m, err = c.open.post.receive(&c.wanted); err != nil {
		return nil, nil, c.failed(call, err)
	}
	if m.what == transport.What(call) && m.n == int64(transport.Alike(call)) && len(m.data) == bytes {
		return m, unsafe.Pointer(unsafe.SliceData(m.data)), nil
	}
	if c.differs == nil {
		c.differs = transport.Differs(c.members[process][0], m.what, int(m.n))
	}
	return m, nil, nil
}

// fetch sets bytes at dst to what the leader of another process has given.
func (c *Comm) fetch(call *coll.Call, process int, dst unsafe.Pointer, bytes int) error {
	m, data, err := c.get(call, process, dst, bytes)
	if err != nil {
		return err
	}
	if data != nil && data != dst {
		copy(bytesAt(dst, bytes), bytesAt(data, bytes))
	}
	c.open.post.release(m)
	return nil
}

// add sets n elements at dst to the result of them and of what the leader of another process has given.
func (c *Comm) add(call *coll.Call, process int, dst unsafe.Pointer, n int) error {
	m, data, err := c.get(call, process, nil, n*call.Type.Size())
	if err != nil {
		return err
	}
	c.both(call, dst, dst, data, n)
	c.open.post.release(m)
	return nil
}

// both sets n elements at dst to the result of a and b, where there are both. dst may be one of them.
func (c *Comm) both(call *coll.Call, dst, a, b unsafe.Pointer, n int) {
	if a == nil || b == nil {
		return
	}
	c.sources = append(c.sources[:0], a, b)
	merge(dst, c.sources, n, call.Type, sums(call.Op))
}

// merge sets n elements at dst to op over all src, in their order.
func merge(dst unsafe.Pointer, src []unsafe.Pointer, n int, t elem.Type, op elem.Op) {
	switch {
	case n == 0:
	case len(src) == 1:
		copy(bytesAt(dst, n*t.Size()), bytesAt(src[0], n*t.Size()))
	default:
		shm.Reduce(dst, unsafe.Slice((*uintptr)(unsafe.Pointer(&src[0])), len(src)), n, t, op)
	}
}

// sums is the operation whose result the processes exchange: an average is divided at the end.
func sums(op elem.Op) elem.Op {
	if op == elem.Avg {
		return elem.Sum
	}
	return op
}

// divide divides the sums of an average by the number of ranks.
func (c *Comm) divide(call *coll.Call, p unsafe.Pointer, n int) {
	if call.Op == elem.Avg {
		shm.Divide(p, n, call.Type, c.Size())
	}
}

func bytesAt(p unsafe.Pointer, n int) []byte { return unsafe.Slice((*byte)(p), n) }

// room is memory of this communicator, until the next call with the same number.
func (c *Comm) room(number, bytes int) unsafe.Pointer {
	const keep = 16 << 20 // what is larger goes after the call
	if bytes > keep {
		return unsafe.Pointer(unsafe.SliceData(make([]byte, bytes)))
	}
	if len(c.work[number]) < bytes {
		c.work[number] = make([]byte, bytes)
	}
	return unsafe.Pointer(unsafe.SliceData(c.work[number]))
}
