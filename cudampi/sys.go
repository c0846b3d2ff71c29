package cudampi

/*
#cgo linux CFLAGS: -O3 -D_GNU_SOURCE -I/usr/lib/x86_64-linux-gnu/openmpi/include
#cgo linux CFLAGS: -I/usr/lib/aarch64-linux-gnu/openmpi/include
#cgo linux LDFLAGS: -L/usr/lib/x86_64-linux-gnu/openmpi/lib -L/usr/lib/aarch64-linux-gnu/openmpi/lib -lmpi

#cgo noescape barrier
#cgo nocallback barrier
#cgo noescape allreduce
#cgo nocallback allreduce
#cgo noescape reduce
#cgo nocallback reduce
#cgo noescape scan
#cgo nocallback scan
#cgo noescape bcast
#cgo nocallback bcast
#cgo noescape allgather
#cgo nocallback allgather
#cgo noescape reduce_scatter
#cgo nocallback reduce_scatter
#cgo noescape alltoall
#cgo nocallback alltoall
#cgo noescape gather
#cgo nocallback gather
#cgo noescape scatter
#cgo nocallback scatter
#cgo noescape allgatherv
#cgo nocallback allgatherv
#cgo noescape reduce_scatterv
#cgo nocallback reduce_scatterv
#cgo noescape gatherv
#cgo nocallback gatherv
#cgo noescape scatterv
#cgo nocallback scatterv
#cgo noescape send_message
#cgo nocallback send_message
#cgo noescape recv_message
#cgo nocallback recv_message
#cgo noescape sendrecv
#cgo nocallback sendrecv
#cgo noescape swap
#cgo nocallback swap
#cgo noescape sendrecv_by
#cgo nocallback sendrecv_by
#cgo noescape run_group
#cgo nocallback run_group

#cgo noescape start_chunk
#cgo nocallback start_chunk
#cgo noescape test_chunk
#cgo nocallback test_chunk
#cgo nocallback pump
#cgo nocallback spin

#include "sys.h"
#include "p2p.h"
#include "device.h"
*/
import "C"

import (
	"runtime"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
)

type handle = C.MPI_Comm

const (
	sysTagUser = C.TAG_USER

	success   = C.MPI_SUCCESS
	threadMin = C.MPI_THREAD_SERIALIZED
)

func cbool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// address passes memory to calls that take a few hundred nanoseconds. keep, after the call, shows
// it to the collector.
func address(p unsafe.Pointer) C.uintptr_t { return C.uintptr_t(ccall.Address(p)) }

func keep(p, q unsafe.Pointer) {
	runtime.KeepAlive(p)
	runtime.KeepAlive(q)
}

// kept returns the code of a call to which address has passed both.
func kept(code C.int, p, q unsafe.Pointer) int {
	keep(p, q)
	return int(code)
}

func sysBarrier(c handle) int { return int(C.barrier(c)) }

func sysAllReduce(c *Comm, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) int {
	return kept(C.allreduce(c.h, address(dst), address(src), C.int(n), C.int(t), C.int(op), C.int(c.size)), dst, src)
}

func sysReduce(c *Comm, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op, root int) int {
	return kept(C.reduce(c.h, address(dst), address(src), C.int(n), C.int(t), C.int(op), C.int(root),
		C.int(c.rank), C.int(c.size)), dst, src)
}

func sysScan(c *Comm, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op, exclusive bool) int {
	return kept(C.scan(c.h, address(dst), address(src), C.int(n), C.int(t), C.int(op), cbool(exclusive),
		C.int(c.rank)), dst, src)
}

func sysBroadcast(c *Comm, buf unsafe.Pointer, n int, t elem.Type, root int) int {
	return kept(C.bcast(c.h, address(buf), C.int(n), C.int(t), C.int(root)), buf, nil)
}

func sysAllGather(c *Comm, dst, src unsafe.Pointer, n int, t elem.Type, inPlace bool) int {
	return kept(C.allgather(c.h, address(dst), address(src), C.int(n), C.int(t), cbool(inPlace)), dst, src)
}

func sysReduceScatter(c *Comm, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op, inPlace bool) int {
	return kept(C.reduce_scatter(c.h, address(dst), address(src), C.int(n), C.int(t), C.int(op),
		C.int(c.size), cbool(inPlace)), dst, src)
}

func sysAllToAll(c *Comm, dst, src unsafe.Pointer, n int, t elem.Type) int {
	return kept(C.alltoall(c.h, address(dst), address(src), C.int(n), C.int(t)), dst, src)
}

func sysGather(c *Comm, dst, src unsafe.Pointer, n int, t elem.Type, root int, inPlace bool) int {
	return kept(C.gather(c.h, address(dst), address(src), C.int(n), C.int(t), C.int(root), cbool(inPlace)), dst, src)
}

func sysScatter(c *Comm, dst, src unsafe.Pointer, n int, t elem.Type, root int, inPlace bool) int {
	return kept(C.scatter(c.h, address(dst), address(src), C.int(n), C.int(t), C.int(root), cbool(inPlace)), dst, src)
}

// ints holds the counts of a V form, and after them the displacements, as C has them.
type ints []C.int

func (v ints) counts() *C.int { return &v[0] }
func (v ints) displs() *C.int { return &v[len(v)/2] }

// set makes C read counts that are no more than it can hold.
func (v ints) set(counts []int) {
	at := C.int(0)
	for r, n := range counts {
		v[r], v[len(counts)+r] = C.int(n), at
		at += C.int(n)
	}
}

func sysAllGatherV(c *Comm, dst, src unsafe.Pointer, t elem.Type, inPlace bool) int {
	return kept(C.allgatherv(c.h, address(dst), address(src), c.v.counts(), c.v.displs(), C.int(t),
		C.int(c.rank), cbool(inPlace)), dst, src)
}

func sysReduceScatterV(c *Comm, dst, src unsafe.Pointer, total int, t elem.Type, op elem.Op, inPlace bool) int {
	return kept(C.reduce_scatterv(c.h, address(dst), address(src), c.v.counts(), C.int(total), C.int(t),
		C.int(op), C.int(c.rank), C.int(c.size), cbool(inPlace)), dst, src)
}

func sysGatherV(c *Comm, dst, src unsafe.Pointer, t elem.Type, root int, inPlace bool) int {
	return kept(C.gatherv(c.h, address(dst), address(src), c.v.counts(), c.v.displs(), C.int(t),
		C.int(root), C.int(c.rank), cbool(inPlace)), dst, src)
}

func sysScatterV(c *Comm, dst, src unsafe.Pointer, t elem.Type, root int, inPlace bool) int {
	return kept(C.scatterv(c.h, address(dst), address(src), c.v.counts(), c.v.displs(), C.int(t),
		C.int(root), C.int(c.rank), cbool(inPlace)), dst, src)
}

func sysSend(c *Comm, src unsafe.Pointer, n int, t elem.Type, to, tag int) int {
	return kept(C.send_message(c.h, address(src), C.int64_t(n), C.int(t), C.int(to), C.int(tag)), src, nil)
}

// The receiving calls return the code and the Content of the message, -1 if MPI does not say.
func sysRecv(c *Comm, dst unsafe.Pointer, n int, t elem.Type, from, tag int) (code, got int) {
	o := C.recv_message(c.h, address(dst), C.int64_t(n), C.int(t), C.int(from), C.int(tag))
	keep(dst, nil)
	return int(o.code), int(o.got)
}

func sysSendRecv(
	c *Comm, dst unsafe.Pointer, rn, from int, src unsafe.Pointer, sn, to int, t elem.Type,
) (code, got int) {
	o := C.sendrecv(c.h, dst, C.int64_t(rn), C.int(from), src, C.int64_t(sn), C.int(to), C.int(t), tagUser)
	return int(o.code), int(o.got)
}

func (by Carriers) sysSendRecv(
	c *Comm, dst unsafe.Pointer, rn, from int, src unsafe.Pointer, sn, to int, t elem.Type,
) (code, got int) {
	in, out := (*C.struct_carrier)(by.In), (*C.struct_carrier)(by.Out)
	o := C.sendrecv_by(c.h, in, out, address(dst), C.int64_t(rn), C.int(from), address(src), C.int64_t(sn),
		C.int(to), C.int(t))
	keep(dst, src)
	return int(o.code), int(o.got)
}

func sysSwap(c *Comm, buf unsafe.Pointer, n int, t elem.Type, peer, tag int) int {
	return int(C.swap(c.h, buf, C.int(n), C.int(t), C.int(peer), C.int(tag)))
}

// group is the state of run_group; its slices grow to the largest group and stay.
type group struct {
	msgs []C.struct_p2p
	reqs []C.MPI_Request
}

func (g *group) add(c *Comm, buf unsafe.Pointer, n int, t elem.Type, peer, tag int, recv bool, by unsafe.Pointer) {
	g.msgs = append(g.msgs, C.struct_p2p{buf: address(buf), n: C.int64_t(n), comm: c.h, by: (*C.struct_carrier)(by),
		t: C.int(t), peer: C.int(peer), tag: C.int(tag), recv: cbool(recv)})
	if len(g.msgs) > len(g.reqs) {
		g.reqs = append(g.reqs, *new(C.MPI_Request))
	}
}

// run completes the group and empties it. index is -1, or the message that code and got are about.
func (g *group) run() (index, code, got int) {
	o := C.run_group(&g.msgs[0], C.int(len(g.msgs)), &g.reqs[0])
	return int(o.index), int(o.code), int(o.got)
}

func (g *group) message(i int) (n int, t elem.Type, peer int, recv bool) {
	m := g.msgs[i]
	return int(m.n), elem.Type(m.t), int(m.peer), m.recv != 0
}

// sysLimitMessages sets the most elements of a message without a derived datatype, and returns the
// old limit.
func sysLimitMessages(n int) (before int) {
	return int(C.limit_messages(C.int64_t(n)))
}

func sysCalls() unsafe.Pointer       { return unsafe.Pointer(C.calls()) }
func sysHandleWord(c handle) uintptr { return uintptr(C.handle_word(c)) }

type request = C.MPI_Request

func sysTestChunk(req *request) (done bool, code int) {
	o := C.test_chunk(req)
	return o.index != 0, int(o.code)
}

func sysStart(c *Comm, buf unsafe.Pointer, bytes, peer, tag int, recv bool, req *request) int {
	return int(C.start_chunk(c.h, address(buf), C.int(bytes), C.int(peer), C.int(tag), cbool(recv), req))
}

// sysPump sleeps for so many nanoseconds; with 0 it lets others run.
func sysPump(c *Comm, ns int) int { return int(C.pump(c.h, C.long(ns))) }
func sysSpin(n int)               { C.spin(C.int(n)) }
func sysQueryCUDA() int           { return int(C.query_cuda_support()) }
func sysQueryGPU() int            { return int(C.query_gpu_support()) }
func sysAllocKinds() (kinds string, known bool) {
	var buf [1024]C.char
	known = C.alloc_kinds(&buf[0], C.int(len(buf))) != 0
	return C.GoString(&buf[0]), known
}

func sysDupWorld() (h handle, code int)    { code = int(C.dup_world(&h)); return }
func sysDup(c handle) (h handle, code int) { code = int(C.dup_comm(c, &h)); return }
func sysFree(c handle) int                 { return int(C.MPI_Comm_free(&c)) }
func sysAbort(c handle, code int)          { C.abort_job(c, C.int(code)) }
func sysIsNull(c handle) bool              { return C.is_null(c) != 0 }
func sysMakeOps() int                      { return int(C.make_ops()) }
func sysFreeOps() int                      { return int(C.free_ops()) }
func sysFreeScratch()                      { C.free_scratch() }
func sysKeepHandlers(rank int)             { C.keep_handlers(C.int(rank)) }
func sysRestoreHandlers()                  { C.restore_handlers() }
func sysRank(c handle) (rank int, code int) {
	var r C.int
	code = int(C.MPI_Comm_rank(c, &r))
	return int(r), code
}
func sysSize(c handle) (size int, code int) {
	var s C.int
	code = int(C.MPI_Comm_size(c, &s))
	return int(s), code
}
func sysThreadLevel() (level int, code int) {
	var l C.int
	code = int(C.MPI_Query_thread(&l))
	return int(l), code
}

func sysSplit(c handle, color, key int) (h handle, code int) {
	code = int(C.split(c, C.int(color), C.int(key), &h))
	return
}

func sysSplitShared(c handle, key int) (h handle, code int) {
	code = int(C.split_shared(c, C.int(key), &h))
	return
}

func sysLibraryVersion() string {
	var n C.int
	buf := make([]C.char, C.MPI_MAX_LIBRARY_VERSION_STRING)
	if C.MPI_Get_library_version(&buf[0], &n) != success {
		return ""
	}
	return C.GoStringN(&buf[0], n)
}

// sysError returns the class of a code, which is comparable, and the library's text for the code.
func sysError(code int) (class int, text string) {
	var cl, n C.int
	buf := make([]C.char, C.MPI_MAX_ERROR_STRING)
	if C.MPI_Error_class(C.int(code), &cl) != success {
		return code, ""
	}
	if C.MPI_Error_string(C.int(code), &buf[0], &n) != success {
		return int(cl), ""
	}
	return int(cl), C.GoStringN(&buf[0], n)
}

// The error classes that MPI 3 names for this package's calls, for result.go.
const (
	errBuffer   = C.MPI_ERR_BUFFER
	errCount    = C.MPI_ERR_COUNT
	errType     = C.MPI_ERR_TYPE
	errTag      = C.MPI_ERR_TAG
	errComm     = C.MPI_ERR_COMM
	errRank     = C.MPI_ERR_RANK
	errRequest  = C.MPI_ERR_REQUEST
	errRoot     = C.MPI_ERR_ROOT
	errOp       = C.MPI_ERR_OP
	errArg      = C.MPI_ERR_ARG
	errTruncate = C.MPI_ERR_TRUNCATE
	errOther    = C.MPI_ERR_OTHER
	errIntern   = C.MPI_ERR_INTERN
	errInStatus = C.MPI_ERR_IN_STATUS
	errPending  = C.MPI_ERR_PENDING
	errNoMem    = C.MPI_ERR_NO_MEM
	errUnknown  = C.MPI_ERR_UNKNOWN
)
