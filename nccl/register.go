package nccl

import (
	"sync"
	"unsafe"

	"lockstep/cuda"
)

// MemAlloc returns bytes of memory on d in the form that NCCL registers best, at least as much as
// asked for. MemFree frees it. It may synchronise the device. Needs NCCL 2.19. Source: nccl.h,
// ncclMemAlloc.
func MemAlloc(d *cuda.Device, bytes int) (unsafe.Pointer, error) {
	const op = "ncclMemAlloc"
	if err := Load(); err != nil {
		return nil, err
	}
	if err := needs(op, 21900, hasMemory()); err != nil {
		return nil, err
	}
	if bytes <= 0 {
		return nil, (&Comm{rank: -1}).refused(op, "%d bytes", bytes)
	}
	l := makeLink(d)
	p, status := sysMemAlloc(&l, bytes)
	if status != statusOK {
		return nil, statusError(&l, -1, op, status, "")
	}
	return p, nil
}

// MemFree frees memory of MemAlloc. It synchronises the device, and must come after every
// Registration and Window of the memory was closed. nil does nothing. Source: nccl.h, ncclMemFree.
func MemFree(d *cuda.Device, p unsafe.Pointer) error {
	if p == nil {
		return nil
	}
	const op = "ncclMemFree"
	if err := Load(); err != nil {
		return err
	}
	if err := needs(op, 21900, hasMemory()); err != nil {
		return err
	}
	l := makeLink(d)
	if status := sysMemFree(&l, p); status != statusOK {
		return statusError(&l, -1, op, status, "")
	}
	return nil
}

// Registration is memory that NCCL reads and writes directly.
type Registration struct{ r registered }

// Window is memory that all ranks of a communicator registered together.
type Window struct{ r registered }

type registered struct {
	c      *Comm
	mu     sync.Mutex
	handle uintptr
}

// Register lets collectives of c, and graphs that hold them, use the bytes at p without a copy
// through NCCL's own buffers. It is local to the rank, but only of use if all do it. Needs NCCL
// 2.19. Source: nccl.h, ncclCommRegister.
func (c *Comm) Register(p unsafe.Pointer, bytes int) (*Registration, error) {
	const op = "ncclCommRegister"
	if err := needs(op, 21900, hasRegister()); err != nil {
		return nil, err
	}
	handle, status := sysRegister(&c.link, p, bytes)
	if status != statusOK {
		return nil, c.failed(op, status, "")
	}
	return &Registration{registered{c: c, handle: handle}}, nil
}

// Close ends the registration; the memory stays. No collective that uses it may be under way. A
// second Close, and one after the end of the communicator, does nothing. Source: nccl.h,
// ncclCommDeregister.
func (r *Registration) Close() error { return r.r.close("ncclCommDeregister", sysDeregister) }

// RegisterWindow registers the bytes at p, memory of MemAlloc at the same offset on every rank.
// Small collectives between GPUs of one NVLink domain then take NCCL's symmetric kernels.
//
// Collective: all ranks of c, with as many bytes each. It blocks the host. Needs NCCL 2.27.
//
// From 2.28 p is 4096-byte aligned within its allocation, and memory of another allocator is
// refused (dev_runtime.cc, symWindowRegister: cuMemRetainAllocationHandle). If the GPUs or the
// settings do not allow for it, NCCL succeeds and makes no window or an ordinary registration.
// Registered reports the former; collectives work in either case. Source: nccl.h,
// ncclCommWindowRegister with NCCL_WIN_COLL_SYMMETRIC.
func (c *Comm) RegisterWindow(p unsafe.Pointer, bytes int) (*Window, error) {
	const op = "ncclCommWindowRegister"
	if err := needs(op, 22700, hasWindow()); err != nil {
		return nil, err
	}
	handle, status := sysWindow(&c.link, p, bytes)
	if status != statusOK {
		return nil, c.failed(op, status, "")
	}
	return &Window{registered{c: c, handle: handle}}, nil
}

// Registered reports whether NCCL registered the memory; otherwise it uses it as any other.
func (w *Window) Registered() bool {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	return w.r.handle != 0
}

// Close ends the window, on every rank before its memory is freed on any. No collective that uses
// it may be under way. A second Close, and one after the end of the communicator, does nothing.
// Source: nccl.h, ncclCommWindowDeregister.
func (w *Window) Close() error { return w.r.close("ncclCommWindowDeregister", sysCloseWindow) }

func (r *registered) close(op string, call func(*link, uintptr) int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	handle := r.handle
	r.handle = 0
	if handle == 0 {
		return nil
	}
	if status := call(&r.c.link, handle); status != statusOK && status != statusClosed {
		return r.c.failed(op, status, "")
	}
	return nil
}
