package nccl

/*
#cgo linux CFLAGS: -O2

#cgo noescape run_calls
#cgo nocallback run_calls

#include <stdlib.h>
#include "sys.h"
*/
import "C"

import (
	"runtime"
	"sync"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/dl"
	"lockstep/internal/elem"
)

type (
	link   = C.struct_link
	cCall  = C.struct_call
	config = C.struct_config
)

const (
	statusOK         = C.SUCCESS
	statusInProgress = C.IN_PROGRESS
	statusClosed     = C.CLOSED

	kindGroupStart Function = C.GROUP_START
	kindGroupEnd   Function = C.GROUP_END
)

// The tables are in the order of package elem. Source: nccl.h, ncclDataType_t and ncclRedOp_t.
var (
	ncclTypes = [elem.Types]C.int32_t{elem.Int8: 0, elem.Uint8: 1, elem.Int32: 2, elem.Uint32: 3,
		elem.Int64: 4, elem.Uint64: 5,
		// complex numbers are pairs
		elem.Float16: 6, elem.BFloat16: 9, elem.Float32: 7, elem.Float64: 8, elem.Complex64: 7, elem.Complex128: 8}
	ncclOps = [elem.Ops]C.int32_t{elem.Sum: 0, elem.Prod: 1, elem.Max: 2, elem.Min: 3, elem.Avg: 4}
)

func slot[F any](f *F) *unsafe.Pointer { return (*unsafe.Pointer)(unsafe.Pointer(f)) }

// sysOpen looks for the library and asks for its version.
func sysOpen(files ...string) (path string, version, status int, err error) {
	path, err = dl.Open([]dl.Sym{{Name: "ncclGetVersion", Slot: slot(&C.nccl.GetVersion)}}, files...)
	if err != nil {
		return
	}
	var v C.int
	status = int(C.get_version(&v))
	return path, int(v), status, nil
}

// sysBind fills the table from the library that sysOpen found.
func sysBind(path string) error {
	n := &C.nccl
	_, err := dl.Open([]dl.Sym{
		{Name: "ncclGetVersion", Slot: slot(&n.GetVersion)},
		{Name: "ncclGetUniqueId", Slot: slot(&n.GetUniqueId)},
		{Name: "ncclGetLastError", Slot: slot(&n.GetLastError)},
		{Name: "ncclCommInitRankConfig", Slot: slot(&n.CommInitRankConfig)},
		{Name: "ncclCommSplit", Slot: slot(&n.CommSplit)},
		{Name: "ncclCommFinalize", Slot: slot(&n.CommFinalize)},
		{Name: "ncclCommDestroy", Slot: slot(&n.CommDestroy)},
		{Name: "ncclCommAbort", Slot: slot(&n.CommAbort)},
		{Name: "ncclCommGetAsyncError", Slot: slot(&n.CommGetAsyncError)},
		{Name: "ncclCommCount", Slot: slot(&n.CommCount)},
		{Name: "ncclCommUserRank", Slot: slot(&n.CommUserRank)},
		{Name: "ncclMemAlloc", Slot: slot(&n.MemAlloc), Optional: true},                         // 2.19
		{Name: "ncclMemFree", Slot: slot(&n.MemFree), Optional: true},                           // 2.19
		{Name: "ncclCommRegister", Slot: slot(&n.CommRegister), Optional: true},                 // 2.19
		{Name: "ncclCommDeregister", Slot: slot(&n.CommDeregister), Optional: true},             // 2.19
		{Name: "ncclCommWindowRegister", Slot: slot(&n.CommWindowRegister), Optional: true},     // 2.27
		{Name: "ncclCommWindowDeregister", Slot: slot(&n.CommWindowDeregister), Optional: true}, // 2.27
		{Name: "ncclGroupStart", Slot: slot(&n.GroupStart)},
		{Name: "ncclGroupEnd", Slot: slot(&n.GroupEnd)},
		{Name: "ncclAllReduce", Slot: slot(&n.AllReduce)},
		{Name: "ncclReduce", Slot: slot(&n.Reduce)},
		{Name: "ncclBroadcast", Slot: slot(&n.Broadcast)},
		{Name: "ncclAllGather", Slot: slot(&n.AllGather)},
		{Name: "ncclReduceScatter", Slot: slot(&n.ReduceScatter)},
		{Name: "ncclAlltoAll", Slot: slot(&n.AlltoAll), Optional: true}, // 2.28
		{Name: "ncclGather", Slot: slot(&n.Gather), Optional: true},     // 2.28
		{Name: "ncclScatter", Slot: slot(&n.Scatter), Optional: true},   // 2.28
		{Name: "ncclSend", Slot: slot(&n.Send)},
		{Name: "ncclRecv", Slot: slot(&n.Recv)},
	}, path)
	return err
}

// Abilities of the library at hand that not every version has.
func hasMemory() bool   { return C.nccl.MemAlloc != nil && C.nccl.MemFree != nil }
func hasRegister() bool { return C.nccl.CommRegister != nil && C.nccl.CommDeregister != nil }
func hasWindow() bool   { return C.nccl.CommWindowRegister != nil && C.nccl.CommWindowDeregister != nil }

func address(p unsafe.Pointer) C.uintptr_t { return C.uintptr_t(ccall.Address(p)) }

func makeLink(d *cuda.Device) link {
	b := d.Bind()
	return link{enter: address(b.Enter), context: address(b.Context)}
}

func cbool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// names holds a copy in C of every name ever given to a communicator: NCCL keeps the pointer of
// some of them, and hands it on to the communicators split off.
var names struct {
	sync.Mutex
	m map[string]*C.char
}

func cName(s string) *C.char {
	names.Lock()
	defer names.Unlock()
	if names.m == nil {
		names.m = map[string]*C.char{}
	}
	p, ok := names.m[s]
	if !ok {
		p = C.CString(s)
		names.m[s] = p
	}
	return p
}

// sysConfig is c for the library of the given version. NCCL decides zero fields.
func sysConfig(c *Config, version int) config {
	cfg := C.make_config(C.int(version))
	cfg.blocking = cbool(!c.NonBlocking)
	set := func(field *C.int, v int) {
		if v != 0 {
			*field = C.int(v)
		}
	}
	set(&cfg.minCTAs, c.MinCTAs)
	set(&cfg.maxCTAs, c.MaxCTAs)
	if c.MinCTAs > 0 && c.MaxCTAs == 0 {
		cfg.maxCTAs = C.int(max(c.MinCTAs, maxCTAs)) // an undefined maximum would count as one below the minimum
	}
	set(&cfg.cgaClusterSize, max(c.CGAClusterSize, 0))
	if c.CGAClusterSize < 0 {
		cfg.cgaClusterSize = 0
	}
	set(&cfg.trafficClass, c.TrafficClass)
	set(&cfg.nvlsCTAs, c.NVLSCTAs)
	set(&cfg.CTAPolicy, c.CTAPolicy)
	if c.UnmixedGraphs {
		cfg.graphUsageMode = 1 // read from 2.29 on
	}
	if c.SplitShare {
		cfg.splitShare = 1
	}
	if c.NetName != "" {
		cfg.netName = cName(c.NetName)
	}
	if c.CommName != "" {
		cfg.commName = cName(c.CommName)
	}
	return cfg
}

func sysID(id *ID) int { return int(C.get_id((*C.struct_id)(unsafe.Pointer(id)))) }

// sysCreate runs a call that makes a communicator. NCCL writes it to a place in C's memory. The
// place stays if an abort ended the call, since the thread of a non-blocking communicator may still
// write there.
func sysCreate(call func(out *unsafe.Pointer) C.int) (comm uintptr, status int) {
	out := (*unsafe.Pointer)(C.calloc(1, C.size_t(unsafe.Sizeof(uintptr(0)))))
	status = int(call(out))
	comm = uintptr(*out)
	if status != statusClosed {
		C.free(unsafe.Pointer(out))
	}
	return comm, status
}

func sysInit(l *link, id ID, cfg config) (comm uintptr, status int) {
	return sysCreate(func(out *unsafe.Pointer) C.int {
		return C.init_rank(l, out, (*C.struct_id)(unsafe.Pointer(&id)), &cfg)
	})
}

func sysInitPoll(l *link) int { return int(C.init_poll(l)) }

func sysSplit(l *link, color, key int, cfg config) (comm uintptr, status int) {
	return sysCreate(func(out *unsafe.Pointer) C.int { return C.split(l, C.int(color), C.int(key), out, &cfg) })
}

func sysSetComm(l *link, comm uintptr, nonBlocking bool) {
	l.comm, l.nonblocking = C.uintptr_t(comm), C.int32_t(cbool(nonBlocking))
}
func sysSetRank(l *link, rank, size int) { l.rank, l.size = C.int32_t(rank), C.int32_t(size) }
func sysUserRank(l *link) (rank, status int) {
	status = int(C.user_rank(l))
	return int(l.rank), status
}
func sysCount(l *link) (size, status int) {
	status = int(C.count(l))
	return int(l.size), status
}
func sysFinalize(l *link) int { return int(C.finalize(l)) }
func sysDestroy(l *link) int  { return int(C.destroy(l)) }
func sysAbort(l *link) int    { return int(C.comm_abort(l)) }
func sysAsyncError(l *link) (result, status int) {
	var e C.int
	status = int(C.async_error(l, &e))
	return int(e), status
}
func sysLastError(l *link) string {
	if C.nccl.GetLastError == nil {
		return ""
	}
	return C.GoString(C.last_error(l))
}

func sysMemAlloc(l *link, bytes int) (p unsafe.Pointer, status int) {
	status = int(C.mem_alloc(l, &p, C.size_t(bytes)))
	return
}
func sysMemFree(l *link, p unsafe.Pointer) int { return int(C.mem_free(l, p)) }

func sysRegister(l *link, p unsafe.Pointer, bytes int) (handle uintptr, status int) {
	return sysCreate(func(out *unsafe.Pointer) C.int { return C.reg(l, p, C.size_t(bytes), out) })
}
func sysDeregister(l *link, h uintptr) int { return int(C.dereg(l, C.uintptr_t(h))) }
func sysWindow(l *link, p unsafe.Pointer, bytes int) (handle uintptr, status int) {
	return sysCreate(func(out *unsafe.Pointer) C.int { return C.window(l, p, C.size_t(bytes), out) })
}
func sysCloseWindow(l *link, h uintptr) int { return int(C.close_window(l, C.uintptr_t(h))) }

func setCall(c *cCall, x *GroupCall) {
	n := x.N * (x.Type.Size() / x.Type.Real().Size())
	*c = cCall{dst: address(x.Dst), src: address(x.Src), n: C.uint64_t(n),
		kind: C.int32_t(x.Kind), _type: ncclTypes[x.Type], op: ncclOps[x.Op], peer: C.int32_t(x.Peer)}
}

// sysRun issues calls on s. After a failure it says where it was.
func sysRun(c *Comm, s *cuda.Stream, calls []cCall) (status int, kind Function, index int) {
	o := C.run_calls(&c.link, address(s.Handle()), &calls[0], C.int(len(calls)))
	runtime.KeepAlive(s)
	return int(o.status), Function(o.kind), int(o.index)
}
