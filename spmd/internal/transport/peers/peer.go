// Package peers carries calls on device memory by kernels between GPUs of a node that reach each other.
package peers

import (
	"slices"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/internal/peer"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/transport"
)

// Transport is kernels between GPUs. What orders its calls is the streams: two may not run at the same time.
type Transport struct {
	Comm     *peer.Comm
	messages []cudampi.Message
}

// New returns the transport of ranks whose GPUs reach each other; p remains its caller's.
func New(p *peer.Comm) *Transport { return &Transport{Comm: p} }

// An AllToAllV is none of them: what ranks send each other only two of them know.
var kinds = coll.SetOf(coll.AllReduce, coll.Reduce, coll.Broadcast, coll.AllGather, coll.ReduceScatter, coll.AllToAll,
	coll.Gather, coll.Scatter, coll.AllGatherV, coll.ReduceScatterV, coll.GatherV, coll.ScatterV, coll.Barrier)

var caps = transport.Caps{Library: coll.Library{Kinds: kinds}}

// atOnce are those that are one kernel where their parts are short: with equal parts, and of those with other parts the one
// that is not made of messages in any case and has no arithmetic.
var atOnce = coll.SetOf(coll.AllReduce, coll.Reduce, coll.Broadcast, coll.AllGather, coll.Gather, coll.ReduceScatter, coll.Scatter,
	coll.AllToAll, coll.Barrier, coll.AllGatherV)

// AtOnce reports whether a call is one kernel, and its parts have at most so many bytes.
func AtOnce(c *coll.Call, most int) bool {
	if !atOnce.Has(c.Kind) {
		return false
	}
	longest := c.N
	if len(c.Counts) > 0 {
		longest = slices.Max(c.Counts)
	}
	return longest*c.Type.Size() <= most
}

// Short reports whether a message is one that Group takes.
func (t *Transport) Short(m *coll.Call) bool { return m.N*m.Type.Size() <= t.Comm.MessageMost() }

// Most is the most bytes of a part of a call that is one kernel.
func (t *Transport) Most() int { return t.Comm.AtOnce() }

// Name implements transport.Transport.
func (t *Transport) Name() string { return "peers" }

// Caps implements transport.Transport.
func (t *Transport) Caps() *transport.Caps { return &caps }

// Scratch implements transport.Transport.
func (t *Transport) Scratch(n int) int { return peer.ListBytes(n) }

// Do implements transport.Transport.
func (t *Transport) Do(q transport.Queue, c coll.Call) error {
	p, s, root := t.Comm, q.Stream(), int(c.Root)
	switch c.Kind {
	case coll.AllReduce:
		return p.AllReduce(s, c.Dst, c.Src, c.N, c.Type, c.Op)
	case coll.Reduce:
		return p.Reduce(s, c.Dst, c.Src, c.N, c.Type, c.Op, root)
	case coll.Broadcast:
		return p.Broadcast(s, c.Dst, c.N, c.Type, root)
	case coll.AllGather:
		return p.AllGather(s, c.Dst, c.Src, c.N, c.Type)
	case coll.AllGatherV:
		return p.AllGatherV(s, c.Dst, c.Src, c.Counts, c.Type)
	case coll.Gather:
		return p.Gather(s, c.Dst, c.Src, c.N, c.Type, root)
	case coll.GatherV:
		return p.GatherV(s, c.Dst, c.Src, c.Counts, c.Type, root)
	case coll.ReduceScatter:
		return p.ReduceScatter(s, c.Dst, c.Src, c.N, c.Type, c.Op)
	case coll.ReduceScatterV:
		return p.ReduceScatterV(s, c.Dst, c.Src, c.Counts, c.Type, c.Op)
	case coll.Scatter:
		return p.Scatter(s, c.Dst, c.Src, c.N, c.Type, root)
	case coll.ScatterV:
		return p.ScatterV(s, c.Dst, c.Src, c.Counts, c.Type, root)
	case coll.AllToAll:
		return p.AllToAll(s, c.Dst, c.Src, c.N, c.Type)
	default:
		return p.Barrier(s)
	}
}

// Group implements transport.Transport. It takes messages that are Short.
func (t *Transport) Group(q transport.Queue, cs []coll.Call, work unsafe.Pointer) error {
	t.messages = t.messages[:0]
	for i := range cs {
		m := &cs[i]
		k := cudampi.Message{Buf: m.Src, N: m.N, Type: m.Type, Peer: int(m.Root)}
		if m.Kind == coll.Recv {
			k.Buf, k.Recv = m.Dst, true
		}
		t.messages = append(t.messages, k)
	}
	return t.Comm.Exchange(q.Stream(), work, t.messages)
}
