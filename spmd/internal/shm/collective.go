package shm

/*
#cgo linux CFLAGS: -O3 -D_GNU_SOURCE

#cgo noescape slots_reduce
#cgo nocallback slots_reduce
#cgo noescape meet
#cgo nocallback meet
#cgo noescape meet_first
#cgo nocallback meet_first
#cgo noescape await
#cgo nocallback await
#cgo noescape ring_send
#cgo nocallback ring_send
#cgo noescape ring_recv
#cgo nocallback ring_recv
#cgo noescape reduce_many
#cgo nocallback reduce_many

#include "slots.h"
#include "ring.h"
*/
import "C"

import (
	"runtime"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// The constants of slots.h and ring.h, by their names in Go.
type (
	shared  = C.struct_shared
	slot    = C.struct_slot
	ringEnd = C.struct_ring_end
	record  = C.struct_record

	cUint64 = C.uint64_t
	cInt64  = C.int64_t
	cInt32  = C.int32_t
	cUint8  = C.uint8_t
)

const (
	mostRanks  = C.MOST_RANKS
	ownCores   = C.OWN_CORES
	slotBytes  = C.SLOT_BYTES
	bcastBytes = C.BCAST_BYTES
	bcasts     = C.BCASTS

	unit       = C.UNIT
	recordHead = C.HEAD

	success = 0 // MPI_SUCCESS
)

// met is how a collective through slots went: the code, or the rank that brought something else,
// and its count; -1 for none.
type met struct{ code, rank, got int }

// address passes memory as a number to calls that take a few hundred nanoseconds. outcome, after
// the call, shows the memory to the collector.
func address(p unsafe.Pointer) C.uintptr_t { return C.uintptr_t(ccall.Address(p)) }

func outcome(o C.struct_outcome, dst, src unsafe.Pointer) met {
	runtime.KeepAlive(dst)
	runtime.KeepAlive(src)
	return met{int(o.code), int(o.index), int(o.got)}
}

func sysSharedBytes(ranks int) int { return int(C.shared_bytes(C.int(ranks))) }

func sysOpenShared(mpi unsafe.Pointer, comm uintptr, rank, size int, sharesCores bool, mem []byte) *shared {
	shares := C.int(0)
	if sharesCores {
		shares = 1
	}
	return C.open_shared((*C.struct_calls)(mpi), C.uintptr_t(comm), C.int(rank), C.int(size), shares,
		unsafe.Pointer(&mem[0]))
}

func sysCloseShared(s *shared) { C.free(unsafe.Pointer(s)) }

// sysMeet is a meeting of ranks that have brought data.
func sysMeet(s *shared, c *coll.Call) met {
	return outcome(C.meet(s, C.uint64_t(c.What()), C.int64_t(c.Alike())), nil, nil)
}

func sysAwait(s *shared, word unsafe.Pointer, round uint64) int {
	return int(C.await(s, word, C.uint64_t(round)))
}

func sysRingSend(x *ringEnd, src unsafe.Pointer, n int, t elem.Type, to int) (code int) {
	code = int(C.ring_send(x, address(src), C.int64_t(n), C.int(t), C.int(to)))
	runtime.KeepAlive(src)
	return code
}

// sysRingRecv returns the code and the Content of the message, -1 where MPI does not say.
func sysRingRecv(x *ringEnd, dst unsafe.Pointer, n int, t elem.Type, from int) (code, got int) {
	o := outcome(C.ring_recv(x, address(dst), C.int64_t(n), C.int(t), C.int(from)), dst, nil)
	return o.code, o.got
}

// Reduce sets n elements at dst to op over all src, in their order, the 16-bit floats in float32
// and rounded once. In Min and Max a NaN wins. It is for memory of C. It needs none of its own, so
// several goroutines may work on parts.
func Reduce(dst unsafe.Pointer, src []uintptr, n int, t elem.Type, op elem.Op) {
	C.reduce_many(address(dst), (*C.uintptr_t)(unsafe.Pointer(unsafe.SliceData(src))), C.int(len(src)), C.int64_t(n),
		C.int(t), C.int(op))
}

// Barrier is cudampi.Comm.Barrier. Collective; it blocks.
func (c *NodeComm) Barrier() error {
	// MPI, which does not yield where each rank has a core, makes the system move apart
	// ranks that it has put on one.
	if c.s == nil || c.s.spins != 0 {
		return c.Comm.Barrier()
	}
	if err := c.Usable("MPI_Barrier"); err != nil {
		return err
	}
	return c.meet(&coll.Call{Kind: coll.Barrier})
}

// Carry makes a collective through slots. It returns done false if MPI is to make it. Before that
// all ranks meet: it fails on every rank if one brings another call, which MPI does not see, and
// then writes where it should not. Of an AllToAllV the messages have what differs. Ranks that share
// no memory do not compare, nor does a call that cudampi.Comm refuses. Collective; it blocks.
func (c *NodeComm) Carry(call *coll.Call) (done bool, err error) {
	if c.s == nil {
		return false, nil
	}
	t := call.Kind.Traits()
	scans := call.Kind == coll.Scan || call.Kind == coll.ExScan
	if !t.Moves() || t.Message || t.Lengths == coll.Own || call.N < 0 || call.Type >= elem.Types ||
		t.Reduces && !call.Op.Has(call.Type) || scans && call.Op == elem.Avg ||
		t.Rooted && uint(call.Root) >= uint(c.s.size) || c.Usable("") != nil {
		return false, nil
	}
	rank, size := int(c.s.rank), int(c.s.size)
	dst, src := call.Extents(rank, size)
	all := call.N
	if t.Dst.Extent == coll.Whole || t.Src.Extent == coll.Whole {
		all = call.Offset(size)
	}
	switch {
	case dst > 0 && call.Dst == nil || src > 0 && call.Src == nil:
		return false, nil
	case call.Kind == coll.Broadcast && c.fits(all, call.Type, bcastBytes):
		return true, c.broadcast(call)
	case call.Kind == coll.Broadcast || !c.fits(all, call.Type, slotBytes):
		return false, c.meet(call)
	case !t.Reduces:
		return true, c.move(call, dst, src)
	}
	ranks, lo := size, 0
	switch {
	case call.Kind == coll.Scan:
		ranks = rank + 1
	case call.Kind == coll.ExScan:
		ranks = rank
	case dst == 0:
		ranks = 0
	case t.Src.Extent == coll.Whole:
		lo = call.Offset(rank)
	}
	o := C.slots_reduce(c.s, C.uint64_t(call.What()), C.int64_t(call.Alike()), address(call.Dst), address(call.Src),
		C.int(src*call.Type.Size()), C.int(ranks), C.int(lo), C.int(dst))
	return true, c.judge(call, outcome(o, call.Dst, call.Src))
}

// meet waits until all ranks have brought a call. It fails on every rank if one brought another.
func (c *NodeComm) meet(call *coll.Call) error {
	return c.judge(call, outcome(C.meet_first(c.s, C.uint64_t(call.What()), C.int64_t(call.Alike())), nil, nil))
}

// fits reports whether a collective of n elements goes through slots, which take limit bytes of it.
func (c *NodeComm) fits(n int, t elem.Type, limit int) bool {
	return uint(n-1) < slotBytes && n*t.Size() <= limit
}

// judge returns the error of a meeting to which this rank brought a call.
func (c *NodeComm) judge(call *coll.Call, m met) error {
	if m.rank < 0 {
		return c.Check(call.Kind.String(), m.code)
	}
	return call.Differs(c.Rank(), m.rank, uint64(c.s.slots[m.rank].meeting[c.s.round&1].what), m.got)
}

// AllReduce is cudampi.Comm.AllReduce. Collective; it blocks.
func (c *NodeComm) AllReduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	call := coll.Call{Kind: coll.AllReduce, Dst: dst, Src: src, N: n, Type: t, Op: op}
	if done, err := c.Carry(&call); done || err != nil {
		return err
	}
	return c.Comm.AllReduce(dst, src, n, t, op)
}

// AllGather is cudampi.Comm.AllGather. Collective; it blocks.
func (c *NodeComm) AllGather(dst, src unsafe.Pointer, n int, t elem.Type) error {
	call := coll.Call{Kind: coll.AllGather, Dst: dst, Src: src, N: n, Type: t}
	if done, err := c.Carry(&call); done || err != nil {
		return err
	}
	return c.Comm.AllGather(dst, src, n, t)
}

// Broadcast is cudampi.Comm.Broadcast. Collective; it blocks, but on the root only if that is 16
// broadcasts ahead.
func (c *NodeComm) Broadcast(buf unsafe.Pointer, n int, t elem.Type, root int) error {
	call := coll.Call{Kind: coll.Broadcast, Dst: buf, N: n, Type: t, Root: int32(root)}
	if done, err := c.Carry(&call); done || err != nil {
		return err
	}
	return c.Comm.Broadcast(buf, n, t, root)
}
