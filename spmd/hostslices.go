package spmd

import (
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/coll"
)

// MinLoc returns the least x of all ranks, and the first rank that has it, the same on every rank.
// A NaN wins, and -0 is less than 0, as in Min.
//
// Collective, blocking. A stream of c has no part in it.
// Source: mpi.h, MPI_MINLOC.
func MinLoc[T Ordered](c Comm, x T) (least T, rank int, err error) {
	return calls.Locate(c.c, "MinLoc", x, Min)
}

// MaxLoc is MinLoc of the greatest x.
//
// Collective, blocking. A stream of c has no part in it.
// Source: mpi.h, MPI_MAXLOC.
func MaxLoc[T Ordered](c Comm, x T) (greatest T, rank int, err error) {
	return calls.Locate(c.c, "MaxLoc", x, Max)
}

// BroadcastSlice copies x of root to x on every rank. It has the same length on all.
//
// Collective, blocking. A stream of c has no part in it.
// Source: mpi.h, MPI_Bcast.
func BroadcastSlice[T Number](c Comm, x []T, root int) error {
	return calls.MoveSlice(c.c, "BroadcastSlice", coll.Broadcast, len(x), x, nil, root)
}

// AllGatherSlice sets dst to the src of all ranks, in rank order, on every rank. dst is as long as
// all of them together. src has the same length on all, and may be this rank's part of dst.
//
// Collective, blocking. A stream of c has no part in it.
// Source: mpi.h, MPI_Allgather.
func AllGatherSlice[T Number](c Comm, dst, src []T) error {
	if c.Size() > 0 && len(dst) != c.Size()*len(src) {
		return fmt.Errorf("%s: AllGatherSlice: dst has %d elements, src %d on each of %d ranks",
			ccall.At(), len(dst), len(src), c.Size())
	}
	return calls.MoveSlice(c.c, "AllGatherSlice", coll.AllGather, len(src), dst, src, 0)
}

// GatherSlice sets dst to the src of all ranks, in rank order, on root. Elsewhere dst is not used
// and may be nil. src has the same length on all, and may be root's part of dst.
//
// Collective, blocking. A stream of c has no part in it.
// Source: mpi.h, MPI_Gather.
func GatherSlice[T Number](c Comm, dst, src []T, root int) error {
	if c.Size() == 0 || c.Rank() != root {
		dst = nil
	} else if len(dst) != c.Size()*len(src) {
		return fmt.Errorf("%s: GatherSlice: dst has %d elements, src %d on each of %d ranks",
			ccall.At(), len(dst), len(src), c.Size())
	}
	return calls.MoveSlice(c.c, "GatherSlice", coll.Gather, len(src), dst, src, root)
}

// ScatterSlice sets dst, on each rank, to this rank's part of the src that root has. Elsewhere src
// is not used and may be nil. dst has the same length on all, and may be root's part of src.
//
// Collective, blocking. A stream of c has no part in it.
// Source: mpi.h, MPI_Scatter.
func ScatterSlice[T Number](c Comm, dst, src []T, root int) error {
	if c.Size() == 0 || c.Rank() != root {
		src = nil
	} else if len(src) != c.Size()*len(dst) {
		return fmt.Errorf("%s: ScatterSlice: src has %d elements, dst %d on each of %d ranks",
			ccall.At(), len(src), len(dst), c.Size())
	}
	return calls.MoveSlice(c.c, "ScatterSlice", coll.Scatter, len(dst), dst, src, root)
}
