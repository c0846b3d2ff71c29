package cudampi

/*
#cgo linux CFLAGS: -O3 -D_GNU_SOURCE -I/usr/lib/x86_64-linux-gnu/openmpi/include -I/usr/lib/aarch64-linux-gnu/openmpi/include
#cgo linux LDFLAGS: -L/usr/lib/x86_64-linux-gnu/openmpi/lib -L/usr/lib/aarch64-linux-gnu/openmpi/lib -lmpi

#cgo noescape barrier
#cgo nocallback barrier
#cgo noescape allreduce
#cgo nocallback allreduce
#cgo noescape reduce
#cgo nocallback reduce
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
#cgo noescape mail_send
#cgo nocallback mail_send
#cgo noescape mail_recv
#cgo nocallback mail_recv
#cgo noescape mail_sendrecv
#cgo nocallback mail_sendrecv
#cgo noescape run_group
#cgo nocallback run_group

#cgo noescape board_barrier
#cgo nocallback board_barrier
#cgo noescape board_allreduce
#cgo nocallback board_allreduce
#cgo noescape board_reduce_scatter
#cgo nocallback board_reduce_scatter
#cgo noescape meet
#cgo nocallback meet
#cgo noescape await
#cgo nocallback await
#cgo noescape reduce_many
#cgo nocallback reduce_many
#cgo noescape start_chunk
#cgo nocallback start_chunk
#cgo noescape test_chunk
#cgo nocallback test_chunk
#cgo nocallback pump
#cgo nocallback spin

#include "sys.h"
#include "board.h"
#include "mail.h"
#include "device.h"
*/
import "C"

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"lockstep/internal/elem"
)

type handle = C.MPI_Comm

const (
	success   = C.MPI_SUCCESS
	threadMin = C.MPI_THREAD_SERIALIZED
)

func cbool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// address passes memory to the calls that a message of a few bytes is made of. For a pointer cgo looks up in every call
// whether it is Go's and what it points to, at a tenth of the price of the call; this package asks for memory without
// pointers. keep, after the call, is what the collector sees instead.
func address(p unsafe.Pointer) C.uintptr_t { return C.uintptr_t(uintptr(p)) }

func keep(p, q unsafe.Pointer) {
	runtime.KeepAlive(p)
	runtime.KeepAlive(q)
}

func sysBarrier(c handle) int { return int(C.barrier(c)) }

func sysAllReduce(c *Comm, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) int {
	code := int(C.allreduce(c.h, address(dst), address(src), C.int(n), C.int(t), C.int(op), C.int(c.size)))
	keep(dst, src)
	return code
}

// board is memory that the ranks of a Comm share for small collectives.
type board = *C.struct_board

const (
	boardBytes = C.BOARD_BYTES
	newsBytes  = C.NEWS_BYTES
	newsRounds = C.NEWS
)

func sysHasBoard(c *Comm) (yes, sharesCores bool, code int) {
	var out, shared C.int
	code = int(C.has_board(c.h, C.int(c.rank), C.int(c.size), &out, &shared))
	return out != 0, shared != 0, code
}

func sysBoardBytes(size int) int { return int(C.board_bytes(C.int(size))) }

func sysMakeBoard(c *Comm, sharesCores bool, memory unsafe.Pointer) board {
	shared := 0
	if sharesCores {
		shared = 1
	}
	return C.make_board(c.h, C.int(c.rank), C.int(c.size), C.int(shared), memory)
}

func sysSharesCores(b board) bool { return b.spins == 0 }

func sysBoardBarrier(b board) int { return int(C.board_barrier(b)) }

func sysFreeBoard(b board) { C.free(unsafe.Pointer(b)) }

// met is how a collective on a board went: the code, or the rank that brought something else, and its count; -1 for none.
type met struct{ code, rank, got int }

func outcome(o C.struct_outcome, dst, src unsafe.Pointer) met {
	keep(dst, src)
	return met{int(o.code), int(o.index), int(o.got)}
}

func sysBoardAllReduce(b board, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) met {
	return outcome(C.board_allreduce(b, address(dst), address(src), C.int(n), C.int(t), C.int(op)), dst, src)
}

func sysBoardReduceScatter(b board, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) met {
	return outcome(C.board_reduce_scatter(b, address(dst), address(src), C.int(n), C.int(t), C.int(op)), dst, src)
}

// What only moves bytes is done here, and C is called where a rank is not there soon: a call from Go to C takes as long as
// the exchange of a few bytes.

func sysBoardAllGather(c *Comm, dst, src unsafe.Pointer, n int, t elem.Type) met {
	bytes := n * t.Size()
	return exchange(c, C.ALLGATHER, dst, bytesAt(src, bytes), src, 0, n, t)
}

func sysBoardAllToAll(c *Comm, dst, src unsafe.Pointer, n int, t elem.Type) met {
	bytes := n * t.Size()
	return exchange(c, C.ALLTOALL, dst, bytesAt(src, c.size*bytes), unsafe.Add(src, c.rank*bytes), c.rank*bytes, n, t)
}

// exchange shows what this rank brings, and sets each part of dst, of n elements, to those that lie skip bytes into what
// the rank has brought; this rank's own part to mine, which may be where it belongs already.
func exchange(c *Comm, meeting int, dst unsafe.Pointer, brings []byte, mine unsafe.Pointer, skip, n int, t elem.Type) met {
	b, bytes := c.board, n*t.Size()
	b.rounds[meeting]++
	round := b.rounds[meeting]
	brought := func(rank int) *C.struct_part { return &b.desks[rank].parts[meeting][round&1] }
	part := brought(c.rank)
	copy(bytesAt(unsafe.Pointer(&part.data), len(brings)), brings)
	part.n, part.t, part.op = C.int32_t(n), C.uint8_t(t), 0
	atomic.StoreUint64((*uint64)(&part.round), uint64(round))
	for r := range c.size {
		p := brought(r)
		if !appears(&p.round, round, b) || p.n != part.n || p.t != part.t || p.op != 0 {
			if o := C.meet(b, C.int(meeting), C.int(n), C.int(t), 0); o.code != success || o.index >= 0 {
				return outcome(o, nil, nil)
			}
		}
	}
	for r := range c.size {
		from := unsafe.Add(unsafe.Pointer(&brought(r).data), skip)
		if r == c.rank {
			from = mine
		}
		copy(bytesAt(unsafe.Add(dst, r*bytes), bytes), bytesAt(from, bytes))
	}
	return met{success, -1, 0}
}

func bytesAt(p unsafe.Pointer, n int) []byte { return unsafe.Slice((*byte)(p), n) }

// sysBoardBroadcast is a broadcast of at most newsBytes. The root goes on at once, unless it is newsRounds ahead. Where it
// brought another count or type than a rank expects, the outcome names the root, on that rank.
func sysBoardBroadcast(c *Comm, buf unsafe.Pointer, n int, t elem.Type, root int) met {
	b, how := c.board, met{success, -1, 0}
	b.news++
	round := b.news
	news := &b.desks[root].news[round%C.NEWS]
	own, data := bytesAt(buf, n*t.Size()), bytesAt(unsafe.Pointer(&news.data), n*t.Size())
	if root == c.rank {
		if round > b.heard+C.NEWS {
			b.heard = round
			for _, d := range b.desks[:c.size] {
				if how.code = await(&d.heard, round-C.NEWS, b); how.code != success {
					return how
				}
				b.heard = min(b.heard, C.uint64_t(atomic.LoadUint64((*uint64)(&d.heard))))
			}
		}
		copy(data, own)
		news.n, news.t = C.int32_t(n), C.uint8_t(t)
		atomic.StoreUint64((*uint64)(&news.round), uint64(round))
	} else {
		if how.code = await(&news.round, round, b); how.code != success {
			return how
		}
		if int(news.n) == n && elem.Type(news.t) == t {
			copy(own, data)
		} else {
			how.rank, how.got = root, int(news.n)
		}
	}
	atomic.StoreUint64((*uint64)(&b.desks[c.rank].heard), uint64(round))
	return how
}

// await returns when a rank has come to the round.
func await(its *C.uint64_t, round C.uint64_t, b board) (code int) {
	if appears(its, round, b) {
		return success
	}
	return int(C.await(b, unsafe.Pointer(its), round))
}

// appears says whether a rank comes to the round soon: sooner than a wait gives the core away.
func appears(its *C.uint64_t, round C.uint64_t, b board) bool {
	for looks := C.uint64_t(0); atomic.LoadUint64((*uint64)(its)) < uint64(round); looks++ {
		if looks >= 2*b.spins {
			return false
		}
	}
	return true
}

func sysReduce(c *Comm, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op, root int) int {
	return int(C.reduce(c.h, dst, src, C.int(n), C.int(t), C.int(op), C.int(root), C.int(c.rank), C.int(c.size)))
}

func sysBroadcast(c *Comm, buf unsafe.Pointer, n int, t elem.Type, root int) int {
	return int(C.bcast(c.h, buf, C.int(n), C.int(t), C.int(root)))
}

func sysAllGather(c *Comm, dst, src unsafe.Pointer, n int, t elem.Type, inPlace bool) int {
	return int(C.allgather(c.h, dst, src, C.int(n), C.int(t), cbool(inPlace)))
}

func sysReduceScatter(c *Comm, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op, inPlace bool) int {
	return int(C.reduce_scatter(c.h, dst, src, C.int(n), C.int(t), C.int(op), C.int(c.size), cbool(inPlace)))
}

func sysAllToAll(c *Comm, dst, src unsafe.Pointer, n int, t elem.Type) int {
	return int(C.alltoall(c.h, dst, src, C.int(n), C.int(t)))
}

func sysGather(c *Comm, dst, src unsafe.Pointer, n int, t elem.Type, root int, inPlace bool) int {
	return int(C.gather(c.h, dst, src, C.int(n), C.int(t), C.int(root), cbool(inPlace)))
}

func sysScatter(c *Comm, dst, src unsafe.Pointer, n int, t elem.Type, root int, inPlace bool) int {
	return int(C.scatter(c.h, dst, src, C.int(n), C.int(t), C.int(root), cbool(inPlace)))
}

// ints holds the counts of a V form, and after them the displacements, as C has them.
type ints []C.int

func (v ints) counts() *C.int { return &v[0] }
func (v ints) displs() *C.int { return &v[len(v)/2] }

func (v ints) set(counts []int) {
	at := C.int(0)
	for r, n := range counts {
		v[r], v[len(counts)+r] = C.int(n), at
		at += C.int(n)
	}
}

func sysAllGatherV(c *Comm, dst, src unsafe.Pointer, t elem.Type, inPlace bool) int {
	return int(C.allgatherv(c.h, dst, src, c.v.counts(), c.v.displs(), C.int(t), C.int(c.rank), cbool(inPlace)))
}

func sysReduceScatterV(c *Comm, dst, src unsafe.Pointer, total int, t elem.Type, op elem.Op, inPlace bool) int {
	return int(C.reduce_scatterv(c.h, dst, src, c.v.counts(), C.int(total), C.int(t), C.int(op), C.int(c.rank), C.int(c.size), cbool(inPlace)))
}

func sysGatherV(c *Comm, dst, src unsafe.Pointer, t elem.Type, root int, inPlace bool) int {
	return int(C.gatherv(c.h, dst, src, c.v.counts(), c.v.displs(), C.int(t), C.int(root), C.int(c.rank), cbool(inPlace)))
}

func sysScatterV(c *Comm, dst, src unsafe.Pointer, t elem.Type, root int, inPlace bool) int {
	return int(C.scatterv(c.h, dst, src, c.v.counts(), c.v.displs(), C.int(t), C.int(root), C.int(c.rank), cbool(inPlace)))
}

func sysSend(c *Comm, src unsafe.Pointer, n int, t elem.Type, to, tag int) int {
	code := int(C.send_message(c.h, address(src), C.int64_t(n), C.int(t), C.int(to), C.int(tag), C.int64_t(maxMessage)))
	keep(src, nil)
	return code
}

// The receiving calls return the code and the bytes of the message, -1 where the library does not say.
func sysRecv(c *Comm, dst unsafe.Pointer, n int, t elem.Type, from, tag int) (code, got int) {
	o := C.recv_message(c.h, address(dst), C.int64_t(n), C.int(t), C.int(from), C.int(tag), C.int64_t(maxMessage))
	keep(dst, nil)
	return int(o.code), int(o.got)
}

func sysSendRecv(c *Comm, dst unsafe.Pointer, rn, from int, src unsafe.Pointer, sn, to int, t elem.Type) (code, got int) {
	o := C.sendrecv(c.h, dst, C.int64_t(rn), C.int(from), src, C.int64_t(sn), C.int(to), C.int(t), tagUser, C.int64_t(maxMessage))
	return int(o.code), int(o.got)
}

func sysMailSend(c *Comm, src unsafe.Pointer, n int, t elem.Type, to int) int {
	code := int(C.mail_send(c.board, c.h, address(src), C.int64_t(n), C.int(t), C.int(to), tagUser, C.int64_t(maxMessage)))
	keep(src, nil)
	return code
}

func sysMailRecv(c *Comm, dst unsafe.Pointer, n int, t elem.Type, from int) (code, got int) {
	o := C.mail_recv(c.board, c.h, address(dst), C.int64_t(n), C.int(t), C.int(from), tagUser, C.int64_t(maxMessage))
	keep(dst, nil)
	return int(o.code), int(o.got)
}

func sysMailSendRecv(c *Comm, dst unsafe.Pointer, rn, from int, src unsafe.Pointer, sn, to int, t elem.Type) (code, got int) {
	o := C.mail_sendrecv(c.board, c.h, address(dst), C.int64_t(rn), C.int(from), address(src), C.int64_t(sn), C.int(to), C.int(t), tagUser, C.int64_t(maxMessage))
	keep(dst, src)
	return int(o.code), int(o.got)
}

// mailRecord is where a message lies in a ring, and how many units it takes.
func mailRecord(x *C.struct_box, bytes int) (r *C.struct_record, need C.uint64_t) {
	at := unsafe.Add(unsafe.Pointer(x.ring), (x.next&(x.size-1))*C.UNIT)
	return (*C.struct_record)(at), (C.HEAD + C.uint64_t(bytes) + C.UNIT - 1) / C.UNIT
}

// sysMailPut is put of mail.h where nothing is to be waited for or to be skipped: without a call from Go to C, which takes
// as long as the message. It says whether it did.
func sysMailPut(c *Comm, src unsafe.Pointer, bytes, to int) bool {
	x := &c.board.out[to]
	r, need := mailRecord(x, bytes)
	if bytes > int(c.board.most) || x.next&(x.size-1)+need > x.size || x.next+need+1 > x.room {
		return false
	}
	copy(bytesAt(unsafe.Add(unsafe.Pointer(r), C.HEAD), bytes), bytesAt(src, bytes))
	r.bytes = C.int64_t(bytes)
	x.next += need
	next, _ := mailRecord(x, 0)
	next.there = 0
	atomic.StoreUint64((*uint64)(&r.there), 1)
	return true
}

// sysMailTake is take_record where the message comes soon, in the ring, and has the length expected. It says whether it did.
func sysMailTake(c *Comm, dst unsafe.Pointer, bytes, from int) bool {
	x := &c.board.in[from]
	r, need := mailRecord(x, bytes)
	if !appears(&r.there, 1, c.board) || int(r.bytes) != bytes || bytes > int(c.board.most) {
		return false
	}
	copy(bytesAt(dst, bytes), bytesAt(unsafe.Add(unsafe.Pointer(r), C.HEAD), bytes))
	x.next += need
	atomic.StoreUint64((*uint64)(x.taken), uint64(x.next))
	return true
}

func sysSwap(c *Comm, buf unsafe.Pointer, n int, t elem.Type, peer, tag int) int {
	return int(C.swap(c.h, buf, C.int(n), C.int(t), C.int(peer), C.int(tag)))
}

// group is what run_group works on; its slices grow to the largest group and stay.
type group struct {
	msgs []C.struct_p2p
	reqs []C.MPI_Request
}

func (g *group) add(c *Comm, buf unsafe.Pointer, n int, t elem.Type, peer, tag int, recv bool) {
	g.msgs = append(g.msgs, C.struct_p2p{buf: C.uintptr_t(uintptr(buf)), n: C.int64_t(n), comm: c.h, board: c.mail(peer, tag),
		t: C.int(t), peer: C.int(peer), tag: C.int(tag), recv: cbool(recv)})
	if len(g.msgs) > len(g.reqs) {
		g.reqs = append(g.reqs, *new(C.MPI_Request))
	}
}

// run completes the group and empties it. index is -1, or the message that code and got are about.
func (g *group) run() (index, code, got int) {
	o := C.run_group(&g.msgs[0], C.int(len(g.msgs)), &g.reqs[0], C.int64_t(maxMessage))
	return int(o.index), int(o.code), int(o.got)
}

func (g *group) message(i int) (n int, t elem.Type, peer int, recv bool) {
	m := g.msgs[i]
	return int(m.n), elem.Type(m.t), int(m.peer), m.recv != 0
}

type request = C.MPI_Request

func sysStartChunk(c *Comm, buf unsafe.Pointer, bytes, peer int, recv bool, req *request) int {
	return int(C.start_chunk(c.h, address(buf), C.int(bytes), C.int(peer), tagDevice, cbool(recv), req))
}

// sysTestChunk returns the bytes received once the message is over.
func sysTestChunk(req *request) (done bool, got, code int) {
	o := C.test_chunk(req)
	return o.index != 0, int(o.got), int(o.code)
}

// sysReduceMany is for memory of C.
func sysReduceMany(dst unsafe.Pointer, src []uintptr, n int, t elem.Type, op elem.Op) {
	C.reduce_many(address(dst), (*C.uintptr_t)(unsafe.Pointer(unsafe.SliceData(src))), C.int(len(src)), C.int64_t(n), C.int(t), C.int(op))
}

func sysPump(c *Comm) int { return int(C.pump(c.h)) }
func sysSpin(n int)       { C.spin(C.int(n)) }
func sysQueryCUDA() int   { return int(C.query_cuda_support()) }
func sysQueryGPU() int    { return int(C.query_gpu_support()) }
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

// The error classes that MPI 3 names for what this package calls, for result.go.
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
