package hybrid

import (
	"errors"
	"fmt"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// what is what processes that exchange something have to have called.
func what(call *coll.Call) uint64 {
	return uint64(call.Kind) | uint64(call.Type)<<8 | uint64(call.Op)<<16 | uint64(uint32(call.Root))<<32
}

// count is what all ranks of a call bring alike.
func count(call *coll.Call) (n int) {
	if len(call.Counts) == 0 {
		return call.N
	}
	for _, k := range call.Counts {
		n = n*31 + k // counts that differ give another number, but for accidents
	}
	return n
}

// give begins to send bytes to the leader of another process. They must stay as they are until given.
func (c *Comm) give(call *coll.Call, process int, src unsafe.Pointer, bytes int) error {
	at := address{comm: c.id, turn: c.turn, from: int32(c.mine), to: int32(process)}
	s, err := c.open.post.send(c.process[process], at, what(call), count(call), src, bytes)
	if err != nil {
		return c.failed(call, err)
	}
	c.sending = append(c.sending, s)
	return nil
}

// given waits for all that give has begun.
func (c *Comm) given(call *coll.Call) error {
	for _, s := range c.sending {
		if err := c.open.post.sent(s); err != nil {
			return c.failed(call, err)
		}
	}
	c.sending = c.sending[:0]
	return nil
}

var errDiffer = errors.New("the ranks have called different things, or with different lengths")

// get returns what the leader of another process has given.
func (c *Comm) get(call *coll.Call, process, bytes int) ([]byte, error) {
	at := address{comm: c.id, turn: c.turn, from: int32(process), to: int32(c.mine)}
	m, err := c.open.post.receive(at)
	if err != nil {
		return nil, c.failed(call, err)
	}
	if m.what != what(call) || m.n != int64(count(call)) || len(m.data) != bytes {
		its := coll.Call{Kind: coll.Kind(m.what), Type: elem.Type(m.what >> 8), Op: elem.Op(m.what >> 16), Root: int32(m.what >> 32), N: int(m.n)}
		return nil, c.failed(call, fmt.Errorf("%w: rank %d brought %v", errDiffer, c.members[process][0], &its))
	}
	return m.data, nil
}

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
