package spmd

import (
	"errors"
	"slices"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/internal/elem"
	"lockstep/internal/peer"
	"lockstep/nccl"
	"lockstep/spmd/internal/coll"
)

// Messages between two ranks go by a kernel between peers where they are small, be they Send, Recv, or parts of a
// collective that is made of them, alone or in a group: it depends on nothing but their length, which both ends know.

// eachMessage yields the messages of this rank that NCCL would get of a call, until yield returns false.
func (c *call) eachMessage(yield func(coll.Call) bool) {
	message := func(s coll.Call) bool { return !s.Kind.Traits().Message || yield(s) }
	if c.Kind != coll.Group {
		c.Steps(c.comm.rank, c.comm.size, &ncclHas, nil, message)
		return
	}
	for i := range c.group.cmds {
		c.group.cmds[i].eachMessage(yield)
	}
}

// hasSmallMessages says whether a message that peers carry is in a call, as this rank sees it.
func (c *call) hasSmallMessages() (has bool) {
	most := c.comm.peers.MessageMost()
	c.eachMessage(func(m coll.Call) bool {
		has = has || m.N*m.Type.Size() <= most
		return !has
	})
	return has
}

// listBytes is the device memory that a list of the messages of a call may take.
func (c *call) listBytes() int {
	if c.comm.atOnce == 0 {
		return 0
	}
	return roundUp(peer.ListBytes(c.messages()))
}

// messages counts the messages that a call is made of.
func (c *call) messages() (n int) {
	c.eachMessage(func(coll.Call) bool { n++; return true })
	return n
}

// enter enqueues the calls of q.g.calls together: the small messages of them between peers, the others by NCCL. work is
// device memory of listBytes.
func (q *gpuQueue) enter(st *commState, nc *nccl.Comm, work unsafe.Pointer) error {
	g := q.g
	g.small = g.small[:0]
	if st.atOnce > 0 {
		most := st.peers.MessageMost()
		g.calls = slices.DeleteFunc(g.calls, func(k nccl.Call) bool {
			if k.Kind != nccl.Send && k.Kind != nccl.Recv || k.N*k.Type.Size() > most {
				return false
			}
			m := cudampi.Message{Buf: k.Src, N: k.N, Type: k.Type, Peer: int(k.Peer)}
			if k.Kind == nccl.Recv {
				m.Buf, m.Recv = k.Dst, true
			}
			g.small = append(g.small, m)
			return true
		})
	}
	if len(g.calls) == 0 {
		return q.exchange(st, work, nil)
	}
	// NCCL 2.28.3 does not wait for a message of no bytes, so it gets one byte of no meaning.
	for i := range g.calls {
		if k := &g.calls[i]; k.N == 0 {
			k.Type, k.N = elem.Uint8, 1
			if k.Kind == nccl.Send {
				k.Src = g.word
			} else {
				k.Dst = g.word
			}
		}
	}
	return q.exchange(st, work, func() error { return nc.Group(q.h, g.calls) })
}

// amongPeers enqueues a call where there are peers and no NCCL: the courier carries what they do not.
func (q *gpuQueue) amongPeers(c *call, work unsafe.Pointer) error {
	g, st := q.g, c.comm
	messages := g.small[:0]
	switch {
	case c.Kind == coll.AllToAllV:
		return q.throughMPI(*c)
	case c.Kind == coll.Group:
		for i := range c.group.cmds {
			if in := &c.group.cmds[i]; in.Kind.Traits().Message {
				messages = in.appendMessages(messages)
			} else if err := q.amongPeers(in, nil); err != nil {
				return err
			}
		}
		defer st.recycle(c.group)
	case c.Kind.Traits().Message:
		messages = c.appendMessages(messages)
	default:
		g.entered = true
		return q.byPeers(c)
	}
	most := st.peers.MessageMost()
	var long []cudampi.Message
	g.small = slices.DeleteFunc(messages, func(m cudampi.Message) bool {
		if m.N*m.Type.Size() <= most {
			return false
		}
		long = append(long, m)
		return true
	})
	if len(long) == 0 {
		return q.exchange(st, work, nil)
	}
	return q.exchange(st, work, func() error {
		return q.hand(*c, func(at cudampi.Point) error { return st.dev.Exchange(at, long...) })
	})
}

// exchange enqueues g.small, and at the same time others, unless that is nil. work is device memory of listBytes.
func (q *gpuQueue) exchange(st *commState, work unsafe.Pointer, others func() error) error {
	g := q.g
	if len(g.small) == 0 && others == nil {
		return nil
	}
	g.entered = true
	switch {
	case len(g.small) == 0:
		return others()
	case others == nil:
		return st.peers.Exchange(q.h, work, g.small)
	}
	// What the one waits for may come only after another rank has got the other: they run at the same time. The others are
	// issued first, since NCCL connects ranks at their first message, and for that may wait for all that runs on the device.
	m, err := g.mark()
	if err != nil {
		return err
	}
	defer g.recycle(m)
	if err := errors.Join(m.event.Record(q.h), g.beside.Wait(m.event)); err != nil {
		return err
	}
	err = others()
	if err == nil {
		err = st.peers.Exchange(g.beside, work, g.small)
	}
	return errors.Join(err, m.event.Record(g.beside), q.h.Wait(m.event)) // a capture has to be joined in any case
}

// openBeside makes the stream for what kernels between peers carry of a group.
func (g *gpu) openBeside() (err error) {
	if g.beside == nil {
		_, greatest := g.dev.Priorities()
		g.beside, err = g.dev.NewStream(greatest)
	}
	return err
}
