package spmd

import (
	"fmt"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/exec/hostexec"
)

// Buffer is n elements of T in the memory of the rank's device, which is a GPU or the host. It is a
// handle, like a slice: copies and slices share the memory, and freeing it through one frees it for
// all. The zero Buffer has no elements and is valid wherever a length of 0 is.
type Buffer[T Stored] exec.Part

// Alloc returns a buffer of n elements in device memory. Its contents are undefined. Not
// collective. The memory comes from a pool, and is aligned to 256 bytes. Alloc is fast, and
// synchronises with no stream. It fails on a negative n and when memory is exhausted. The error
// says how much was asked for, is in use and is held by the pool.
//
// If the pool has to ask the driver for more GPU memory, it first waits for the collectives in
// flight: the driver may wait for them. So allocate before they start.
func Alloc[T Stored](w *World, n int) (Buffer[T], error) {
	return allocFrom[T](w, w.rank().Dev.Pools().Device, n)
}

// AllocSize returns how many bytes of device memory a buffer of n elements takes. Alloc rounds up,
// so that freed memory can be used again: by at most a quarter, and from 32 MiB on by 3 %. If
// memory is short Alloc rounds up less. It panics if n is negative or more than any memory has.
func AllocSize[T Stored](n int) int {
	bytes, ok := elem.Product(n, sizeOf[T]())
	if !ok {
		panic(fmt.Sprintf("spmd: AllocSize of %d elements of %v", n, elem.Of[T]()))
	}
	if n == 0 {
		return 0
	}
	return exec.SizeClass(bytes)
}

func allocFrom[T Stored](w *World, p *exec.Pool, n int) (Buffer[T], error) {
	blk, err := w.rank().Alloc(p, elem.Of[T](), n)
	if err != nil {
		return Buffer[T]{}, err
	}
	return bufferOf[T](blk, 0, n), nil
}

// AllocPinned returns host memory that the device can copy from and to without the host's help.
// Host gives it as a slice. Otherwise it is as Alloc.
func AllocPinned[T Stored](w *World, n int) (Buffer[T], error) {
	return allocFrom[T](w, w.rank().Dev.Pools().Pinned, n)
}

// AllocSymmetric returns device memory that is registered with all communicators. Between two such
// buffers AllReduce, AllGather and ReduceScatter take the fastest of several ways:
//
//   - NCCL's symmetric kernels
//   - NCCL's other kernels
//   - a kernel between GPUs that reach each other, for messages of up to 1 MiB / (ranks - 1)
//     from rank to rank
//
// A table says which way a size takes on a kind of GPU and a number of ranks. Others, and ranks on
// several nodes, have no symmetric kernels, unless --symmetric always takes them at all sizes. It
// says that NVLink joins the nodes.
//
// In one collective either all ranks give such buffers, which they got together, or none does.
// Either all ranks give an AllReduce one buffer as src and dst, or none does. Otherwise NCCL might
// wait for ever. Ranks that differ are found as other mismatches are.
//
// Collective, blocking: every rank of w calls it in the same order with the same n. Different n are
// an error on every rank. Ranks free such buffers in the same order, too, or the memory is not used
// again. Otherwise it is as Alloc. Source: nccl.h, ncclMemAlloc and ncclCommWindowRegister.
func AllocSymmetric[T Stored](w *World, n int) (Buffer[T], error) {
	lengths, err := w.rank().Channel.Range(control.AllocSymmetric, int64(n))
	if err != nil {
		return Buffer[T]{}, err
	}
	if !lengths.One() {
		return Buffer[T]{}, fmt.Errorf("%s: AllocSymmetric of %d elements on rank %d, but from %d to %d over the ranks",
			ccall.At(), n, w.Rank(), lengths.Lo, lengths.Hi)
	}
	if !w.rank().HasSymmetric() || n == 0 {
		return Alloc[T](w, n)
	}
	bytes, err := calls.SizeOf(elem.Of[T](), n)
	if err != nil {
		return Buffer[T]{}, err
	}
	blk, err := w.rank().AllocSymmetric(bytes)
	if err != nil {
		return Buffer[T]{}, fmt.Errorf("%s: AllocSymmetric of %d %v: %w", ccall.At(), n, elem.Of[T](), err)
	}
	return bufferOf[T](blk, 0, n), nil
}

// Len returns the number of elements, never bytes.
func (b Buffer[T]) Len() int { return exec.Part(b).Len() }

// Bytes returns the size in bytes.
func (b Buffer[T]) Bytes() int { return b.Len() * sizeOf[T]() }

// Address returns the address of the first element in the memory of the device; 0 if b has none. It
// shows how memory is aligned, and whether buffers overlap.
func (b Buffer[T]) Address() uintptr { return uintptr(b.addr()) }

// Slice returns elements [i, j) of b; they share its memory. It panics out of range.
func (b Buffer[T]) Slice(i, j int) Buffer[T] {
	if i < 0 || j < i || j > b.Len() {
		panic(fmt.Sprintf("spmd: Slice [%d:%d] of a buffer of %d", i, j, b.Len()))
	}
	return bufferOf[T](b.block(), b.first()+i, j-i)
}

// View returns the memory of b as elements of another type. It suits 8-bit floats that a kernel
// writes in either format, bytes for collectives and messages, and pairs of numbers as complex
// ones. It shares b's memory. It panics if b does not begin and end with an element of that type,
// as NumPy's view fails.
func View[U, T Stored](b Buffer[T]) Buffer[U] {
	from, to := sizeOf[T](), sizeOf[U]()
	if from == to {
		return Buffer[U](b)
	}
	if b.first()*from%to != 0 || b.Len()*from%to != 0 {
		panic(fmt.Sprintf("spmd: View of %d of %v, from %d on, as %v: they are parts of elements",
			b.Len(), elem.Of[T](), b.first(), elem.Of[U]()))
	}
	return bufferOf[U](b.block(), b.first()*from/to, b.Len()*from/to)
}

// Free gives the memory back to the pool; a second Free does nothing. Work that streams already
// hold may go on using the memory: the pool hands it out again only after that work. A later use of
// the buffer is an error of that use. Free takes a whole buffer, as Alloc returned it, not a part.
func (b Buffer[T]) Free() error {
	if b.block() == nil || b.block().Freed.Load() {
		return nil
	}
	if b.Bytes() != b.block().Bytes {
		return fmt.Errorf("%s: Free of a part: elements [%d:%d] of a buffer", ccall.At(), b.first(), b.first()+b.Len())
	}
	return calls.Free(b.block())
}

// CopyFrom copies src, of equal length, into b, and returns when b holds the values. src may
// overlap what Host returns.
//
// It waits for the enqueued work of this rank's streams that uses the buffer, or a part of it. So
// do CopyTo, SetAll, At, Set and Host. They fail while a stream that uses the buffer is being
// captured. In a function of HostFunc they do not wait.
func (b Buffer[T]) CopyFrom(src []T) error {
	err := b.access("CopyFrom", len(src))
	switch {
	case err != nil || b.Len() == 0:
	case addressed(b.block()):
		copy(b.slice(), src)
	default:
		err = calls.Of(b.block()).Dev.ToDevice(b.addr(), unsafe.Pointer(unsafe.SliceData(src)), b.Bytes())
	}
	return err
}

// CopyTo copies b into dst, of equal length, and returns when it holds the values. It waits as
// CopyFrom does, and dst may overlap what Host returns.
func (b Buffer[T]) CopyTo(dst []T) error {
	err := b.access("CopyTo", len(dst))
	switch {
	case err != nil || b.Len() == 0:
	case addressed(b.block()):
		copy(dst, b.slice())
	default:
		err = calls.Of(b.block()).Dev.ToHost(unsafe.Pointer(unsafe.SliceData(dst)), b.addr(), b.Bytes())
	}
	return err
}

// SetAll sets every element to v and returns when it is done. It waits as CopyFrom
// does. Fill does it in the order of a stream.
func (b Buffer[T]) SetAll(v T) error {
	err := b.access("SetAll", b.Len())
	switch {
	case err != nil || b.Len() == 0:
	case addressed(b.block()):
		hostexec.Fill(b.slice(), v)
	default:
		err = calls.Of(b.block()).Dev.SetAll(elem.Of[T](), b.addr(), b.Len(), elem.BitsOf(v))
	}
	return err
}

// At returns element i. It waits as CopyFrom does; from a GPU's memory it takes microseconds. When
// it panics, the package says.
func (b Buffer[T]) At(i int) T {
	one := b.Slice(i, i+1)
	one.mustAccess("At")
	if addressed(b.block()) {
		return one.slice()[0]
	}
	v := make([]T, 1)
	if err := one.CopyTo(v); err != nil {
		panic(err)
	}
	return v[0]
}

// Set sets element i. It waits as CopyFrom does, and panics as At does.
func (b Buffer[T]) Set(i int, v T) {
	one := b.Slice(i, i+1)
	one.mustAccess("Set")
	if addressed(b.block()) {
		one.slice()[0] = v
	} else if err := one.CopyFrom([]T{v}); err != nil {
		panic(err)
	}
}

// Host returns the elements in place, for memory of AllocPinned and managed.Alloc, which the host
// addresses. It waits as CopyFrom does, but not for work that is enqueued later, while the program
// has the slice. It also panics for memory of Alloc and AllocSymmetric, which a GPU has in its own
// memory: on the host too, so that a program that runs there runs on a GPU.
func (b Buffer[T]) Host() []T {
	b.mustAccess("Host")
	if !open(b.block()) {
		panic(fmt.Errorf("%s: Host: the buffer is of Alloc, which a GPU has in its own memory: "+
			"use CopyTo, or AllocPinned", ccall.At()))
	}
	return b.slice()
}

func (b Buffer[T]) access(op string, n int) error {
	if n != b.Len() {
		return fmt.Errorf("%s: %s: buffer has %d elements, slice %d", ccall.At(), op, b.Len(), n)
	}
	return b.reach(op)
}

func (b Buffer[T]) mustAccess(op string) {
	if err := b.reach(op); err != nil {
		panic(err)
	}
}

// reach refuses a freed buffer, and a copy that a GPU refuses in a function of HostFunc. It waits
// for the streams that use the buffer.
func (b Buffer[T]) reach(op string) error {
	if !open(b.block()) {
		if err := exec.RefuseInHostFunc(op); err != nil {
			return err
		}
	}
	if err := calls.Gone(b.block(), op); err != nil {
		return err
	}
	if err := calls.Settle(b.block(), op, nil); err != nil {
		return err
	}
	return b.block().Reached(op, b.addr(), b.Bytes())
}

// open reports whether a program addresses the memory, on every device.
func open(b *exec.Block) bool { return addressed(b) && (b == nil || b.Pool == nil || !b.Pool.Private) }

// addressed reports whether the host addresses the memory.
func addressed(b *exec.Block) bool { return b == nil || b.Pool == nil || b.Pool.Host }

// addr returns the address of the first element; nil when there is none.
func (b Buffer[T]) addr() unsafe.Pointer {
	return exec.Part(b).Pointer(sizeOf[T]())
}

func (b Buffer[T]) block() *exec.Block { return exec.Part(b).Block() }

// first returns the number of the first element in the block.
func (b Buffer[T]) first() int { return exec.Part(b).First() }

func bufferOf[T Stored](blk *exec.Block, first, n int) Buffer[T] {
	return Buffer[T](exec.NewPart(blk, first, n))
}

func (b Buffer[T]) slice() []T { return unsafe.Slice((*T)(b.addr()), b.Len()) }

// Copy enqueues dst = src on s. The lengths must be equal. dst and src may lie in different kinds
// of memory, and dst may be src. It fails if they overlap otherwise, on unequal lengths, freed
// buffers and buffers of another world.
func Copy[T Stored](s *Stream, dst, src Buffer[T]) error {
	if dst.Len() != src.Len() {
		return fmt.Errorf("%s: Copy: "+lengths, ccall.At(), dst.Len(), src.Len())
	}
	if err := exec.Apart("Copy", exec.Writes("dst", dst.addr(), dst.Bytes()),
		exec.Reads("src", src.addr(), src.Bytes()).MayBe(0)); err != nil {
		return err
	}
	c, err := s.rank().Begin(s.queue(), exec.DoCopy, dst.block(), src.block())
	if err != nil {
		return err
	}
	c.Dst, c.Src, c.N = dst.addr(), src.addr(), dst.Bytes()
	return s.queue().Enqueue(c)
}

// Fill enqueues dst[i] = v on s. SetAll does it at once.
func Fill[T Stored](s *Stream, dst Buffer[T], v T) error {
	c, err := s.rank().Begin(s.queue(), exec.DoFill, dst.block(), nil)
	if err != nil {
		return err
	}
	c.Dst, c.N, c.Type, c.Bits, c.Hosted = dst.addr(), dst.Len(), elem.Of[T](), elem.BitsOf(v), addressed(dst.block())
	return s.queue().Enqueue(c)
}
