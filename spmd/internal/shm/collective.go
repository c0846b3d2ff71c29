package shm

/*
#cgo linux CFLAGS: -O3 -D_GNU_SOURCE

#cgo noescape slots_barrier
#cgo nocallback slots_barrier
#cgo noescape slots_allreduce
#cgo nocallback slots_allreduce
#cgo noescape slots_reduce_scatter
#cgo nocallback slots_reduce_scatter
#cgo noescape slots_scan
#cgo nocallback slots_scan
#cgo noescape meet
#cgo nocallback meet
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
	"fmt"
	"runtime"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
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

	allGather = C.ALLGATHER
	allToAll  = C.ALLTOALL
	scan      = C.SCAN
	exScan    = C.EXSCAN

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

func sysMeet(s *shared, meeting, n int, t elem.Type) met {
	return outcome(C.meet(s, C.int(meeting), C.int(n), C.int(t), 0), nil, nil)
}

func sysAwait(s *shared, word unsafe.Pointer, round uint64) int {
	return int(C.await(s, word, C.uint64_t(round)))
}

func sysRingSend(x *ringEnd, src unsafe.Pointer, n int, t elem.Type, to int) (code int) {
	code = int(C.ring_send(x, address(src), C.int64_t(n), C.int(t), C.int(to)))
	runtime.KeepAlive(src)
	return code
}

// sysRingRecv returns the code and the bytes of the message, -1 where MPI does not say.
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
	const name = "MPI_Barrier"
	if err := c.Usable(name); err != nil {
		return err
	}
	return c.Check(name, int(C.slots_barrier(c.s)))
}

// fits reports whether a collective of n elements goes through slots, which take limit bytes of it.
func (c *NodeComm) fits(n int, t elem.Type, limit int) bool {
	return c.s != nil && uint(n-1) < slotBytes && t < elem.Types && n*t.Size() <= limit
}

// judge returns the error of a collective through slots, of n elements of type t by op on this
// rank; elem.HostOps is none.
func (c *NodeComm) judge(name string, m met, n int, t elem.Type, op elem.Op) error {
	if m.rank < 0 {
		return c.Check(name, m.code)
	}
	by := ""
	if op < elem.HostOps {
		by = op.String() + " of "
	}
	return c.Differ(name, fmt.Sprintf("%s%d %v here, but rank %d brought another operation, type or count: %d elements",
		by, n, t, m.rank, m.got))
}

// AllReduce is cudampi.Comm.AllReduce. Collective; it blocks.
func (c *NodeComm) AllReduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	if !c.fits(n, t, slotBytes) {
		return c.Comm.AllReduce(dst, src, n, t, op)
	}
	const name = "MPI_Allreduce"
	if err := c.Ready(name, n, t, dst, src); err != nil {
		return err
	}
	if err := c.CheckOp(name, op, t); err != nil {
		return err
	}
	o := C.slots_allreduce(c.s, address(dst), address(src), C.int(n), C.int(t), C.int(op))
	return c.judge(name, outcome(o, dst, src), n, t, op)
}

// ReduceScatter is cudampi.Comm.ReduceScatter. Collective; it blocks.
func (c *NodeComm) ReduceScatter(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	if !c.fits(n*c.Size(), t, slotBytes) {
		return c.Comm.ReduceScatter(dst, src, n, t, op)
	}
	const name = "MPI_Reduce_scatter_block"
	if err := c.Ready(name, n, t, dst, src); err != nil {
		return err
	}
	if err := c.CheckOp(name, op, t); err != nil {
		return err
	}
	o := C.slots_reduce_scatter(c.s, address(dst), address(src), C.int(n), C.int(t), C.int(op))
	return c.judge(name, outcome(o, dst, src), n, t, op)
}

// Scan is cudampi.Comm.Scan. Collective; it blocks.
func (c *NodeComm) Scan(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	if !c.fits(n, t, slotBytes) {
		return c.Comm.Scan(dst, src, n, t, op)
	}
	return c.scan("MPI_Scan", scan, dst, src, n, t, op)
}

// ExScan is cudampi.Comm.ExScan. Collective; it blocks.
func (c *NodeComm) ExScan(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	if !c.fits(n, t, slotBytes) {
		return c.Comm.ExScan(dst, src, n, t, op)
	}
	return c.scan("MPI_Exscan", exScan, dst, src, n, t, op)
}

func (c *NodeComm) scan(name string, meeting int, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	if err := c.CheckScan(name, dst, src, n, t, op); err != nil {
		return err
	}
	o := C.slots_scan(c.s, C.int(meeting), address(dst), address(src), C.int(n), C.int(t), C.int(op))
	return c.judge(name, outcome(o, dst, src), n, t, op)
}

// AllGather is cudampi.Comm.AllGather. Collective; it blocks.
func (c *NodeComm) AllGather(dst, src unsafe.Pointer, n int, t elem.Type) error {
	if !c.fits(n*c.Size(), t, slotBytes) {
		return c.Comm.AllGather(dst, src, n, t)
	}
	const name = "MPI_Allgather"
	if err := c.Ready(name, n, t, dst, src); err != nil {
		return err
	}
	m := exchange(c.s, allGather, dst, bytesAt(src, n*t.Size()), src, 0, n, t)
	return c.judge(name, m, n, t, elem.HostOps)
}

// AllToAll is cudampi.Comm.AllToAll. Collective; it blocks.
func (c *NodeComm) AllToAll(dst, src unsafe.Pointer, n int, t elem.Type) error {
	if !c.fits(n*c.Size(), t, slotBytes) {
		return c.Comm.AllToAll(dst, src, n, t)
	}
	const name = "MPI_Alltoall"
	if err := c.Ready(name, n, t, dst, src); err != nil {
		return err
	}
	bytes := n * t.Size()
	own := c.Rank() * bytes
	m := exchange(c.s, allToAll, dst, bytesAt(src, c.Size()*bytes), unsafe.Add(src, own), own, n, t)
	return c.judge(name, m, n, t, elem.HostOps)
}

// Broadcast is cudampi.Comm.Broadcast. Collective; it blocks, but on the root only if that is 16
// broadcasts ahead.
func (c *NodeComm) Broadcast(buf unsafe.Pointer, n int, t elem.Type, root int) error {
	if !c.fits(n, t, bcastBytes) {
		return c.Comm.Broadcast(buf, n, t, root)
	}
	const name = "MPI_Bcast"
	if err := c.Ready(name, n, t, buf, buf); err != nil {
		return err
	}
	if err := c.CheckRoot(name, root); err != nil {
		return err
	}
	return c.judge(name, broadcast(c.s, buf, n, t, root), n, t, elem.HostOps)
}
