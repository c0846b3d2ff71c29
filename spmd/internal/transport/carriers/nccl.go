package carriers

import (
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
	"lockstep/nccl"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/transport"
)

// NCCL carries calls on the memory of GPUs by a communicator of NCCL.
type NCCL struct {
	Comm    *nccl.Comm
	dev     *cuda.Device
	word    unsafe.Pointer
	calls   []nccl.GroupCall
	linked  bool // see Linked
	windows bool // memory is registered as windows, which symmetric kernels reach
}

// NewNCCL returns the transport of a communicator of NCCL, which remains its caller's. word is a
// word of device memory that is never read.
func NewNCCL(c *nccl.Comm, dev *cuda.Device, word unsafe.Pointer) *NCCL {
	return &NCCL{Comm: c, dev: dev, word: word}
}

// ncclKinds are the kinds that NCCL has. AllToAll needs different buffers.
var ncclKinds = [coll.Kinds]nccl.Function{coll.AllReduce: nccl.AllReduce, coll.Reduce: nccl.Reduce,
	coll.Broadcast: nccl.Broadcast,
	coll.AllGather: nccl.AllGather, coll.ReduceScatter: nccl.ReduceScatter, coll.AllToAll: nccl.AllToAll,
	coll.Send: nccl.Send, coll.Recv: nccl.Recv, coll.Barrier: nccl.AllReduce}

var ncclCaps = transport.Caps{
	Library: coll.Library{
		Kinds: coll.SetOf(coll.AllReduce, coll.Reduce, coll.Broadcast, coll.AllGather, coll.ReduceScatter,
			coll.AllToAll, coll.Send, coll.Recv, coll.Barrier),
		Apart: coll.SetOf(coll.AllToAll),
	},
	Merges: true, Ordered: true,
}

var _ transport.Transport = (*NCCL)(nil)

func (t *NCCL) Name() string { return "nccl" }

func (t *NCCL) Caps() *transport.Caps { return &ncclCaps }

func (t *NCCL) Scratch(int) int { return 0 }

func (t *NCCL) Do(q transport.Issuer, c coll.Call) error {
	t.calls = t.append(t.calls[:0], c)
	return t.make(q.Stream())
}

func (t *NCCL) Group(q transport.Issuer, cs []coll.Call, _ unsafe.Pointer) error {
	t.calls = t.calls[:0]
	for _, c := range cs {
		t.calls = t.append(t.calls, c)
	}
	return t.make(q.Stream())
}

func (t *NCCL) make(s *cuda.Stream) error {
	if err := t.separate(s); err != nil {
		return err
	}
	return t.Comm.Group(s, t.calls)
}

// separate keeps symmetric kernels of NCCL behind the kernel ahead of them. NCCL launches them
// early. If the kernel ahead lets the next one start before its end, as cuBLAS's do and those that
// call start_next, they read what it has not written yet. A fill is no kernel that does so.
func (t *NCCL) separate(s *cuda.Stream) error {
	if !t.windows || !hasty(nccl.Version()) {
		return nil
	}
	return s.Fill(t.word, 4, 0, 1)
}

// append appends a call in NCCL's terms.
func (t *NCCL) append(to []nccl.GroupCall, c coll.Call) []nccl.GroupCall {
	k := nccl.GroupCall{Kind: ncclKinds[c.Kind], Type: c.Type, Op: c.Op, Peer: c.Root, Dst: c.Dst, Src: c.Src, N: c.N}
	switch {
	case c.Kind == coll.Barrier:
		k.Type, k.Op, k.Dst, k.Src, k.N = elem.Int32, elem.Sum, t.word, t.word, 1
	case c.Kind == coll.Broadcast && c.Src == nil:
		k.Src = k.Dst
	}
	if k.N == 0 {
		if !c.Kind.Traits().Message {
			return to
		}
		// NCCL 2.28.3 does not wait for a message of no bytes, so it gets one byte of no meaning.
		k.Type, k.N = elem.Uint8, 1
		if k.Kind == nccl.Send {
			k.Src = t.word
		} else {
			k.Dst = t.word
		}
	}
	return append(to, k)
}
