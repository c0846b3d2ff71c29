package cuda

import (
	"fmt"
	"sync"
	"unsafe"
)

// managedDriver is the first driver with cuMemPrefetchAsync_v2 and cuMemAdvise_v2.
const managedDriver = 12020

// ledger is the managed memory of a device that has not been freed.
type ledger struct {
	mu     sync.Mutex
	blocks map[unsafe.Pointer]int // their bytes
	sum    int
}

// reserve counts bytes, unless there would be more than most in all. It returns how many others
// there are.
func (l *ledger) reserve(bytes, most int) (others int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	others = l.sum
	if bytes > most-others {
		return others, false
	}
	l.sum += bytes
	return others, true
}

// put notes the place of counted bytes, or that they lie nowhere.
func (l *ledger) put(p unsafe.Pointer, bytes int, there bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !there {
		l.sum -= bytes
		return
	}
	if l.blocks == nil {
		l.blocks = map[unsafe.Pointer]int{}
	}
	l.blocks[p] = bytes
}

// take forgets the place of bytes, which stay counted until put, and returns how many they are; 0
// for other memory.
func (l *ledger) take(p unsafe.Pointer) (bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	bytes = l.blocks[p]
	delete(l.blocks, p)
	return bytes
}

// Advice tells the driver about managed memory. It changes the places of pages and the times of
// copies, never the contents.
type Advice int

// Source: cuda.h, CUmem_advise.
const (
	SetReadMostly   Advice = iota + 1 // readers get copies; a write ends all copies
	UnsetReadMostly                   // there is one of each page again
	// pages stay at the place, or go back there, and others reach them from afar
	SetPreferredLocation
	UnsetPreferredLocation // they move to who uses them
	SetAccessedBy          // the place reaches pages wherever they are, without a page fault
	UnsetAccessedBy        // it faults
)

// Places of managed memory. Source: cuda.h, CUmemLocationType.
const (
	atDevice = 1
	atHost   = 2
)

// place returns the driver's name of a device; nil is the host.
func place(of *Device) (kind, id int) {
	if of == nil {
		return atHost, 0
	}
	return atDevice, of.dev
}

func placeText(of *Device) string {
	if of == nil {
		return "the host"
	}
	return fmt.Sprintf("GPU %d", of.index)
}

// Prefetch enqueues on s that bytes bytes of managed memory move to a device; nil is the host. The
// range is widened to whole pages of the host's. It needs a driver of CUDA 12.2 and a device that
// uses managed memory at the same time as the host. A graph cannot hold it: while s captures it is
// ErrCaptureUnsupported, and the capture is over. Source: cuda.h, cuMemPrefetchAsync.
func (s *Stream) Prefetch(p unsafe.Pointer, bytes int, to *Device) error {
	const op = "cuMemPrefetchAsync"
	if bytes <= 0 {
		return size(op, bytes)
	}
	if !sysHasPrefetch() {
		return tooOld(op)
	}
	kind, id := place(to)
	if status := sysPrefetch(s, p, bytes, kind, id); status != 0 {
		return failed(op, status, fmt.Sprintf("%d bytes to %s", bytes, placeText(to)))
	}
	return nil
}

// Advise tells the driver how bytes bytes of managed memory will be used. of is the device of
// SetPreferredLocation, SetAccessedBy and UnsetAccessedBy; nil is the host. The range is widened to
// whole pages of the host's. It needs the driver and device of Prefetch. It is in the order of no
// stream. Source: cuda.h, cuMemAdvise.
func (d *Device) Advise(p unsafe.Pointer, bytes int, a Advice, of *Device) error {
	const op = "cuMemAdvise"
	if a < SetReadMostly || a > UnsetAccessedBy {
		return refused(op, "advice %d", a)
	}
	if bytes <= 0 {
		return size(op, bytes)
	}
	if !sysHasAdvise() {
		return tooOld(op)
	}
	kind, id := place(of)
	if status := sysAdvise(d, p, bytes, a, kind, id); status != 0 {
		return failed(op, status, fmt.Sprintf("advice %d for %d bytes and %s", a, bytes, placeText(of)))
	}
	return nil
}

// tooOld returns the error of a driver that lacks a function.
func tooOld(op string) error {
	return failed(op, int(ErrNotSupported), fmt.Sprintf("the NVIDIA driver supports CUDA %s, this call "+
		"needs %s or later",
		versionString(int(version.Load())), versionString(managedDriver)))
}
