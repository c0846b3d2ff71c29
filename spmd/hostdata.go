package spmd

import (
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/coll"
)

// The functions of this file and of values.go reduce, broadcast and gather a program's own values
// on the host: counts, decisions, settings. They take no Buffer and no stream, and block. With a
// GPU they go through the host too: they wait neither for the GPU nor for work that is enqueued
// there.

// Number is the set of types that are reduced in the memory of the host, such as time.Duration.
type Number interface {
	Ordered | ~complex64 | ~complex128
}

// Ordered is the set of types of Number that have an order.
type Ordered interface {
	~int8 | ~uint8 | ~int32 | ~uint32 | ~int64 | ~uint64 | F16 | BF16 | ~float32 | ~float64 | ~int | ~uint
}

// AllReduceNumber returns op over all ranks of x, the same bits on every rank:
//
//	total, err := spmd.AllReduceNumber(w.Comm(), len(mine), spmd.Sum)
//
// Collective, blocking. A stream of c has no part in it.
// Source: mpi.h, MPI_Allreduce.
func AllReduceNumber[T Number](c Comm, x T, op Op) (T, error) {
	p, err := c.c.EnterHost("AllReduceNumber", 0, elem.TypeOf[T](), op, 16)
	if err != nil {
		return x, err
	}
	*(*T)(p) = x
	err = c.c.MakeHost(coll.Call{Kind: coll.AllReduce, Type: elem.TypeOf[T](), Op: op, N: 1, Dst: p, Src: p})
	x = *(*T)(p)
	c.c.LeaveHost()
	return x, err
}

// BroadcastNumber returns root's x, on every rank.
//
// Collective, blocking. A stream of c has no part in it.
// Source: mpi.h, MPI_Bcast.
func BroadcastNumber[T Number](c Comm, x T, root int) (T, error) {
	p, err := c.c.EnterHost("BroadcastNumber", root, elem.TypeOf[T](), Sum, 16)
	if err != nil {
		return x, err
	}
	*(*T)(p) = x
	err = c.c.MakeHost(coll.Call{Kind: coll.Broadcast, Type: elem.TypeOf[T](), Root: int32(root), N: 1, Dst: p})
	x = *(*T)(p)
	c.c.LeaveHost()
	return x, err
}

// AllGatherNumber returns the x of every rank, in rank order, on every rank.
//
// Collective, blocking. A stream of c has no part in it.
// Source: mpi.h, MPI_Allgather.
func AllGatherNumber[T Number](c Comm, x T) ([]T, error) {
	p, err := c.c.EnterHost("AllGatherNumber", 0, elem.TypeOf[T](), Sum, 16)
	if err != nil {
		return nil, err
	}
	*(*T)(p) = x
	all := make([]T, c.Size())
	dst := unsafe.Pointer(&all[0])
	err = c.c.MakeHost(coll.Call{Kind: coll.AllGather, Type: elem.TypeOf[T](), N: 1, Dst: dst, Src: p})
	c.c.LeaveHost()
	return all, err
}

// Any returns whether have is true on any rank, the same on every rank. It is for communication
// that is needed at times only:
//
//	if any, err := spmd.Any(w.Comm(), len(moved) > 0); err != nil || !any {
//		return err // on every rank: nobody has anything to say
//	}
//
// It waits for no stream, and costs no time of the device. For a few numbers in host memory
// AllReduceIf asks and reduces in one go.
//
// Collective, blocking. A stream of c has no part in it.
func Any(c Comm, have bool) (bool, error) { return calls.Any(c.c, have) }

// AllReduceSlice sets dst[i] to op over all ranks of src[i], on every rank. dst may be src, and may
// not otherwise overlap it. All ranks get the same bits.
//
// Collective, blocking. A stream of c has no part in it.
// Source: mpi.h, MPI_Allreduce.
func AllReduceSlice[T Number](c Comm, dst, src []T, op Op) error {
	return calls.ReduceSlice(c.c, "AllReduceSlice", coll.AllReduce, dst, src, op, 0)
}

// ReduceSlice sets dst[i] to op over all ranks of src[i], on root. Elsewhere dst is not used and
// may be nil. On root dst may be src, and may not otherwise overlap it.
//
// Collective, blocking. A stream of c has no part in it.
// Source: mpi.h, MPI_Reduce.
func ReduceSlice[T Number](c Comm, dst, src []T, op Op, root int) error {
	if c.Rank() != root {
		dst = nil
	}
	return calls.ReduceSlice(c.c, "ReduceSlice", coll.Reduce, dst, src, op, root)
}

// AllReduceIf is AllReduceSlice over only the ranks whose have is true. any says on every rank
// whether there was one; if not, dst is unchanged. src has the length of dst if have is true; else
// it is not used and may be nil. dst has the same length on every rank, and may be src. There is no
// Avg.
//
// Up to 4 KiB the question and the numbers are one message: it costs what AllReduceSlice does.
// Longer numbers are not sent if no rank has anything.
//
// Collective, blocking. A stream of c has no part in it.
func AllReduceIf[T Number](c Comm, have bool, dst, src []T, op Op) (any bool, err error) {
	return calls.AllReduceIf(c.c, have, dst, src, op)
}
