package spmd

import (
	"errors"
	"slices"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/nccl"
)

// Messages between two ranks go by a kernel between peers where they are small, be they Send, Recv, or parts of a
// collective that is made of them, alone or in a group: it depends on nothing but their length, which both ends know.

// hasSmallMessages says whether a message that peers carry is in a call, as this rank sees it.
func (c *call) hasSmallMessages() bool {
	small := func(n int) bool { return n*c.typ.Size() <= c.comm.peers.MessageMost() }
	part := func(n int) bool { return n > 0 && small(n) }
	switch c.kind {
	case cmdSend, cmdRecv, cmdGather, cmdScatter:
		return small(c.n)
	case cmdSendRecv:
		return small(c.n) || small(c.rn)
	case cmdGatherV, cmdScatterV, cmdAllToAllV:
		return slices.ContainsFunc(c.counts, part) || slices.ContainsFunc(c.rcounts, part)
	case cmdGroup:
		for i := range c.group.cmds {
			if c.group.cmds[i].hasSmallMessages() {
				return true
			}
		}
	}
	return false
}

// listBytes is the device memory that a list of the messages of a call may take.
func (c *call) listBytes() int {
	if c.comm.atOnce == 0 {
		return 0
	}
	return roundUp(cudampi.ListBytes(c.mostMessages()))
}

// mostMessages bounds the messages that a call is made of.
func (c *call) mostMessages() int {
	switch c.kind {
	case cmdSend, cmdRecv:
		return 1
	case cmdSendRecv:
		return 2
	case cmdGather, cmdGatherV, cmdScatter, cmdScatterV, cmdAllToAllV:
		return 2 * c.comm.size
	case cmdGroup:
		n := 0
		for i := range c.group.cmds {
			n += c.group.cmds[i].mostMessages()
		}
		return n
	}
	return 0
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
	switch {
	case len(g.small) == 0 && len(g.calls) == 0:
		return nil
	case len(g.small) == 0:
		g.entered = true
		return nc.Group(q.h, g.calls)
	case len(g.calls) == 0:
		g.entered = true
		return st.peers.Exchange(q.h, work, g.small)
	}
	// What the one waits for may come only after another rank has got the other: neither may be first.
	g.entered = true
	m, err := g.mark()
	if err != nil {
		return err
	}
	defer g.recycle(m)
	if err := errors.Join(m.event.Record(q.h), g.beside.Wait(m.event)); err != nil {
		return err
	}
	err = st.peers.Exchange(g.beside, work, g.small)
	if err == nil {
		err = nc.Group(q.h, g.calls)
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

func (g *gpu) addPeers(p *cudampi.Peers) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.peers = append(g.peers, p)
}

func (g *gpu) dropPeers(p *cudampi.Peers) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.peers = slices.DeleteFunc(g.peers, func(o *cudampi.Peers) bool { return o == p })
}
