package spmd

import (
	"fmt"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/coll"
	hostexec "lockstep/spmd/internal/exec/host"
)

// What a program itself has on the host is reduced, broadcast and gathered by the functions of this file and of values.go:
// counts, decisions, settings. They take no Buffer and no stream, block, and are host traffic also where the device is a
// GPU: they wait neither for it nor for what is enqueued there.

// Number is the set of types that are reduced in the memory of the host.
type Number interface{ Elem | int | uint }

// typeOf is the element type that has the layout of T.
func typeOf[T Number]() elem.Type {
	switch any(*new(T)).(type) {
	case int8:
		return elem.Int8
	case uint8:
		return elem.Uint8
	case int32:
		return elem.Int32
	case uint32:
		return elem.Uint32
	case F16:
		return elem.Float16
	case BF16:
		return elem.BFloat16
	case float32:
		return elem.Float32
	case float64:
		return elem.Float64
	case complex64:
		return elem.Complex64
	case complex128:
		return elem.Complex128
	case uint64, uint:
		return elem.Uint64
	}
	return elem.Int64
}

// AllReduceNumber returns op over all ranks of x, the same bits on every rank:
//
//	total, err := spmd.AllReduceNumber(w.Comm(), len(mine), spmd.Sum)
//
// Collective, blocking. A stream of c has no part in it.
// Source: mpi.h, MPI_Allreduce.
func AllReduceNumber[T Number](c Comm, x T, op Op) (T, error) {
	p, err := c.c.EnterHost("AllReduceNumber", 0, op, 8)
	if err != nil {
		return x, err
	}
	*(*T)(p) = x
	err = c.c.MakeHost(coll.Call{Kind: coll.AllReduce, Type: typeOf[T](), Op: op, N: 1, Dst: p, Src: p})
	x = *(*T)(p)
	c.c.LeaveHost()
	return x, err
}

// BroadcastNumber returns root's x, on every rank.
//
// Collective, blocking. A stream of c has no part in it.
// Source: mpi.h, MPI_Bcast.
func BroadcastNumber[T Number](c Comm, x T, root int) (T, error) {
	p, err := c.c.EnterHost("BroadcastNumber", root, Sum, 8)
	if err != nil {
		return x, err
	}
	*(*T)(p) = x
	err = c.c.MakeHost(coll.Call{Kind: coll.Broadcast, Type: typeOf[T](), Root: int32(root), N: 1, Dst: p})
	x = *(*T)(p)
	c.c.LeaveHost()
	return x, err
}

// AllGatherNumber returns the x of every rank, in rank order, on every rank.
//
// Collective, blocking. A stream of c has no part in it.
// Source: mpi.h, MPI_Allgather.
func AllGatherNumber[T Number](c Comm, x T) ([]T, error) {
	p, err := c.c.EnterHost("AllGatherNumber", 0, Sum, 8)
	if err != nil {
		return nil, err
	}
	*(*T)(p) = x
	all := make([]T, c.Size())
	err = c.c.MakeHost(coll.Call{Kind: coll.AllGather, Type: typeOf[T](), N: 1, Dst: unsafe.Pointer(&all[0]), Src: p})
	c.c.LeaveHost()
	return all, err
}

// Any returns whether have is true on any rank, the same on every rank. It is for communication that is needed at times
// only:
//
//	if any, err := spmd.Any(w.Comm(), len(moved) > 0); err != nil || !any {
//		return err // on every rank: nobody has anything to say
//	}
//
// It waits for no stream: asked while the device still computes, it costs no time of it. For a few numbers in host memory
// AllReduceIf asks and reduces in one go.
//
// Collective, blocking. A stream of c has no part in it.
func Any(c Comm, have bool) (bool, error) {
	p, err := c.c.EnterHost("Any", 0, Sum, 8)
	if err != nil {
		return have, err
	}
	*(*uint8)(p) = uint8(b2i(have))
	err = c.c.MakeHost(coll.Call{Kind: coll.AllReduce, Type: elem.Uint8, Op: Max, N: 1, Dst: p, Src: p})
	have = *(*uint8)(p) != 0
	c.c.LeaveHost()
	return have, err
}

// AllReduceSlice sets dst[i] to op over all ranks of src[i], on every rank. dst may be src, and may not otherwise overlap
// it. All ranks get the same bits.
//
// Collective, blocking. A stream of c has no part in it.
// Source: mpi.h, MPI_Allreduce.
func AllReduceSlice[T Number](c Comm, dst, src []T, op Op) error {
	return reduceSlice(c, "AllReduceSlice", coll.AllReduce, dst, src, op, 0)
}

// ReduceSlice sets dst[i] to op over all ranks of src[i], on root. Elsewhere dst is not used and may be nil. On root dst
// may be src, and may not otherwise overlap it.
//
// Collective, blocking. A stream of c has no part in it.
// Source: mpi.h, MPI_Reduce.
func ReduceSlice[T Number](c Comm, dst, src []T, op Op, root int) error {
	if c.Rank() != root {
		dst = nil
	}
	return reduceSlice(c, "ReduceSlice", coll.Reduce, dst, src, op, root)
}

func reduceSlice[T Number](c Comm, name string, kind coll.Kind, dst, src []T, op Op, root int) error {
	t := typeOf[T]()
	to, from := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src))
	switch {
	case (kind == coll.AllReduce || c.Rank() == root) && len(dst) != len(src):
		return lengthError(name, "dst", len(dst), "src", len(src))
	case to != from && calls.Overlap(to, len(dst)*t.Size(), from, len(src)*t.Size()):
		return fmt.Errorf("%s: %s: dst of %d elements and src of %d overlap", ccall.At(), name, len(dst), len(src))
	}
	if _, err := c.c.EnterHost(name, root, op, 0); err != nil {
		return err
	}
	err := c.c.MakeHost(coll.Call{Kind: kind, Type: t, Op: op, Root: int32(root), N: len(src), Dst: to, Src: from})
	c.c.LeaveHost()
	return err
}

// AllReduceIf is AllReduceSlice over those ranks alone that have something, and nothing at all where none has: any says
// on every rank whether there was one, and where not dst stays as it is. src has the length of dst where have is true;
// elsewhere it is not used and may be nil. dst has the same length on every rank, and may be src. There is no Avg.
//
// Up to 4 KiB the question and the numbers are one message: it costs what AllReduceSlice does. What is longer is not sent
// where no rank has anything.
//
// Collective, blocking. A stream of c has no part in it.
func AllReduceIf[T Number](c Comm, have bool, dst, src []T, op Op) (any bool, err error) {
	t := typeOf[T]()
	size := t.Size()
	n := len(dst)
	to, from := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src))
	switch {
	case have && len(src) != n:
		return false, lengthError("AllReduceIf", "dst", n, "src", len(src))
	case have && to != from && calls.Overlap(to, n*size, from, n*size):
		return false, fmt.Errorf("%s: AllReduceIf: dst of %d elements and src of %d overlap", ccall.At(), n, n)
	case op == Avg:
		return false, fmt.Errorf("%s: AllReduceIf: %v is no operation of it: not every rank has values", ccall.At(), op)
	}
	const inOne = 4096
	if size == 1 || (n+1)*size > inOne { // in a byte, votes would not add up
		if any, err = Any(c, have); err != nil || !any {
			return any, err
		}
		if !have {
			hostexec.FillAs(t, to, n, coll.Identity(op, t))
			src = dst
		}
		return true, AllReduceSlice(c, dst, src, op)
	}
	p, err := c.c.EnterHost("AllReduceIf", 0, op, (n+1)*size)
	if err != nil {
		return false, err
	}
	packed := unsafe.Slice((*T)(p), n+1) // the vote, and then the numbers
	if have {
		copy(packed[1:], src)
	} else {
		hostexec.FillAs(t, unsafe.Add(p, size), n, coll.Identity(op, t))
	}
	packed[0] = vote[T](op, have)
	err = c.c.MakeHost(coll.Call{Kind: coll.AllReduce, Type: t, Op: op, N: n + 1, Dst: p, Src: p})
	if any = err == nil && packed[0] != vote[T](op, false); any {
		copy(dst, packed[1:])
	}
	c.c.LeaveHost()
	return any, err
}

// vote is a number that says whether a rank has something: op over several is vote(op, false) only where none has. Of up
// to 2^32 ranks sums of ones are no 0 in 32 bits, and none in the 16 of floats.
func vote[T Number](op Op, have bool) T {
	if op == Prod || op == Min {
		have = !have // any 0 makes it 0
	}
	if !have {
		return *new(T)
	}
	switch one := any(new(T)).(type) {
	case *F16:
		*one = ToF16(1)
		return any(*one).(T)
	case *BF16:
		*one = ToBF16(1)
		return any(*one).(T)
	}
	return 1
}
