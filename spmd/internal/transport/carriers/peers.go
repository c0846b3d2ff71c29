package carriers

import (
	"maps"
	"slices"
	"unsafe"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/peer"
	"lockstep/spmd/internal/transport"
)

// PeerKernels carries calls by kernels between GPUs. Streams order its calls: two may not run at
// the same time.
type PeerKernels struct {
	Comm     *peer.Clique
	alone    bool // there is no other for long messages
	messages []peer.Message
}

// AllMessages is NewPeerKernels' alone for a transport that carries long messages, too.
const AllMessages = true

// NewPeerKernels returns the transport of ranks whose GPUs reach each other; the caller keeps p.
// alone says that no other transport carries messages, so it carries AllMessages.
func NewPeerKernels(p *peer.Clique, alone bool) *PeerKernels {
	return &PeerKernels{Comm: p, alone: alone}
}

// OpenPeers opens the kernels of a communicator, or fails on all ranks alike. Collective.
func OpenPeers(h transport.Host, dev *cuda.Device, room int) (*peer.Clique, error) {
	if shared, err := CommOf(h); err == nil {
		return peer.Open(shared, dev, room)
	}
	return peer.Open(inProcess{h}, dev, room)
}

// peersKinds has package peer's names of the kinds. An AllToAllV is none of them: only two ranks
// know the length of each part.
var peersKinds = map[coll.Kind]peer.Pattern{coll.AllReduce: peer.AllReduce, coll.Reduce: peer.Reduce,
	coll.Broadcast: peer.Broadcast,
	coll.AllGather: peer.AllGather, coll.AllGatherV: peer.AllGather, coll.Gather: peer.Gather,
	coll.GatherV:       peer.Gather,
	coll.ReduceScatter: peer.ReduceScatter, coll.ReduceScatterV: peer.ReduceScatter, coll.Scatter: peer.Scatter,
	coll.ScatterV: peer.Scatter, coll.AllToAll: peer.AllToAll}

var peersCaps = transport.Caps{Library: coll.Library{Kinds: coll.SetOf(append(slices.Collect(maps.Keys(peersKinds)),
	coll.Barrier)...)}}

// atOnce are the kinds that are one kernel if their parts are short: those with equal parts, and
// the AllGatherV, which is not made of messages and has no arithmetic.
var atOnce = coll.SetOf(coll.AllReduce, coll.Reduce, coll.Broadcast, coll.AllGather, coll.Gather, coll.ReduceScatter,
	coll.Scatter, coll.AllToAll, coll.Barrier, coll.AllGatherV)

// AtOnce reports whether a call is one kernel.
func (t *PeerKernels) AtOnce(c *coll.Call) bool {
	if !atOnce.Has(c.Kind) {
		return false
	}
	longest := c.N
	if len(c.Counts) > 0 {
		longest = slices.Max(c.Counts)
	}
	return longest*c.Type.Size() <= t.Comm.AtOnce(peersKinds[c.Kind])
}

// Short reports whether a message is one that Group takes.
func (t *PeerKernels) Short(m *coll.Call) bool {
	return t.alone || m.N*m.Type.Size() <= t.Comm.MessageMost()
}

var _ transport.Transport = (*PeerKernels)(nil)

func (t *PeerKernels) Name() string { return "peers" }

func (t *PeerKernels) Caps() *transport.Caps { return &peersCaps }

func (t *PeerKernels) Scratch(n int) int { return peer.ListBytes(n) }

func (t *PeerKernels) Do(q transport.Issuer, c coll.Call) error {
	if c.Kind == coll.Barrier {
		return t.Comm.Barrier(q.Stream())
	}
	x := peer.Transfer{What: peersKinds[c.Kind], Dst: c.Dst, Src: c.Src, N: c.Longest(), Type: c.Type, Op: c.Op,
		Root: int(c.Root)}
	traits, parts := c.Kind.Traits(), cudampi.Parts{Each: c.N}
	if traits.Lengths == coll.Shared {
		parts.Counts = c.Counts
	}
	if traits.Src.Extent == coll.Whole {
		x.Send = parts
	}
	if traits.Dst.Extent == coll.Whole {
		x.Recv = parts
	}
	if c.Kind == coll.Broadcast {
		x.Src = c.Dst
	}
	return t.Comm.Do(q.Stream(), x)
}

// Group implements transport.Transport. It takes messages that are Short.
func (t *PeerKernels) Group(q transport.Issuer, cs []coll.Call, work unsafe.Pointer) error {
	t.messages = t.messages[:0]
	for i := range cs {
		m := &cs[i]
		k := peer.Message{Buf: m.Src, N: m.N, Type: m.Type, Peer: int(m.Root)}
		if m.Kind == coll.Recv {
			k.Buf, k.Recv = m.Dst, true
		}
		t.messages = append(t.messages, k)
	}
	return t.Comm.Exchange(q.Stream(), work, t.messages)
}
