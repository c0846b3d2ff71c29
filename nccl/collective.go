package nccl

import (
	"fmt"
	"sync"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
)

// Function says which function of NCCL a GroupCall is.
type Function uint8

// The collectives, in the order of sys.h.
const (
	AllReduce Function = iota
	Reduce
	Broadcast
	AllGather
	ReduceScatter
	AllToAll
	Gather
	Scatter
	Send
	Recv

	Kinds = 10 // number of kinds
)

// functions has the C functions of the kinds, and of the calls around a group.
var functions = [...]string{"ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclAllGather",
	"ncclReduceScatter", "ncclAlltoAll",
	"ncclGather", "ncclScatter", "ncclSend", "ncclRecv", kindGroupStart: "ncclGroupStart", kindGroupEnd: "ncclGroupEnd"}

// String returns the name of the C function.
func (k Function) String() string {
	if k < Kinds {
		return functions[k]
	}
	return fmt.Sprintf("nccl.Function(%d)", uint8(k))
}

// GroupCall is one collective of a group: the arguments of the method of Comm with the name of its
// Kind.
type GroupCall struct {
	Kind     Function
	Type     elem.Type
	Op       elem.Op // of AllReduce, Reduce and ReduceScatter
	Peer     int32   // the root, or the other side of Send and Recv
	Dst, Src unsafe.Pointer
	N        int // elements; of each rank's part in AllGather, ReduceScatter, AllToAll, Gather and Scatter
}

// AllReduce leaves the reduction of src over all ranks in dst of every rank: dst[i] = op(src_0[i],
// src_1[i], ...), n elements. dst and src are the same address or do not overlap. It is enqueued on
// s.
//
// Collective: all ranks, with the same n, t and op. Integers wrap round; 16-bit floats are rounded
// at every step between ranks. Avg divides the sum by the number of ranks, towards zero for
// integers. Source: nccl.h, ncclAllReduce.
func (c *Comm) AllReduce(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return c.one(s, GroupCall{Kind: AllReduce, Type: t, Op: op, Dst: dst, Src: src, N: n})
}

// Reduce is AllReduce with the result on root alone; dst is not used elsewhere and may be nil
// there. Source: nccl.h, ncclReduce.
func (c *Comm) Reduce(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op, root int) error {
	return c.one(s, GroupCall{Kind: Reduce, Type: t, Op: op, Peer: peer(root), Dst: dst, Src: src, N: n})
}

// Broadcast copies n elements of root's src to dst of every rank. src is not used elsewhere. On
// root dst and src are the same address or do not overlap. It is enqueued on s.
//
// Collective: all ranks, with the same n, t and root.
// Source: nccl.h, ncclBroadcast.
func (c *Comm) Broadcast(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	return c.one(s, GroupCall{Kind: Broadcast, Type: t, Peer: peer(root), Dst: dst, Src: src, N: n})
}

// AllGather copies the n elements of src of every rank r to dst[r*n:] of every rank; dst has
// Size()*n elements. In place, src is dst[Rank()*n:]; otherwise they do not overlap. It is enqueued
// on s.
//
// Collective: all ranks, with the same n and t.
// Source: nccl.h, ncclAllGather.
func (c *Comm) AllGather(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type) error {
	return c.one(s, GroupCall{Kind: AllGather, Type: t, Dst: dst, Src: src, N: n})
}

// ReduceScatter leaves block r of the reduction of src over all ranks in dst of rank r; src has
// Size()*n elements, dst n. In place, dst is src[Rank()*n:]; otherwise they do not overlap. It is
// enqueued on s.
//
// Collective: all ranks, with the same n, t and op, as in AllReduce. Source: nccl.h,
// ncclReduceScatter.
func (c *Comm) ReduceScatter(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return c.one(s, GroupCall{Kind: ReduceScatter, Type: t, Op: op, Dst: dst, Src: src, N: n})
}

// AllToAll copies block q of src of rank r to block r of dst of rank q, for all r and q. A block
// has n elements, dst and src Size()*n. They do not overlap: there is no form in place. It is
// enqueued on s.
//
// Collective: all ranks, with the same n and t. Before NCCL 2.28 it is a group of sends and
// receives. Source: nccl.h, ncclAlltoAll.
func (c *Comm) AllToAll(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type) error {
	return c.one(s, GroupCall{Kind: AllToAll, Type: t, Dst: dst, Src: src, N: n})
}

// Gather copies the n elements of src of every rank r to dst[r*n:] of root; dst is not used
// elsewhere. In place on root, src is dst[root*n:]; otherwise they do not overlap. It is enqueued
// on s.
//
// Collective: all ranks, with the same n, t and root. Before NCCL 2.28 it is a group of sends and
// receives. Source: nccl.h, ncclGather.
func (c *Comm) Gather(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	return c.one(s, GroupCall{Kind: Gather, Type: t, Peer: peer(root), Dst: dst, Src: src, N: n})
}

// Scatter copies src[r*n:] of root to the n elements of dst of every rank r; src is not used
// elsewhere. In place on root, dst is src[root*n:]; otherwise they do not overlap. It is enqueued
// on s.
//
// Collective: all ranks, with the same n, t and root. Before NCCL 2.28 it is a group of sends and
// receives. Source: nccl.h, ncclScatter.
func (c *Comm) Scatter(s *cuda.Stream, dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	return c.one(s, GroupCall{Kind: Scatter, Type: t, Peer: peer(root), Dst: dst, Src: src, N: n})
}

// Send sends n elements to rank to, which receives as many. It is enqueued on s and occupies s
// until that rank receives: sends and receives that need each other go into one Group. Source:
// nccl.h, ncclSend.
func (c *Comm) Send(s *cuda.Stream, src unsafe.Pointer, n int, t elem.Type, to int) error {
	return c.one(s, GroupCall{Kind: Send, Type: t, Peer: peer(to), Src: src, N: n})
}

// Recv receives n elements from rank from. It is enqueued on s as Send is.
// Source: nccl.h, ncclRecv.
func (c *Comm) Recv(s *cuda.Stream, dst unsafe.Pointer, n int, t elem.Type, from int) error {
	return c.one(s, GroupCall{Kind: Recv, Type: t, Peer: peer(from), Dst: dst, N: n})
}

// peer keeps a rank that no int32 holds from looking like another.
func peer(r int) int32 {
	if int(int32(r)) != r {
		return -1
	}
	return int32(r)
}

// wrong says what is wrong with a call, if NCCL would not refuse it, or only after a part of a
// group was issued.
func (c *Comm) wrong(x *GroupCall) string {
	switch {
	case x.Kind >= Kinds:
		return "no such kind"
	case x.Type >= elem.Types:
		return "no such type: " + x.Type.String()
	case x.Op >= elem.Ops:
		return "no such operation: " + x.Op.String()
	case !x.Op.On(x.Type):
		return fmt.Sprintf("%v of %v", x.Op, x.Type)
	case x.Op == elem.Prod && x.Type.Complex() && (x.Kind == AllReduce || x.Kind == Reduce || x.Kind == ReduceScatter):
		return "NCCL multiplies no complex numbers: gather them, or choose --collectives mpi"
	case x.N < 0:
		return fmt.Sprintf("%d elements", x.N)
	case x.Peer < 0 || int(x.Peer) >= c.size:
		return fmt.Sprintf("rank %d of a communicator of %d ranks", x.Peer, c.size)
	}
	return ""
}

// closedStream is refused because NCCL would take its handle, 0, for the default stream.
const closedStream = "the stream is closed"

func (c *Comm) one(s *cuda.Stream, x GroupCall) error {
	wrong := c.wrong(&x)
	if s.Handle() == nil {
		wrong = closedStream
	}
	if wrong != "" {
		return c.refused(x.Kind.String(), "%s", wrong)
	}
	var calls [1]cCall
	setCall(&calls[0], &x)
	if status, kind, _ := sysRun(c, s, calls[:]); status != statusOK {
		return c.failed(functions[kind], status, x.about())
	}
	return nil
}

func (x *GroupCall) about() string { return fmt.Sprintf("%d %v elements", x.N, x.Type) }

// scratch holds the C form of groups, which may have hundreds of calls.
var scratch = sync.Pool{New: func() any { return new([]cCall) }}

// Group issues calls as one. NCCL merges them, and sends and receives that need each other make
// progress together. The order among the calls carries no meaning, but is the same on all ranks.
// All are enqueued on s. An error means that none is. No calls do nothing. Source: nccl.h,
// ncclGroupStart and ncclGroupEnd.
func (c *Comm) Group(s *cuda.Stream, calls []GroupCall) error {
	if len(calls) == 0 {
		return nil
	}
	for i := range calls {
		if wrong := c.wrong(&calls[i]); wrong != "" {
			return c.refused(calls[i].Kind.String(), "call %d of %d in a group: %s", i+1, len(calls), wrong)
		}
	}
	if s.Handle() == nil {
		return c.refused(calls[0].Kind.String(), "%s", closedStream)
	}
	p := scratch.Get().(*[]cCall)
	if cap(*p) < len(calls) {
		*p = make([]cCall, len(calls))
	}
	sys := (*p)[:len(calls)]
	for i := range calls {
		setCall(&sys[i], &calls[i])
	}
	status, kind, i := sysRun(c, s, sys)
	scratch.Put(p)
	switch {
	case status == statusOK:
		return nil
	case i < 0:
		return c.failed(functions[kind], status, fmt.Sprintf("a group of %d calls", len(calls)))
	default:
		return c.failed(functions[kind], status,
			fmt.Sprintf("call %d of %d in a group, %s", i+1, len(calls), calls[i].about()))
	}
}
