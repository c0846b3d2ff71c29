// Package managed allocates memory that host and device both address, the driver moving pages
// between them. Prefetch moves them ahead of their use, and Advise tells the driver of it.
package managed

import (
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd"
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/world"
)

// Alloc returns n elements of managed memory; Host of the Buffer gives them as a slice.
//
// It refuses a buffer that is larger than the free memory of the device, and buffers that together
// are larger than the device. The driver would allow both, and be slow. Otherwise it is as
// spmd.Alloc.
// Source: cuda.h, cuMemAllocManaged.
func Alloc[T spmd.Stored](w *spmd.World, n int) (spmd.Buffer[T], error) {
	in := (*world.World)(w).Rank()
	blk, err := in.Alloc(in.Dev.Pools().Managed, elem.Of[T](), n)
	if err != nil || n == 0 {
		return spmd.Buffer[T]{}, err
	}
	if err := in.Dev.Unadvise(blk); err != nil { // said of it when another had it
		_ = calls.Free(blk) // the error is this one
		return spmd.Buffer[T]{}, fmt.Errorf("%s: managed.Alloc of %d %v: %w", ccall.At(), n, elem.Of[T](), err)
	}
	return spmd.Buffer[T](exec.NewPart(blk, 0, n)), nil
}

// Place is where pages may lie.
type Place = exec.Place

// The places.
const (
	ToDevice Place = exec.ToDevice // the memory of this rank's GPU
	ToHost   Place = exec.ToHost   // the host's memory
)

// Prefetch enqueues on s that the pages of b move to a place. b is of Alloc, or a part of that. A
// later use there takes no page faults: prefetch what a kernel reads before the kernel, and what
// the host reads behind it. Prefetch changes no value, and other pages still move when they are
// used.
//
// Whole pages move, of 4 KiB on most machines. The ends of b may take neighbours along, since
// buffers of up to 256 KiB may share pages.
//
// On the host there is one memory, and Prefetch does nothing. A graph holds no prefetch: it is
// refused in a capture, on the host too. It fails for other kinds of memory of a GPU, for freed
// buffers and for buffers of another world. It also fails with a driver older than CUDA 12.2.
// Source: cuda.h, cuMemPrefetchAsync.
func Prefetch[T spmd.Stored](s *spmd.Stream, b spmd.Buffer[T], to Place) error {
	if to > ToHost {
		return fmt.Errorf("%s: managed.Prefetch: no such place: %d", ccall.At(), to)
	}
	in, q, a := (*world.Stream)(s).Rank(), (*world.Stream)(s).Queue(), b.Arg()
	if err := in.CheckBlock(a.Block); err != nil {
		return err
	}
	if err := mustBeManaged(&a, "managed.Prefetch"); err != nil {
		return err
	}
	if q.Lane() != nil {
		return fmt.Errorf("%s: managed.Prefetch: stream %q is being captured, and graphs hold no prefetch: "+
			"call it before Launch", ccall.At(), q.Name())
	}
	c, err := in.Begin(q, exec.DoPrefetch, a.Block, nil)
	if err != nil {
		return err
	}
	c.Dst, c.N, c.Place = a.Ptr, b.Bytes(), to
	return q.Enqueue(c)
}

// Advice says how memory will be used.
type Advice = exec.Advice

// The advice. The device is this rank's GPU.
const (
	// ReadMostly: each reader gets a copy of the page, and a write ends all copies but the
	// writer's.
	ReadMostly Advice = exec.ReadMostly
	// PreferDevice: pages stay on the device, and the host reaches them from afar where it can.
	PreferDevice Advice = exec.PreferDevice
	// PreferHost: pages stay on the host, and the device reaches them from afar.
	PreferHost Advice = exec.PreferHost
	// AccessedByDevice: the device reaches the pages wherever they lie, without page faults.
	AccessedByDevice Advice = exec.AccessedByDevice
)

// Advise tells the driver how b will be used, until other advice or Free. b is of Alloc, or a part
// of that. Advise changes where pages lie and when they are copied, never a value. It is in the
// order of no stream, and like Alloc it first waits for the collectives in flight. It concerns
// whole pages, as Prefetch does: advice on the ends of b may concern neighbours too.
//
// On the host it does nothing. It fails for other kinds of memory of a GPU, for freed buffers, and
// with a driver older than CUDA 12.2. Source: cuda.h, cuMemAdvise.
func Advise[T spmd.Stored](b spmd.Buffer[T], how Advice) error {
	if how < ReadMostly || how > AccessedByDevice {
		return fmt.Errorf("%s: managed.Advise: no such advice: %d", ccall.At(), how)
	}
	if err := exec.RefuseInHostFunc("managed.Advise"); err != nil {
		return err
	}
	a := b.Arg()
	if err := calls.Gone(a.Block, "managed.Advise"); err != nil {
		return err
	}
	if err := mustBeManaged(&a, "managed.Advise"); err != nil || a.N == 0 {
		return err
	}
	return calls.Of(a.Block).Dev.Advise(a.Block, a.Ptr, b.Bytes(), how)
}

// mustBeManaged refuses memory of another kind, but for nothing of it.
func mustBeManaged(a *spmd.Arg, op string) error {
	if a.N > 0 && a.Block.Pool != calls.Of(a.Block).Dev.Pools().Managed {
		return fmt.Errorf("%s: %s: the buffer is not of managed.Alloc: the driver moves no other memory",
			ccall.At(), op)
	}
	return nil
}
