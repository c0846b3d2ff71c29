package hostdata

import (
	"fmt"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/exec/hostexec"
)

// AllReduceSlice sets dst[i] to op over all ranks of src[i], on every rank. dst may be src, and may
// not otherwise overlap it. All ranks get the same bits.
// Source: mpi.h, MPI_Allreduce.
func AllReduceSlice[T Number](c spmd.Comm, dst, src []T, op spmd.Op) error {
	return reduce(c, "hostdata.AllReduceSlice", coll.AllReduce, dst, src, op, 0)
}

// ReduceSlice sets dst[i] to op over all ranks of src[i], on root. Elsewhere dst is not used and
// may be nil. On root dst may be src, and may not otherwise overlap it.
// Source: mpi.h, MPI_Reduce.
func ReduceSlice[T Number](c spmd.Comm, dst, src []T, op spmd.Op, root int) error {
	if c.Rank() != root {
		dst = nil
	}
	return reduce(c, "hostdata.ReduceSlice", coll.Reduce, dst, src, op, root)
}

// reduce makes a reduction of slices.
func reduce[T Number](c spmd.Comm, name string, kind coll.Kind, dst, src []T, op spmd.Op, root int) error {
	t := elem.Of[T]()
	to, from := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src))
	switch {
	case (kind == coll.AllReduce || c.Rank() == root) && len(dst) != len(src):
		return fmt.Errorf("%s: %s: dst has %d elements, src %d", ccall.At(), name, len(dst), len(src))
	case to != from && exec.Overlap(to, len(dst)*t.Size(), from, len(src)*t.Size()):
		return fmt.Errorf("%s: %s: dst of %d elements and src of %d overlap", ccall.At(), name, len(dst), len(src))
	}
	in := inside(c)
	if _, err := in.EnterHost(name, kind, root, t, op, 0); err != nil {
		return err
	}
	err := in.MakeHost(coll.Call{Kind: kind, Type: t, Op: op, Root: int32(root), N: len(src), Dst: to, Src: from})
	in.LeaveHost()
	return err
}

// AllReduceIf is AllReduceSlice over only the ranks whose have is true. any says on every rank
// whether there was one; if not, dst is unchanged. src has the length of dst if have is true; else
// it is not used and may be nil. dst has the same length on every rank, and may be src. There is no
// Avg.
//
// Up to 4 KiB the question and the numbers are one message: it costs what AllReduceSlice does.
// Longer numbers are not sent if no rank has anything.
func AllReduceIf[T Number](c spmd.Comm, have bool, dst, src []T, op spmd.Op) (any bool, err error) {
	t := elem.Of[T]()
	size := t.Size()
	n := len(dst)
	to, from := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src))
	switch {
	case have && len(src) != n:
		return false, fmt.Errorf("%s: hostdata.AllReduceIf: dst has %d elements, src %d", ccall.At(), n, len(src))
	case have && to != from && exec.Overlap(to, n*size, from, n*size):
		return false, fmt.Errorf("%s: hostdata.AllReduceIf: dst of %d elements and src of %d overlap", ccall.At(), n, n)
	case op == elem.Avg:
		return false, fmt.Errorf("%s: hostdata.AllReduceIf: %v is no operation of it: not every rank has values",
			ccall.At(), op)
	}
	const inOne = 4096
	if size == 1 || op == elem.Xor || (n+1)*size > inOne { // in a byte, votes would not add up; of two Xor makes none
		if any, err = Any(c, have); err != nil || !any {
			return any, err
		}
		if !have {
			hostexec.FillAs(t, to, n, coll.Identity(op, t))
			src = dst
		}
		return true, reduce(c, "hostdata.AllReduceIf", coll.AllReduce, dst, src, op, 0)
	}
	in := inside(c)
	p, err := in.EnterHost("hostdata.AllReduceIf", coll.AllReduce, 0, t, op, (n+1)*size)
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
	err = in.MakeHost(coll.Call{Kind: coll.AllReduce, Type: t, Op: op, N: n + 1, Dst: p, Src: p})
	if any = err == nil && packed[0] != vote[T](op, nothing); any {
		copy(dst, packed[1:])
	}
	in.LeaveHost()
	return any, err
}

const nothing = false

// vote returns a number that says whether a rank has something. op over several is
// vote(op, nothing) only if none has. Sums of ones of up to 2^32 ranks are not 0 in 32 bits, nor in
// the 16 of floats.
func vote[T Number](op spmd.Op, have bool) T {
	if op == elem.Prod || op == elem.Min || op == elem.And {
		have = !have // any 0 makes it 0
	}
	if !have {
		return *new(T)
	}
	switch one := any(new(T)).(type) {
	case *elem.F16:
		*one = elem.ToF16(1)
		return any(*one).(T)
	case *elem.BF16:
		*one = elem.ToBF16(1)
		return any(*one).(T)
	}
	return 1
}

// BroadcastSlice copies x of root to x on every rank. It has the same length on all.
// Source: mpi.h, MPI_Bcast.
func BroadcastSlice[T Number](c spmd.Comm, x []T, root int) error {
	return move(c, "hostdata.BroadcastSlice", coll.Broadcast, len(x), x, nil, root)
}

// AllGatherSlice sets dst to the src of all ranks, in rank order, on every rank. dst is as long as
// all of them together. src has the same length on all, and may be this rank's part of dst.
// Source: mpi.h, MPI_Allgather.
func AllGatherSlice[T Number](c spmd.Comm, dst, src []T) error {
	if c.Size() > 0 && len(dst) != c.Size()*len(src) {
		return fmt.Errorf("%s: hostdata.AllGatherSlice: dst has %d elements, src %d on each of %d ranks",
			ccall.At(), len(dst), len(src), c.Size())
	}
	return move(c, "hostdata.AllGatherSlice", coll.AllGather, len(src), dst, src, 0)
}

// GatherSlice sets dst to the src of all ranks, in rank order, on root. Elsewhere dst is not used
// and may be nil. src has the same length on all, and may be root's part of dst.
// Source: mpi.h, MPI_Gather.
func GatherSlice[T Number](c spmd.Comm, dst, src []T, root int) error {
	if c.Size() == 0 || c.Rank() != root {
		dst = nil
	} else if len(dst) != c.Size()*len(src) {
		return fmt.Errorf("%s: hostdata.GatherSlice: dst has %d elements, src %d on each of %d ranks",
			ccall.At(), len(dst), len(src), c.Size())
	}
	return move(c, "hostdata.GatherSlice", coll.Gather, len(src), dst, src, root)
}

// ScatterSlice sets dst, on each rank, to this rank's part of the src that root has. Elsewhere src
// is not used and may be nil. dst has the same length on all, and may be root's part of src.
// Source: mpi.h, MPI_Scatter.
func ScatterSlice[T Number](c spmd.Comm, dst, src []T, root int) error {
	if c.Size() == 0 || c.Rank() != root {
		src = nil
	} else if len(src) != c.Size()*len(dst) {
		return fmt.Errorf("%s: hostdata.ScatterSlice: src has %d elements, dst %d on each of %d ranks",
			ccall.At(), len(src), len(dst), c.Size())
	}
	return move(c, "hostdata.ScatterSlice", coll.Scatter, len(dst), dst, src, root)
}

// move makes a call that moves n elements from or to each rank.
func move[T Number](c spmd.Comm, name string, kind coll.Kind, n int, dst, src []T, root int) error {
	t := elem.Of[T]()
	call := coll.Call{Kind: kind, Type: t, Root: int32(root), N: n,
		Dst: unsafe.Pointer(unsafe.SliceData(dst)), Src: unsafe.Pointer(unsafe.SliceData(src))}
	if exec.Overlap(call.Dst, len(dst)*t.Size(), call.Src, len(src)*t.Size()) && !call.InPlace(c.Rank()) {
		return fmt.Errorf("%s: %s: dst of %d elements and src of %d overlap", ccall.At(), name, len(dst), len(src))
	}
	in := inside(c)
	if _, err := in.EnterHost(name, call.Kind, root, t, elem.Sum, 0); err != nil {
		return err
	}
	err := in.MakeHost(call)
	in.LeaveHost()
	return err
}
