package cuda

/*
#cgo linux CFLAGS: -O2

#cgo noescape launch
#cgo nocallback launch
#cgo noescape encode_tensor_map
#cgo nocallback encode_tensor_map
#cgo nocallback copy
#cgo nocallback fill
#cgo nocallback stream_query
#cgo nocallback stream_wait
#cgo nocallback event_record
#cgo nocallback event_query
#cgo nocallback event_spin
#cgo noescape module_load
#cgo nocallback module_load

#include "sys.h"
#include "graphs.h"
*/
import "C"

import (
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/dl"
)

const (
	fromGetCurrent = C.FROM_GET_CURRENT
	fromSetCurrent = C.FROM_SET_CURRENT
	maxArgs        = C.MAX_ARGS
)

// addr passes a handle or an address to C. A copy may read or write memory of Go.
func addr(p unsafe.Pointer) C.uintptr_t { return C.uintptr_t(ccall.Address(p)) }

// sysTable returns the table of entry points. Those that say how old the driver is come first.
func sysTable() (first, all []dl.Sym) {
	for i := 0; ; i++ {
		r := C.row_at(C.int(i))
		if r.symbol == nil {
			return all[:2], all
		}
		all = append(all, dl.Sym{Name: C.GoString(r.symbol), Slot: (*unsafe.Pointer)(unsafe.Pointer(r.slot)),
			Optional: r.optional != 0})
	}
}

func sysInit() (status int) { return int(C.init()) }
func sysDriverVersion() (v, status int) {
	n := C.driver_version()
	return int(n.n), int(n.status)
}

// sysErrorText returns the driver's name and text for a status, empty if it has none.
func sysErrorText(r Result) (name, text string) {
	if p := C.error_name(C.int(r)); p != nil {
		name = C.GoString(p)
	}
	if p := C.error_string(C.int(r)); p != nil {
		text = C.GoString(p)
	}
	return name, text
}

func sysDeviceCount() (n, status int)          { return number(C.device_count()) }
func sysDeviceGet(index int) (dev, status int) { return number(C.device_get(C.int(index))) }
func sysDeviceMemory(dev int) (n, status int)  { return number(C.device_memory(C.int(dev))) }
func sysDeviceAttribute(dev, attribute int) (v, status int) {
	return number(C.device_attribute(C.int(dev), C.int(attribute)))
}

func sysDeviceName(dev int) (name string, status int) {
	var buf [256]C.char
	status = int(C.device_name(C.int(dev), &buf[0], C.int(len(buf))))
	return C.GoString(&buf[0]), status
}

func sysDevicePCI(dev int) (id string, status int) {
	var buf [64]C.char
	status = int(C.device_pci(C.int(dev), &buf[0], C.int(len(buf))))
	return C.GoString(&buf[0]), status
}

// sysDeviceUUID returns the UUIDs of the device and of the whole GPU. They differ for a part of a
// GPU.
func sysDeviceUUID(dev int) (id, physical [16]byte, status int) {
	var u, p C.uuid
	if status = int(C.device_uuid(C.int(dev), &u)); status == 0 {
		status = int(C.physical_uuid(C.int(dev), &p))
	}
	for i := range id {
		id[i], physical[i] = byte(u.bytes[i]), byte(p.bytes[i])
	}
	return id, physical, status
}

func number(n C.struct_number) (v, status int)        { return int(n.n), int(n.status) }
func pair(p C.struct_pair) (a, b, status int)         { return int(p.a), int(p.b), int(p.status) }
func made(m C.struct_made) (p unsafe.Pointer, st int) { return m.p, int(m.status) }
func sysRetain(dev int) (ctx unsafe.Pointer, st int)  { return made(C.context_retain(C.int(dev))) }
func sysRelease(ctx unsafe.Pointer, dev int) (st int) {
	return int(C.context_release(addr(ctx), C.int(dev)))
}
func sysContextSynchronize(ctx unsafe.Pointer) int    { return int(C.context_synchronize(addr(ctx))) }
func sysPriorities(ctx unsafe.Pointer) (l, g, st int) { return pair(C.stream_priorities(addr(ctx))) }
func sysMemInfo(ctx unsafe.Pointer) (free, t, st int) { return pair(C.mem_info(addr(ctx))) }
func sysBindAddress() unsafe.Pointer                  { return C.bind_address() }
func sysFree(d *Device, p unsafe.Pointer) (st int)    { return int(C.mem_free(addr(d.ctx), addr(p))) }
func sysFreeHost(d *Device, p unsafe.Pointer) (st int) {
	return int(C.mem_free_host(addr(d.ctx), addr(p)))
}

func sysMalloc(d *Device, bytes int) (p unsafe.Pointer, status int) {
	return made(C.mem_alloc(addr(d.ctx), C.size_t(bytes)))
}

func sysMallocHost(d *Device, bytes int) (p unsafe.Pointer, status int) {
	return made(C.mem_host_alloc(addr(d.ctx), C.size_t(bytes)))
}

func sysMallocManaged(d *Device, bytes int) (p unsafe.Pointer, status int) {
	return made(C.mem_alloc_managed(addr(d.ctx), C.size_t(bytes)))
}

func sysHasPrefetch() bool { return C.has_prefetch() != 0 }
func sysPrefetch(s *Stream, p unsafe.Pointer, bytes, kind, id int) int {
	return int(C.prefetch(addr(s.d.ctx), addr(s.h), addr(p), C.size_t(bytes), C.int(kind), C.int(id)))
}
func sysHasAdvise() bool { return C.has_advise() != 0 }
func sysAdvise(d *Device, p unsafe.Pointer, bytes int, a Advice, kind, id int) int {
	return int(C.advise(addr(d.ctx), addr(p), C.size_t(bytes), C.int(a), C.int(kind), C.int(id)))
}

func sysHostRegister(d *Device, p unsafe.Pointer, bytes int) int {
	return int(C.host_register(addr(d.ctx), addr(p), C.size_t(bytes)))
}
func sysHostUnregister(d *Device, p unsafe.Pointer) int {
	return int(C.host_unregister(addr(d.ctx), addr(p)))
}

func sysAddressRange(d *Device, p unsafe.Pointer) (base, bytes, st int) {
	return pair(C.address_range(addr(d.ctx), addr(p)))
}

func sysIPCGet(d *Device, p unsafe.Pointer) (handle [64]byte, status int) {
	var h C.ipc_handle
	status = int(C.ipc_get(addr(d.ctx), addr(p), &h))
	return *(*[64]byte)(unsafe.Pointer(&h)), status
}

func sysIPCOpen(d *Device, handle *[64]byte) (p unsafe.Pointer, status int) {
	h := *(*C.ipc_handle)(unsafe.Pointer(handle))
	return made(C.ipc_open(addr(d.ctx), &h))
}
func sysIPCClose(d *Device, p unsafe.Pointer) int { return int(C.ipc_close(addr(d.ctx), addr(p))) }
func sysCanAccessPeer(dev, peer int) (can, status int) {
	return number(C.can_access_peer(C.int(dev), C.int(peer)))
}
func sysEnablePeer(d *Device, peer unsafe.Pointer) int {
	return int(C.enable_peer(addr(d.ctx), addr(peer)))
}
func sysNativeAtomics(dev, peer int) (native, status int) {
	return number(C.native_atomics(C.int(dev), C.int(peer)))
}

func sysStreamCreate(d *Device, priority int) (h unsafe.Pointer, status int) {
	return made(C.stream_create(addr(d.ctx), C.int(priority)))
}
func sysStreamDestroy(s *Stream) int     { return int(C.stream_destroy(addr(s.d.ctx), addr(s.h))) }
func sysStreamQuery(s *Stream) int       { return int(C.stream_query(addr(s.d.ctx), addr(s.h))) }
func sysStreamSynchronize(s *Stream) int { return int(C.stream_synchronize(addr(s.d.ctx), addr(s.h))) }
func sysStreamWait(s *Stream, e *Event) int {
	return int(C.stream_wait(addr(s.d.ctx), addr(s.h), addr(e.h)))
}

func sysWaitValue(s *Stream, p unsafe.Pointer, v uint32) int {
	return int(C.wait_value(addr(s.d.ctx), addr(s.h), addr(p), C.uint32_t(v)))
}
func sysWriteValue(s *Stream, p unsafe.Pointer, v uint32) int {
	return int(C.write_value(addr(s.d.ctx), addr(s.h), addr(p), C.uint32_t(v)))
}

func sysCopy(s *Stream, dst, src unsafe.Pointer, bytes int) int {
	return int(C.copy(addr(s.d.ctx), addr(s.h), addr(dst), addr(src), C.size_t(bytes)))
}

func sysFill(s *Stream, dst unsafe.Pointer, size int, v uint32, n int) int {
	return int(C.fill(addr(s.d.ctx), addr(s.h), addr(dst), C.int(size), C.uint32_t(v), C.size_t(n)))
}

func sysLaunch(s *Stream, f *Function, g *Shape, early bool, words []uint64, at []uint32, n int) int {
	c := C.struct_shape{shared: C.uint(g.Shared)}
	for i := range 3 {
		c.blocks[i], c.threads[i], c.cluster[i] = C.uint(g.Blocks[i]), C.uint(g.Threads[i]), C.uint(g.Cluster[i])
	}
	if early {
		c.early = 1
	}
	return int(C.launch(addr(s.d.ctx), addr(s.h), addr(f.h), c, (*C.uint64_t)(unsafe.SliceData(words)),
		(*C.uint32_t)(unsafe.SliceData(at)), C.int(n)))
}

func sysHasLaunchEx() bool { return C.has_launch_ex() != 0 }

func sysHasTensorMap() bool { return C.has_tensor_map() != 0 }

func sysTensorMap(d *Device, t *Tensor, swizzle int, out *TensorMap) int {
	c := C.struct_tensor{_type: C.int(t.Type), rank: C.int(t.Rank), swizzle: C.int(swizzle),
		at: C.device_ptr(ccall.Address(t.At))}
	for i, n := range t.Sizes {
		c.sizes[i], c.box[i] = C.uint64_t(n), C.uint32_t(t.Box[i])
	}
	for i, n := range t.Strides {
		c.strides[i] = C.uint64_t(n)
	}
	return int(C.encode_tensor_map(addr(d.ctx), c, (*C.uint64_t)(&out[0])))
}

func sysHostFunc(s *Stream, id uintptr) int {
	return int(C.launch_host_func(addr(s.d.ctx), addr(s.h), C.uintptr_t(id)))
}

// The driver calls this on a thread of its own.
//
//export lockstep_cuda_host_func
func lockstep_cuda_host_func(id C.uintptr_t) { runCallback(uintptr(id)) }

func sysBeginCapture(s *Stream, mode int) int {
	return int(C.begin_capture(addr(s.d.ctx), addr(s.h), C.int(mode)))
}

func sysEndCapture(s *Stream) (graph unsafe.Pointer, status int) {
	return made(C.end_capture(addr(s.d.ctx), addr(s.h)))
}
func sysIsCapturing(s *Stream) (state, st int) {
	return number(C.is_capturing(addr(s.d.ctx), addr(s.h)))
}

func sysCaptureEnds(s *Stream, ends []Node) (n, status int) {
	return number(C.capture_ends(addr(s.d.ctx), addr(s.h), nodes(ends), C.size_t(len(ends))))
}

func nodes(list []Node) *C.uintptr_t { return (*C.uintptr_t)(unsafe.Pointer(unsafe.SliceData(list))) }

func sysEventCreate(d *Device, timing bool) (h unsafe.Pointer, status int) {
	t := C.int(0)
	if timing {
		t = 1
	}
	return made(C.event_create(addr(d.ctx), t))
}
func sysEventDestroy(e *Event) int     { return int(C.event_destroy(addr(e.d.ctx), addr(e.h))) }
func sysEventQuery(e *Event) int       { return int(C.event_query(addr(e.d.ctx), addr(e.h))) }
func sysEventSynchronize(e *Event) int { return int(C.event_synchronize(addr(e.d.ctx), addr(e.h))) }
func sysEventSpin(e *Event, ns int64) int {
	return int(C.event_spin(addr(e.d.ctx), addr(e.h), C.int64_t(ns)))
}
func sysEventRecord(e *Event, s *Stream) int {
	return int(C.event_record(addr(e.d.ctx), addr(e.h), addr(s.h)))
}

func sysEventElapsed(from, to *Event) (milliseconds float32, status int) {
	e := C.event_elapsed(addr(to.d.ctx), addr(from.h), addr(to.h))
	return float32(e.ms), int(e.status)
}

func sysGraphInstantiate(g *Graph) (exec unsafe.Pointer, status int) {
	return made(C.graph_instantiate(addr(g.d.ctx), addr(g.h)))
}
func sysGraphNodes(g *Graph) (n, status int) { return number(C.graph_nodes(addr(g.d.ctx), addr(g.h))) }
func sysGraphFollowers(g *Graph, of Node, list []Node) (n, status int) {
	return number(C.graph_followers(addr(g.d.ctx), addr(g.h), C.uintptr_t(of), nodes(list), C.size_t(len(list))))
}
func sysGraphAddRecord(g *Graph, after, before []Node, e *Event) int {
	return int(C.graph_add_record(addr(g.d.ctx), addr(g.h), nodes(after), C.size_t(len(after)),
		nodes(before), C.size_t(len(before)), addr(e.h)))
}
func sysGraphDestroy(g *Graph) int { return int(C.graph_destroy(addr(g.d.ctx), addr(g.h))) }
func sysGraphLaunch(x *Exec, s *Stream) int {
	return int(C.graph_launch(addr(s.d.ctx), addr(x.h), addr(s.h)))
}
func sysExecDestroy(x *Exec) int { return int(C.exec_destroy(addr(x.d.ctx), addr(x.h))) }

// sysModuleLoad reads image, which must end with a zero byte. It returns the message of the
// driver's compiler.
func sysModuleLoad(d *Device, image []byte) (h unsafe.Pointer, log string, status int) {
	buf := make([]C.char, 8<<10)
	h, status = made(C.module_load(addr(d.ctx), unsafe.Pointer(unsafe.SliceData(image)), &buf[0], C.size_t(len(buf)-1)))
	return h, C.GoString(&buf[0]), status
}
func sysModuleUnload(m *Module) int { return int(C.module_unload(addr(m.d.ctx), addr(m.h))) }

func sysModuleFunction(m *Module, name string) (h unsafe.Pointer, status int) {
	buf := append([]byte(name), 0)
	return made(C.module_function(addr(m.d.ctx), addr(m.h), (*C.char)(unsafe.Pointer(&buf[0]))))
}

func sysHasFuncLoad() bool        { return C.has_func_load() != 0 }
func sysFuncLoad(f *Function) int { return int(C.func_load(addr(f.d.ctx), addr(f.h))) }
func sysFuncAttribute(f *Function, attribute int) (v, status int) {
	return number(C.func_attribute(addr(f.d.ctx), addr(f.h), C.int(attribute)))
}

func sysHasParamInfo() bool { return C.has_param_info() != 0 }
func sysFuncParam(f *Function, i int) (offset, size, status int) {
	return pair(C.func_param(addr(f.d.ctx), addr(f.h), C.size_t(i)))
}

func sysRaiseStack(d *Device, bytes int) (set bool, status int) {
	v, status := number(C.raise_stack(addr(d.ctx), C.size_t(bytes)))
	return v != 0, status
}

func sysFuncSetAttribute(f *Function, attribute, v int) int {
	return int(C.func_set_attribute(addr(f.d.ctx), addr(f.h), C.int(attribute), C.int(v)))
}
