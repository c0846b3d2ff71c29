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

func sysBarrier(s *shared) int { return int(C.slots_barrier(s)) }

func sysAllReduce(s *shared, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) met {
	return outcome(C.slots_allreduce(s, address(dst), address(src), C.int(n), C.int(t), C.int(op)), dst, src)
}

func sysReduceScatter(s *shared, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) met {
	return outcome(C.slots_reduce_scatter(s, address(dst), address(src), C.int(n), C.int(t), C.int(op)), dst, src)
}

func sysScan(s *shared, meeting int, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) met {
	return outcome(C.slots_scan(s, C.int(meeting), address(dst), address(src), C.int(n), C.int(t), C.int(op)), dst, src)
}

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
