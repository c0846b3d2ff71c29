package hybrid

import (
	"fmt"
	"unsafe"

	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/transport"
)

// Group implements transport.Transport: all messages that are sent are on their way before one is waited for.
func (c *Comm) Group(_ transport.Queue, cs []coll.Call, _ unsafe.Pointer) error {
	c.list = transport.AppendMessages(c.list[:0], cs)
	return c.exchange(c.list)
}

// exchange sends and receives messages. What is sent may lie where others are received: so all has been sent before.
func (c *Comm) exchange(list []coll.Call) (failure error) {
	note := func(err error) {
		if err != nil && failure == nil {
			failure = err
		}
	}
	for i := range list {
		if err := transport.CheckPeer(&list[i], c.rank, c.Size()); err != nil {
			return err
		}
	}
	for i := range list {
		m := &list[i]
		if m.Kind != coll.Send {
			continue
		}
		to := c.place[m.Root]
		if to.process == c.mine {
			note(c.local.Send(m.Src, m.N, m.Type, to.local))
			continue
		}
		at := address{comm: c.id, from: int32(c.rank), to: m.Root}
		if err := c.send(m, to.number, at, 0, 0, m.Src, m.N*m.Type.Size()); err != nil {
			return err
		}
	}
	if c.under > 0 {
		note(c.sent(&list[0]))
	}
	for i := range list {
		if m := &list[i]; m.Kind == coll.Recv {
			note(c.receive(m))
		}
	}
	return failure
}

// receive makes a Recv.
func (c *Comm) receive(m *coll.Call) error {
	if from := c.place[m.Root]; from.process == c.mine {
		return c.local.Recv(m.Dst, m.N, m.Type, from.local)
	}
	return c.receiveAt(m, address{comm: c.id, from: m.Root, to: int32(c.rank)})
}

// receiveAt makes a Recv from another process.
func (c *Comm) receiveAt(m *coll.Call, at address) error {
	bytes := m.N * m.Type.Size()
	c.wanted = wanted{at, m.Dst, bytes}
	got, err := c.open.post.receive(&c.wanted)
	if err != nil {
		return c.failed(m, err)
	}
	defer c.open.post.release(got)
	if len(got.data) != bytes {
		return c.failed(m, fmt.Errorf("message from rank %d has %d bytes, %d (%d %v elements) expected", m.Root, len(got.data), bytes, m.N, m.Type))
	}
	if data := unsafe.Pointer(unsafe.SliceData(got.data)); data != m.Dst {
		copy(bytesAt(m.Dst, bytes), got.data)
	}
	return nil
}

// message makes a Send, a Recv or a SendRecv.
func (c *Comm) message(call *coll.Call) error {
	c.list = c.list[:0]
	call.Messages(func(m coll.Call) bool {
		c.list = append(c.list, m)
		return true
	})
	return c.exchange(c.list)
}
