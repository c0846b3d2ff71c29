// Package devmpi carries calls on device memory through MPI, which takes the memory, or copies of it in host memory.
package devmpi

import (
	"fmt"
	"slices"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/internal/elem"
	"lockstep/internal/peer"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/transport"
)

// Transport is MPI on device memory. Since MPI knows no streams, the host makes its calls while a stream waits.
type Transport struct {
	Comm  *cudampi.DeviceComm
	word  unsafe.Pointer
	caps  transport.Caps
	peers *peer.Comm   // see Peers
	asked cudampi.Path // that the transport was opened for
}

var kinds = coll.SetOf(coll.AllReduce, coll.Reduce, coll.Broadcast, coll.AllGather, coll.ReduceScatter, coll.AllToAll,
	coll.Gather, coll.Scatter, coll.AllGatherV, coll.ReduceScatterV, coll.GatherV, coll.ScatterV, coll.AllToAllV, coll.Send, coll.Recv, coll.Barrier)

// New returns the transport of a communicator of device memory, which remains its caller's. word is a word of device memory
// that is never read.
func New(k *cudampi.DeviceComm, word unsafe.Pointer) *Transport {
	t := &Transport{Comm: k, word: word}
	between := k.Path() == cudampi.Peer // kernels carry most calls
	t.caps = transport.Caps{Library: coll.Library{Kinds: kinds}, Ordered: true, Hands: true,
		Now: !between, Blocks: k.Path() == cudampi.AwareMPI}
	if !between {
		t.caps.NoGraph = fmt.Errorf("collectives through %v cannot be captured", k.Path())
	}
	return t
}

// Path is the way that the memory takes.
func (t *Transport) Path() cudampi.Path { return t.Comm.Path() }

// Name implements transport.Transport.
func (t *Transport) Name() string { return t.Comm.Path().String() }

// Caps implements transport.Transport.
func (t *Transport) Caps() *transport.Caps { return &t.caps }

// Scratch implements transport.Transport.
func (t *Transport) Scratch(int) int { return 0 }

// Do implements transport.Transport.
func (t *Transport) Do(q transport.Queue, c coll.Call) error {
	if c.Kind.Traits().Message {
		return t.Group(q, []coll.Call{c}, nil)
	}
	c.Counts, c.RecvCounts = slices.Clone(c.Counts), slices.Clone(c.RecvCounts)
	return t.hand(q, func(at cudampi.Point) error { return t.make(at, &c) })
}

// Group implements transport.Transport.
func (t *Transport) Group(q transport.Queue, cs []coll.Call, _ unsafe.Pointer) error {
	if len(cs) == 0 {
		return nil
	}
	var list []cudampi.Message
	for i := range cs {
		cs[i].Messages(func(m coll.Call) bool {
			k := cudampi.Message{Buf: m.Src, N: m.N, Type: m.Type, Peer: int(m.Root)}
			if m.Kind == coll.Recv {
				k.Buf, k.Recv = m.Dst, true
			}
			list = append(list, k)
			return true
		})
	}
	return t.hand(q, func(at cudampi.Point) error { return t.Comm.Exchange(at, list...) })
}

func (t *Transport) hand(q transport.Queue, run func(at cudampi.Point) error) error {
	at := cudampi.At(q.Stream())
	return q.Hand(transport.Job{
		By:      t.Comm.Path().String(),
		Hold:    func() (err error) { at, err = t.Comm.Hold(q.Stream()); return err },
		Run:     func() error { return run(at) },
		Release: func() error { return t.Comm.Release(at) },
	})
}

// make makes a collective at a point of a stream.
func (t *Transport) make(at cudampi.Point, c *coll.Call) error {
	k, root := t.Comm, int(c.Root)
	switch c.Kind {
	case coll.AllReduce:
		return k.AllReduce(at, c.Dst, c.Src, c.N, c.Type, c.Op)
	case coll.Reduce:
		return k.Reduce(at, c.Dst, c.Src, c.N, c.Type, c.Op, root)
	case coll.Broadcast:
		return k.Broadcast(at, c.Dst, c.N, c.Type, root)
	case coll.AllGather:
		return k.AllGather(at, c.Dst, c.Src, c.N, c.Type)
	case coll.ReduceScatter:
		return k.ReduceScatter(at, c.Dst, c.Src, c.N, c.Type, c.Op)
	case coll.AllToAll:
		return k.AllToAll(at, c.Dst, c.Src, c.N, c.Type)
	case coll.Gather:
		return k.Gather(at, c.Dst, c.Src, c.N, c.Type, root)
	case coll.Scatter:
		return k.Scatter(at, c.Dst, c.Src, c.N, c.Type, root)
	case coll.AllGatherV:
		return k.AllGatherV(at, c.Dst, c.Src, c.Counts, c.Type)
	case coll.ReduceScatterV:
		return k.ReduceScatterV(at, c.Dst, c.Src, c.Counts, c.Type, c.Op)
	case coll.GatherV:
		return k.GatherV(at, c.Dst, c.Src, c.Counts, c.Type, root)
	case coll.ScatterV:
		return k.ScatterV(at, c.Dst, c.Src, c.Counts, c.Type, root)
	case coll.AllToAllV:
		return k.AllToAllV(at, c.Dst, c.RecvCounts, c.Src, c.Counts, c.Type)
	default: // a barrier that the stream sees
		return k.AllReduce(at, t.word, t.word, 1, elem.Int32, elem.Sum)
	}
}
