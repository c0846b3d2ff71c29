package spmd

import (
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/exec"
)

// AllocManaged returns memory that host and device both address; the driver moves its pages between
// them. Host gives it as a slice. Prefetch moves pages ahead of their use, and Advise tells the
// driver how they are used.
//
// It refuses a buffer that is larger than the free memory of the device, and buffers that together
// are larger than the device. The driver would allow both, and be slow. Otherwise it is as Alloc.
func AllocManaged[T Stored](w *World, n int) (Buffer[T], error) {
	b, err := allocFrom[T](w, w.in.Dev.Pools().Managed, n)
	if err != nil || n == 0 {
		return b, err
	}
	if err := w.in.Dev.Unadvise(b.blk); err != nil { // said of it when another had it
		_ = b.Free() // the error is this one
		return Buffer[T]{}, fmt.Errorf("%s: Alloc of %d %v: %w", ccall.At(), n, elem.Of[T](), err)
	}
	return b, nil
}

// Place is where pages of managed memory may lie.
type Place = exec.Place

// The places.
const (
	ToDevice Place = exec.ToDevice // the memory of this rank's GPU
	ToHost   Place = exec.ToHost   // the host's memory
)

// Prefetch enqueues on s that the pages of b move to a place. b is of AllocManaged, or a part of
// that. A later use there takes no page faults: prefetch what a kernel reads before the kernel, and
// what the host reads behind it. Prefetch changes no value, and other pages still move when they
// are used.
//
// Whole pages move, of 4 KiB on most machines. The ends of b may take neighbours along, since
// buffers of up to 256 KiB may share pages.
//
// On the host there is one memory, and Prefetch does nothing. A graph holds no prefetch: it is
// refused in a capture, on the host too. It fails for other kinds of memory of a GPU, for freed
// buffers and buffers of another world, and with a driver older than CUDA 12.2. Source: cuda.h,
// cuMemPrefetchAsync.
func (b Buffer[T]) Prefetch(s *Stream, to Place) error {
	if to > ToHost {
		return fmt.Errorf("%s: Prefetch: no such place: %d", ccall.At(), to)
	}
	if err := s.w.in.CheckBlock(b.blk); err != nil {
		return err
	}
	if err := b.mustBeManaged("Prefetch"); err != nil {
		return err
	}
	if s.q.Lane() != nil {
		return fmt.Errorf("%s: Prefetch: stream %q is being captured, and graphs hold no prefetch: "+
			"call it before Launch", ccall.At(), s.Name())
	}
	c, err := s.w.in.Begin(s.q, exec.DoPrefetch, b.blk, nil)
	if err != nil {
		return err
	}
	c.Dst, c.N, c.Place = b.addr(), b.Bytes(), to
	return s.q.Enqueue(c)
}

// Advice says how managed memory will be used.
type Advice = exec.Advice

// The advice. The device is this rank's GPU.
const (
	// ReadMostly: each reader gets a copy of the page, and a write ends all copies but the
	// writer's.
	ReadMostly Advice = exec.ReadMostly
	// NotReadMostly undoes ReadMostly.
	NotReadMostly Advice = exec.NotReadMostly
	// PreferDevice: pages stay on the device, and the host reaches them from afar where it can.
	PreferDevice Advice = exec.PreferDevice
	// PreferHost: pages stay on the host, and the device reaches them from afar.
	PreferHost Advice = exec.PreferHost
	// PreferNone undoes PreferDevice and PreferHost.
	PreferNone Advice = exec.PreferNone
	// AccessedByDevice: the device reaches the pages wherever they lie, without page faults.
	AccessedByDevice Advice = exec.AccessedByDevice
	// NotAccessedByDevice undoes AccessedByDevice.
	NotAccessedByDevice Advice = exec.NotAccessedByDevice
)

// Advise tells the driver how b will be used, until other advice or Free. b is of AllocManaged, or
// a part of that. Advise changes where pages lie and when they are copied, never a value. It is in
// the order of no stream, and like Alloc it first waits for the collectives in flight. It concerns
// whole pages, as Prefetch does: advice on the ends of b may concern neighbours too.
//
// On the host it does nothing. It fails for other kinds of memory of a GPU, for freed buffers, and
// with a driver older than CUDA 12.2. Source: cuda.h, cuMemAdvise.
func (b Buffer[T]) Advise(a Advice) error {
	if a < ReadMostly || a > NotAccessedByDevice {
		return fmt.Errorf("%s: Advise: no such advice: %d", ccall.At(), a)
	}
	if err := exec.RefuseInHostFunc("Advise"); err != nil {
		return err
	}
	if err := calls.Gone(b.blk, "Advise"); err != nil {
		return err
	}
	if err := b.mustBeManaged("Advise"); err != nil || b.n == 0 {
		return err
	}
	return calls.Of(b.blk).Dev.Advise(b.blk, b.addr(), b.Bytes(), a)
}

// mustBeManaged refuses memory of another kind, but for nothing of it.
func (b Buffer[T]) mustBeManaged(op string) error {
	if b.n > 0 && b.blk.Pool != calls.Of(b.blk).Dev.Pools().Managed {
		return fmt.Errorf("%s: %s: the buffer is not of AllocManaged: the driver moves no other memory", ccall.At(), op)
	}
	return nil
}
