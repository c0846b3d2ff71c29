package spmd

import (
	"fmt"
	"unsafe"

	"lockstep/host"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
)

// Buffer is n elements of T in the memory of the rank's device: GPU memory, or
// host memory where the device is the host. It is a handle, like a slice: copies
// and slices share the memory, and freeing it through one frees it for all.
// The zero Buffer has no elements and is valid wherever a length of 0 is.
type Buffer[T Stored] struct {
	blk *block
	off int // elements
	n   int
}

// Alloc returns a buffer of n elements in device memory. Its contents are
// undefined. Not collective. The memory comes from a pool: it is fast, does not
// synchronise with any stream, and is aligned to 256 bytes. It fails on a
// negative n and when memory is exhausted, saying how much was asked for, is in
// use and is held by the pool.
//
// Where the pool has to ask the driver for more GPU memory it first waits for the
// collectives in flight, since the driver may wait for them: allocate before they
// start.
func Alloc[T Stored](w *World, n int) (Buffer[T], error) { return allocFrom[T](w, &w.pool, n) }

// mostBytes is more than any device has, and leaves room to round up.
const mostBytes = 1 << 56

// checkSize refuses lengths that no memory holds.
func checkSize[T Stored](n int) error {
	if n < 0 || n > mostBytes/sizeOf[T]() {
		return fmt.Errorf("%s: Alloc: %d elements of %v", ccall.At(), n, elem.Of[T]())
	}
	return nil
}

func allocFrom[T Stored](w *World, p *exec.Pool, n int) (Buffer[T], error) {
	if err := checkSize[T](n); err != nil {
		return Buffer[T]{}, err
	}
	if n == 0 {
		return Buffer[T]{blk: &block{w: w}}, nil
	}
	blk, err := w.block(p, n*sizeOf[T]())
	if err != nil {
		return Buffer[T]{}, fmt.Errorf("%s: Alloc of %d %v: %w", ccall.At(), n, elem.Of[T](), err)
	}
	return Buffer[T]{blk: blk, n: n}, nil
}

// AllocPinned returns host memory that the device can copy from and to without
// the host's help; Host gives it as a slice. Otherwise as Alloc.
func AllocPinned[T Stored](w *World, n int) (Buffer[T], error) { return allocFrom[T](w, w.pinned, n) }

// AllocManaged returns memory that host and device both address, the driver
// moving pages between them; Host gives it as a slice. Otherwise as Alloc.
func AllocManaged[T Stored](w *World, n int) (Buffer[T], error) {
	return allocFrom[T](w, w.managed, n)
}

// AllocSymmetric returns device memory that is registered with all communicators.
// Between two such buffers AllReduce, AllGather and ReduceScatter take the fastest of
// several ways: NCCL's symmetric kernels, its others and, where the GPUs reach each
// other, a kernel between them for messages of up to 512 KiB / (ranks - 1) from rank to
// rank; dst of an AllReduce may then also be of AllocPinned. The first call measures
// them once for each kind of machine and takes about a second for it; the log says which
// way a size takes, --symmetric decides otherwise. Ranks on several nodes have NCCL's other
// ways alone, and nothing to measure, unless --symmetric always says that NVLink joins these.
//
// In one collective either all ranks give such buffers, which they got together, or
// none does; and all give an AllReduce one buffer as src and dst, or none: NCCL might
// wait for ever. Ranks that differ are found as other mismatches are.
//
// Collective, blocking: every rank of w calls it in the same order with the same n;
// different n are an error on every rank. Ranks free such buffers in the same
// order, too, or the memory is not used again. Otherwise as Alloc.
// Source: nccl.h, ncclMemAlloc and ncclCommWindowRegister.
func AllocSymmetric[T Stored](w *World, n int) (Buffer[T], error) {
	lengths, err := w.channel.Range(control.AllocSymmetric, int64(n))
	if err != nil {
		return Buffer[T]{}, err
	}
	if !lengths.One() {
		return Buffer[T]{}, fmt.Errorf("%s: AllocSymmetric of %d elements on rank %d, but from %d to %d over the ranks",
			ccall.At(), n, w.Rank(), lengths.Lo, lengths.Hi)
	}
	if w.symmetric == nil || n == 0 {
		return Alloc[T](w, n)
	}
	if err := checkSize[T](n); err != nil {
		return Buffer[T]{}, err
	}
	blk, err := w.symmetric.alloc(n * sizeOf[T]())
	if err != nil {
		return Buffer[T]{}, fmt.Errorf("%s: AllocSymmetric of %d %v: %w", ccall.At(), n, elem.Of[T](), err)
	}
	return Buffer[T]{blk: blk, n: n}, nil
}

// Len returns the number of elements, never bytes.
func (b Buffer[T]) Len() int { return b.n }

// Bytes returns the size in bytes.
func (b Buffer[T]) Bytes() int { return b.n * sizeOf[T]() }

// Address returns where the first element lies in the memory of the device, 0 where b has none: to see how it is aligned,
// and whether buffers overlap.
func (b Buffer[T]) Address() uintptr { return uintptr(b.addr()) }

// Slice returns elements [i, j) of b; they share its memory. It panics out of
// range, as b[i:j] would.
func (b Buffer[T]) Slice(i, j int) Buffer[T] {
	if i < 0 || j < i || j > b.n {
		panic(fmt.Sprintf("spmd: Slice [%d:%d] of a buffer of %d", i, j, b.n))
	}
	return Buffer[T]{b.blk, b.off + i, j - i}
}

// Free gives the memory back to the pool; a second Free does nothing. Work that
// streams already hold may go on using it: it is not handed out again before all
// of them have passed this point. Using the buffer later is an error of that
// use. Only what Alloc returned may be freed, not a part of it.
func (b Buffer[T]) Free() error {
	if b.blk == nil || b.blk.Freed.Load() {
		return nil
	}
	if b.Bytes() != b.blk.Bytes {
		return fmt.Errorf("%s: Free of a part: elements [%d:%d] of a buffer", ccall.At(), b.off, b.off+b.n)
	}
	if !b.blk.Freed.CompareAndSwap(false, true) {
		return nil
	}
	b.blk.At.Here(0)
	if b.blk.Pool != nil {
		b.blk.Pool.Release(&b.blk.Block, b.blk.w.marks())
	}
	return nil
}

// CopyFrom copies src, of equal length, into b. It returns when b holds the
// values; work in flight on streams is not waited for.
func (b Buffer[T]) CopyFrom(src []T) error {
	err := b.access("CopyFrom", len(src))
	switch {
	case err != nil || b.n == 0:
	case b.blk.onHost():
		copy(b.slice(), src)
	default:
		err = b.blk.w.stage.toDevice(b.addr(), unsafe.Pointer(unsafe.SliceData(src)), b.Bytes())
	}
	return err
}

// CopyTo copies b into dst, of equal length, and returns when it holds the
// values. Streams that write b must have been synchronised.
func (b Buffer[T]) CopyTo(dst []T) error {
	err := b.access("CopyTo", len(dst))
	switch {
	case err != nil || b.n == 0:
	case b.blk.onHost():
		copy(dst, b.slice())
	default:
		err = b.blk.w.stage.toHost(unsafe.Pointer(unsafe.SliceData(dst)), b.addr(), b.Bytes())
	}
	return err
}

// SetAll sets every element to v and returns when it is done; work in flight on
// streams is not waited for. Fill does it in the order of a stream.
func (b Buffer[T]) SetAll(v T) error {
	err := b.access("SetAll", b.n)
	switch {
	case err != nil || b.n == 0:
	case b.blk.onHost():
		fill(b.slice(), v)
	default:
		s := b.blk.w.stage.s
		if err = Fill(s, b, v); err == nil {
			err = s.Synchronize()
		}
	}
	return err
}

// At returns element i, waiting for no stream; from a GPU's memory it takes
// microseconds. It panics out of range, when the buffer has been freed, and when
// the GPU has failed.
func (b Buffer[T]) At(i int) T {
	one := b.Slice(i, i+1)
	one.mustAccess("At")
	if b.blk.onHost() {
		return one.slice()[0]
	}
	v := make([]T, 1)
	if err := one.CopyTo(v); err != nil {
		panic(err)
	}
	return v[0]
}

// Set sets element i, waiting for no stream. It panics as At does.
func (b Buffer[T]) Set(i int, v T) {
	one := b.Slice(i, i+1)
	one.mustAccess("Set")
	if b.blk.onHost() {
		one.slice()[0] = v
	} else if err := one.CopyFrom([]T{v}); err != nil {
		panic(err)
	}
}

// Host returns the elements in place, for memory that the host addresses: what
// AllocPinned and AllocManaged returned, and every buffer where the device is
// the host. Streams that use the buffer must have been synchronised. It panics
// when the buffer has been freed or lies in a GPU's memory.
func (b Buffer[T]) Host() []T {
	b.mustAccess("Host")
	if !b.blk.onHost() {
		panic(fmt.Errorf("%s: Host: the buffer is in the memory of a GPU: use CopyTo, or AllocPinned", ccall.At()))
	}
	return b.slice()
}

func (b Buffer[T]) access(op string, n int) error {
	if n != b.n {
		return fmt.Errorf("%s: %s: buffer has %d elements, slice %d", ccall.At(), op, b.n, n)
	}
	return b.blk.gone(op)
}

func (b Buffer[T]) mustAccess(op string) {
	if err := b.blk.gone(op); err != nil {
		panic(err)
	}
}

// block is one allocation. Handles (Buffer) point to it, so that a use after
// Free is found whatever copy of the handle it is made through.
type block struct {
	exec.Block
	w *World
}

// block allocates n bytes of p.
func (w *World) block(p *exec.Pool, n int) (*block, error) {
	b := &block{w: w}
	if err := p.Alloc(&b.Block, n); err != nil {
		return nil, err
	}
	return b, nil
}

// onHost says whether the host addresses the memory.
func (b *block) onHost() bool { return b == nil || b.Pool == nil || b.Pool.Host }

// gone returns why the memory is not there any more, or nil.
func (b *block) gone(op string) error {
	switch {
	case b == nil:
		return nil
	case b.Freed.Load():
		return b.freedError(op)
	case b.w.pool.Closed():
		return fmt.Errorf("%s: %s: the world that the buffer belongs to is closed", ccall.At(), op)
	}
	return nil
}

func (b *block) freedError(op string) error {
	return fmt.Errorf("%s: %s: the buffer was freed at %s", ccall.At(), op, &b.At)
}

// addr returns the address of the first element; nil when there is none.
func (b Buffer[T]) addr() unsafe.Pointer {
	if b.n == 0 {
		return nil
	}
	return unsafe.Add(b.blk.Ptr, b.off*sizeOf[T]())
}

func (b Buffer[T]) slice() []T { return unsafe.Slice((*T)(b.addr()), b.n) }

// Copy enqueues dst = src on s. The lengths must be equal; dst and src may lie in
// different kinds of memory, and may be the same but not otherwise overlap. It
// fails on unequal lengths, freed buffers and buffers of another world.
func Copy[T Stored](s *Stream, dst, src Buffer[T]) error {
	if dst.n != src.n {
		return lengthError("Copy", "dst", dst.n, "src", src.n)
	}
	c := command{kind: cmdCopy, call: call{Call: coll.Call{Dst: dst.addr(), Src: src.addr(), N: dst.Bytes()}, dblk: dst.blk, sblk: src.blk}}
	return s.submit(&c, nil)
}

// Fill enqueues dst[i] = v on s. SetAll does it at once.
func Fill[T Stored](s *Stream, dst Buffer[T], v T) error {
	c := command{kind: cmdFill, call: call{Call: coll.Call{Dst: dst.addr(), N: dst.n, Type: elem.Of[T]()}, dblk: dst.blk}}
	*(*T)(unsafe.Pointer(&c.bits)) = v
	return s.submit(&c, nil)
}

// fill uses all cores: the first touch of fresh memory is slow, since the system
// clears it.
func fill[T Stored](h []T, v T) {
	if len(h) <= grain {
		fillPart(h, v)
		return
	}
	host.Parallel(len(h), grain, func(lo, hi int) { fillPart(h[lo:hi], v) })
}

func fillPart[T Stored](part []T, v T) {
	if len(part) == 0 {
		return
	}
	part[0] = v
	for done := 1; done < len(part); {
		done += copy(part[done:], part[:min(done, 1<<12)]) // from the cache
	}
}

// fillAs fills n elements of a type known at run time with the low bits of v: a
// fill moves bits, so the unsigned type of equal size will do.
func fillAs(t elem.Type, dst unsafe.Pointer, n int, v uint64) {
	switch t.Size() {
	case 1:
		fill(unsafe.Slice((*uint8)(dst), n), uint8(v))
	case 2:
		fill(unsafe.Slice((*F16)(dst), n), F16(v))
	case 4:
		fill(unsafe.Slice((*uint32)(dst), n), uint32(v))
	default:
		fill(unsafe.Slice((*uint64)(dst), n), v)
	}
}

// lengthError is the refusal of unequal lengths: both numbers, both names, and
// the caller's place.
func lengthError(op, a string, na int, b string, nb int) error {
	return fmt.Errorf("%s: %s: %s has %d elements, %s %d", ccall.At(), op, a, na, b, nb)
}
