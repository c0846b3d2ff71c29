package cuda

import (
	"fmt"
	"unsafe"
)

// Malloc allocates device memory, aligned to at least 256 bytes, its content undefined. NCCL and
// MPI take it. No bytes give nil. It can block until the device is idle. When memory runs out, the
// error is ErrOutOfMemory and says how much is free. Source: cuda.h, cuMemAlloc.
func (d *Device) Malloc(bytes int) (unsafe.Pointer, error) {
	if bytes <= 0 {
		return nil, size("cuMemAlloc", bytes)
	}
	p, status := sysMalloc(d, bytes)
	return p, d.checkMemory("cuMemAlloc", bytes, status)
}

// Free gives back memory of Malloc or MallocManaged; nil is nothing. It blocks until the device is
// idle: do not call it while a collective is in flight. Source: cuda.h, cuMemFree.
func (d *Device) Free(p unsafe.Pointer) error {
	if p == nil {
		return nil
	}
	managed := d.managed.take(p) // before another can be given the address
	status := sysFree(d, p)
	if managed > 0 {
		d.managed.put(p, managed, status != 0)
	}
	return check("cuMemFree", status)
}

// MallocHost allocates pinned host memory, its content undefined. Copies from and to it run while
// the host goes on; kernels of every device reach it at the same address. No bytes give nil.
// Source: cuda.h, cuMemHostAlloc.
func (d *Device) MallocHost(bytes int) (unsafe.Pointer, error) {
	if bytes <= 0 {
		return nil, size("cuMemHostAlloc", bytes)
	}
	p, status := sysMallocHost(d, bytes)
	if status != 0 {
		return nil, failed("cuMemHostAlloc", status, fmt.Sprintf("%d bytes asked for", bytes))
	}
	return p, nil
}

// FreeHost gives back memory of MallocHost; nil is nothing. Source: cuda.h, cuMemFreeHost.
func (d *Device) FreeHost(p unsafe.Pointer) error {
	if p == nil {
		return nil
	}
	return check("cuMemFreeHost", sysFreeHost(d, p))
}

// RegisterHost pins host memory that CUDA has not allocated, such as memory that processes share.
// Copies from and to it then run as copies of MallocHost's memory do. Source: cuda.h,
// cuMemHostRegister.
func (d *Device) RegisterHost(p unsafe.Pointer, bytes int) error {
	if bytes <= 0 {
		return size("cuMemHostRegister", bytes)
	}
	if status := sysHostRegister(d, p, bytes); status != 0 {
		return failed("cuMemHostRegister", status, fmt.Sprintf("%d bytes; see ulimit -l", bytes))
	}
	return nil
}

// UnregisterHost undoes RegisterHost; p is the same address. Copies must have finished. Source:
// cuda.h, cuMemHostUnregister.
func (d *Device) UnregisterHost(p unsafe.Pointer) error {
	return check("cuMemHostUnregister", sysHostUnregister(d, p))
}

// MallocManaged allocates memory that the driver moves between host and device as they use it; Free
// gives it back. No bytes give nil. Source: cuda.h, cuMemAllocManaged.
//
// The driver would let it be larger than the device's memory, and slow. So MallocManaged refuses
// more than is free now, with ErrOutOfMemory and both numbers. It also refuses more in all than the
// device has: pages that nobody has touched still count as free.
func (d *Device) MallocManaged(bytes int) (unsafe.Pointer, error) {
	if bytes <= 0 {
		return nil, size("cuMemAllocManaged", bytes)
	}
	free, total, err := d.MemInfo()
	if err != nil {
		return nil, err
	}
	if bytes > free {
		return nil, d.checkMemory("cuMemAllocManaged", bytes, int(ErrOutOfMemory))
	}
	if others, ok := d.managed.reserve(bytes, total); !ok {
		return nil, failed("cuMemAllocManaged", int(ErrOutOfMemory),
			fmt.Sprintf("%d bytes asked for, %d are managed already, GPU %d has %d", bytes, others, d.index, total))
	}
	p, status := sysMallocManaged(d, bytes)
	d.managed.put(p, bytes, status == 0)
	return p, d.checkMemory("cuMemAllocManaged", bytes, status)
}

// size returns the error of a length that is not positive, nil for 0.
func size(op string, bytes int) error {
	if bytes < 0 {
		return refused(op, "%d bytes", bytes)
	}
	return nil
}

// checkMemory adds the bytes asked for and those free.
func (d *Device) checkMemory(op string, bytes, status int) error {
	if status == 0 {
		return nil
	}
	detail := fmt.Sprintf("%d bytes asked for", bytes)
	if free, total, st := sysMemInfo(d.ctx); st == 0 {
		detail += fmt.Sprintf(", %d of %d free on GPU %d", free, total, d.index)
	}
	return failed(op, status, detail)
}
