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

// The collectives, in the order of sys.h. src and dst are of the rank that is named, n is N, the
// root and the other side of a message are Peer. Memory that a rank does not need may be nil there.
// dst and src do not overlap but in place.
const (
	AllReduce     Function = iota // dst[i] = op(src_0[i], src_1[i], ...) on every rank; in place dst is src
	Reduce                        // the same on the root alone
	Broadcast                     // dst of every rank has n elements of the root's src; in place dst is src there
	AllGather                     // dst[r*n:] of every rank has src of rank r; in place src is dst[Rank()*n:]
	ReduceScatter                 // dst of rank r has block r of the reduction of src; in place dst is src[Rank()*n:]
	AllToAll                      // block r of dst of rank q has block q of src of rank r; not in place
	Gather                        // AllGather on the root alone; in place src is dst[root*n:] there
	Scatter                       // dst of every rank r has src[r*n:] of the root; in place dst is src[root*n:] there
	Send                          // it occupies the stream until the other side receives
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

// GroupCall is one collective of a Group. All ranks of the communicator make it, with the same n,
// type, operation and root. Integers wrap round; 16-bit floats are rounded at every step between
// ranks. Avg divides the sum by the number of ranks, towards zero for integers.
type GroupCall struct {
	Kind     Function
	Type     elem.Type
	Op       elem.Op // of AllReduce, Reduce and ReduceScatter
	Peer     int32   // the root, or the other side of Send and Recv
	Dst, Src unsafe.Pointer
	N        int // elements; of each rank's part in AllGather, ReduceScatter, AllToAll, Gather and Scatter
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

func (x *GroupCall) about() string { return fmt.Sprintf("%d %v elements", x.N, x.Type) }

// scratch holds the C form of groups, which may have hundreds of calls.
var scratch = sync.Pool{New: func() any { return new([]cCall) }}

// Group issues calls as one. NCCL merges them, and sends and receives that need each other make
// progress together. The order among the calls carries no meaning, but is the same on all ranks.
// All are enqueued on s. An error means that none is. No calls do nothing. Before NCCL 2.28
// AllToAll, Gather and Scatter are sends and receives. Source: nccl.h, ncclGroupStart and
// ncclGroupEnd, and the functions that the kinds' String names.
func (c *Comm) Group(s *cuda.Stream, calls []GroupCall) error {
	if len(calls) == 0 {
		return nil
	}
	among := func(i int, behind string) string {
		if len(calls) == 1 {
			return ""
		}
		return fmt.Sprintf("call %d of %d in a group%s", i+1, len(calls), behind)
	}
	for i := range calls {
		if wrong := c.wrong(&calls[i]); wrong != "" {
			return c.refused(calls[i].Kind.String(), "%s%s", among(i, ": "), wrong)
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
	case i < 0 && len(calls) > 1:
		return c.failed(functions[kind], status, fmt.Sprintf("a group of %d calls", len(calls)))
	default:
		return c.failed(functions[kind], status, among(i, ", ")+calls[max(i, 0)].about())
	}
}
