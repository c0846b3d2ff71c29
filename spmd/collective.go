package spmd

import (
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
)

// lengths is why a call is refused whose operands are to be equally long.
const lengths = "dst has %d elements, src %d"

// AllReduce sets dst[i] to op over all ranks of src[i], on every rank. dst may be
// src. All ranks get the same bits.
// Source: mpi.h, MPI_Allreduce; nccl.h, ncclAllReduce.
//
//go:noinline
func AllReduce[T Elem](c Comm, dst, src Buffer[T], op Op) error {
	if dst.Len() != src.Len() {
		return c.in().Refusef(coll.AllReduce, lengths, dst.Len(), src.Len())
	}
	cmd := calls.Request{Call: coll.Call{Kind: coll.AllReduce, Op: op, N: src.Len()}}
	return collective(c, &cmd, dst, src, 0)
}

// Reduce sets dst[i] to op over all ranks of src[i], on root. Elsewhere dst is
// not used and may be the zero Buffer. On root dst may be src.
// Source: mpi.h, MPI_Reduce; nccl.h, ncclReduce.
func Reduce[T Elem](c Comm, dst, src Buffer[T], op Op, root int) error {
	if c.Rank() != root {
		dst = Buffer[T]{}
	} else if dst.Len() != src.Len() {
		return c.in().Refusef(coll.Reduce, lengths, dst.Len(), src.Len())
	}
	cmd := calls.Request{Call: coll.Call{Kind: coll.Reduce, Op: op, N: src.Len()}}
	return collective(c, &cmd, dst, src, root)
}

// Broadcast copies root's buf to buf on every other rank.
// Source: mpi.h, MPI_Bcast; nccl.h, ncclBroadcast.
func Broadcast[T Elem](c Comm, buf Buffer[T], root int) error {
	cmd := calls.Request{Call: coll.Call{Kind: coll.Broadcast, N: buf.Len()}}
	return collective(c, &cmd, buf, Buffer[T]{}, root)
}

// AllGather sets dst on every rank to the src of all ranks, in rank order: dst has Size times the
// elements of src. In place, src is dst.Slice(rank*n, (rank+1)*n). Source: mpi.h, MPI_Allgather;
// nccl.h, ncclAllGather.
func AllGather[T Elem](c Comm, dst, src Buffer[T]) error {
	if dst.Len() != src.Len()*c.Size() {
		return c.in().Refusef(coll.AllGather, "dst has %d elements, src %d on each of %d ranks",
			dst.Len(), src.Len(), c.Size())
	}
	cmd := calls.Request{Call: coll.Call{Kind: coll.AllGather, N: src.Len()}}
	return collective(c, &cmd, dst, src, 0)
}

// ReduceScatter sets dst on rank r to the r-th of Size equal parts of op over all
// ranks of src. In place, dst is src.Slice(rank*n, (rank+1)*n).
// Source: mpi.h, MPI_Reduce_scatter_block; nccl.h, ncclReduceScatter.
func ReduceScatter[T Elem](c Comm, dst, src Buffer[T], op Op) error {
	if src.Len() != dst.Len()*c.Size() {
		return c.in().Refusef(coll.ReduceScatter, "src has %d elements, dst %d on each of %d ranks",
			src.Len(), dst.Len(), c.Size())
	}
	cmd := calls.Request{Call: coll.Call{Kind: coll.ReduceScatter, Op: op, N: dst.Len()}}
	return collective(c, &cmd, dst, src, 0)
}

// AllToAll sends the r-th of Size equal parts of src to rank r. The part from rank r goes into the
// r-th part of dst. dst may be src. Source: mpi.h, MPI_Alltoall; nccl.h, ncclAlltoAll.
func AllToAll[T Elem](c Comm, dst, src Buffer[T]) error {
	if dst.Len() != src.Len() {
		return c.in().Refusef(coll.AllToAll, lengths, dst.Len(), src.Len())
	}
	if err := c.in().Usable("AllToAll"); err != nil {
		return err
	}
	if src.Len()%c.Size() != 0 {
		return c.in().Refusef(coll.AllToAll, "%d elements do not divide by %d ranks", src.Len(), c.Size())
	}
	cmd := calls.Request{Call: coll.Call{Kind: coll.AllToAll, N: src.Len() / c.Size()}}
	return collective(c, &cmd, dst, src, 0)
}

// Gather sets dst on root to the src of all ranks, in rank order: dst has Size times the elements
// of src there. Elsewhere dst is not used and may be the zero Buffer. In place on root, src is
// dst.Slice(root*n, (root+1)*n). Source: mpi.h, MPI_Gather; nccl.h, ncclGather.
func Gather[T Elem](c Comm, dst, src Buffer[T], root int) error {
	if c.Rank() != root {
		dst = Buffer[T]{}
	} else if dst.Len() != src.Len()*c.Size() {
		return c.in().Refusef(coll.Gather, "dst has %d elements, src %d on each of %d ranks",
			dst.Len(), src.Len(), c.Size())
	}
	cmd := calls.Request{Call: coll.Call{Kind: coll.Gather, N: src.Len()}}
	return collective(c, &cmd, dst, src, root)
}

// Scatter sets dst on rank r to the r-th of Size equal parts of src on root.
// Elsewhere src is not used and may be the zero Buffer. In place on root, dst is
// src.Slice(root*n, (root+1)*n).
// Source: mpi.h, MPI_Scatter; nccl.h, ncclScatter.
func Scatter[T Elem](c Comm, dst, src Buffer[T], root int) error {
	if c.Rank() != root {
		src = Buffer[T]{}
	} else if src.Len() != dst.Len()*c.Size() {
		return c.in().Refusef(coll.Scatter, "src has %d elements, dst %d on each of %d ranks",
			src.Len(), dst.Len(), c.Size())
	}
	cmd := calls.Request{Call: coll.Call{Kind: coll.Scatter, N: dst.Len()}}
	return collective(c, &cmd, dst, src, root)
}

// AllGatherV is AllGather for unequal parts: rank r gives counts[r] elements.
// counts is the same on every rank; dst has their sum. In place, src is the
// rank's part of dst.
// Source: mpi.h, MPI_Allgatherv.
func AllGatherV[T Elem](c Comm, dst, src Buffer[T], counts []int) error {
	if err := c.in().CheckParts(coll.AllGatherV, counts, "dst", dst.Len(), "src", src.Len()); err != nil {
		return err
	}
	cmd := calls.Request{Call: coll.Call{Kind: coll.AllGatherV, Counts: counts}}
	return collective(c, &cmd, dst, src, 0)
}

// ReduceScatterV is ReduceScatter for unequal parts: rank r receives counts[r]
// elements. counts is the same on every rank; src has their sum. In place, dst is
// the rank's part of src.
// Source: mpi.h, MPI_Reduce_scatter.
func ReduceScatterV[T Elem](c Comm, dst, src Buffer[T], counts []int, op Op) error {
	if err := c.in().CheckParts(coll.ReduceScatterV, counts, "src", src.Len(), "dst", dst.Len()); err != nil {
		return err
	}
	cmd := calls.Request{Call: coll.Call{Kind: coll.ReduceScatterV, Op: op, Counts: counts}}
	return collective(c, &cmd, dst, src, 0)
}

// GatherV is Gather for unequal parts: rank r gives counts[r] elements. counts is
// the same on every rank; on root dst has their sum. In place as Gather.
// Source: mpi.h, MPI_Gatherv.
func GatherV[T Elem](c Comm, dst, src Buffer[T], counts []int, root int) error {
	whole := dst.Len()
	if c.Rank() != root {
		dst, whole = Buffer[T]{}, -1
	}
	if err := c.in().CheckParts(coll.GatherV, counts, "dst", whole, "src", src.Len()); err != nil {
		return err
	}
	cmd := calls.Request{Call: coll.Call{Kind: coll.GatherV, Counts: counts}}
	return collective(c, &cmd, dst, src, root)
}

// ScatterV is Scatter for unequal parts: rank r receives counts[r] elements.
// counts is the same on every rank; on root src has their sum. In place as Scatter.
// Source: mpi.h, MPI_Scatterv.
func ScatterV[T Elem](c Comm, dst, src Buffer[T], counts []int, root int) error {
	whole := src.Len()
	if c.Rank() != root {
		src, whole = Buffer[T]{}, -1
	}
	if err := c.in().CheckParts(coll.ScatterV, counts, "src", whole, "dst", dst.Len()); err != nil {
		return err
	}
	cmd := calls.Request{Call: coll.Call{Kind: coll.ScatterV, Counts: counts}}
	return collective(c, &cmd, dst, src, root)
}

// AllToAllV is AllToAll for unequal parts. src holds sendCounts[r] elements for rank r, and dst
// receives recvCounts[r] from it, both packed in rank order. sendCounts[r] here equals recvCounts
// of this rank there. dst and src must not overlap: there is no in-place form.
// Source: mpi.h, MPI_Isend and MPI_Irecv.
func AllToAllV[T Elem](c Comm, dst, src Buffer[T], recvCounts, sendCounts []int) error {
	if err := c.in().CheckCounts(coll.AllToAllV, "dst", dst.Len(), recvCounts); err != nil {
		return err
	}
	if err := c.in().CheckCounts(coll.AllToAllV, "src", src.Len(), sendCounts); err != nil {
		return err
	}
	if r := c.Rank(); sendCounts[r] != recvCounts[r] {
		return c.in().Refusef(coll.AllToAllV, "rank %d sends itself %d elements and receives %d",
			r, sendCounts[r], recvCounts[r])
	}
	cmd := calls.Request{Call: coll.Call{Kind: coll.AllToAllV, Counts: sendCounts, RecvCounts: recvCounts}}
	return collective(c, &cmd, dst, src, 0)
}

// Scan sets dst[i] on rank r to op over the ranks 0 to r of src[i]. dst may be src. There is no
// Avg. On a GPU it takes memory for Size+1 times the elements of src, which the stream keeps.
// Source: mpi.h, MPI_Scan.
func Scan[T Elem](c Comm, dst, src Buffer[T], op Op) error {
	return scan(c, coll.Scan, dst, src, op)
}

// ExScan sets dst[i] on rank r to op over the ranks before r of src[i]. On rank 0 dst is unchanged.
// dst may be src. There is no Avg. It takes memory as Scan does. Source: mpi.h, MPI_Exscan.
func ExScan[T Elem](c Comm, dst, src Buffer[T], op Op) error {
	return scan(c, coll.ExScan, dst, src, op)
}

func scan[T Elem](c Comm, kind coll.Kind, dst, src Buffer[T], op Op) error {
	switch {
	case dst.Len() != src.Len():
		return c.in().Refusef(kind, lengths, dst.Len(), src.Len())
	case op == Avg:
		return c.in().Refusef(kind, "%v is no operation of it: ranks add up different numbers of values", op)
	}
	cmd := calls.Request{Call: coll.Call{Kind: kind, Op: op, N: src.Len()}}
	return collective(c, &cmd, dst, src, 0)
}

// Send sends src to rank to, which receives it by Recv or SendRecv of equal type and length. It may
// return before that. Messages between two ranks arrive in the order sent, also those of no
// elements: each Send needs one Recv. Two ranks that both send first and then receive may wait for
// each other for ever: use a Group or SendRecv. If to is None nothing is sent. Source: mpi.h,
// MPI_Send; nccl.h, ncclSend.
func Send[T Elem](c Comm, src Buffer[T], to int) error {
	if c.in().Plain(c.queue(), src.block(), to) {
		return c.in().Message(coll.Send, src.addr(), src.Len(), elem.Of[T](), to)
	}
	if to == None {
		return c.in().LeaveOut(c.queue(), "Send", src.block(), nil)
	}
	cmd := calls.Request{Call: coll.Call{Kind: coll.Send, N: src.Len()}}
	return collective(c, &cmd, Buffer[T]{}, src, to)
}

// Recv receives dst from rank from. It waits for the message also if dst has no elements. If from
// is None, dst is unchanged.
//
// A message of another type is an error that names both types, on the host and of GPUs that MPI
// joins: NCCL and kernels between GPUs see no types, and --check does. A message of another length
// is an error that names both lengths, by kernels too. NCCL may wait for ever.
//
// Two ranks that both receive first wait for each other: use a Group. On the host they do so on
// different streams too, since calls enter MPI one at a time. Source: mpi.h, MPI_Recv; nccl.h,
// ncclRecv.
func Recv[T Elem](c Comm, dst Buffer[T], from int) error {
	if c.in().Plain(c.queue(), dst.block(), from) {
		return c.in().Message(coll.Recv, dst.addr(), dst.Len(), elem.Of[T](), from)
	}
	if from == None {
		return c.in().LeaveOut(c.queue(), "Recv", dst.block(), nil)
	}
	cmd := calls.Request{Call: coll.Call{Kind: coll.Recv, N: dst.Len()}}
	return collective(c, &cmd, dst, Buffer[T]{}, from)
}

// SendRecv sends src to rank to and receives dst from rank from at the same time. dst and src must
// not overlap. It sends and receives messages of no elements too. If to or from is None, that half
// is left out. Source: mpi.h, MPI_Sendrecv.
func SendRecv[T Elem](c Comm, dst Buffer[T], from int, src Buffer[T], to int) error {
	if from != None && (from < 0 || from >= c.Size()) {
		return c.in().Refuse("SendRecv", "from", from)
	}
	if exec.Overlap(dst.addr(), dst.Bytes(), src.addr(), src.Bytes()) {
		return fmt.Errorf("%s: SendRecv: dst of %d elements and src of %d overlap", ccall.At(), dst.Len(), src.Len())
	}
	if from == None || to == None {
		return half(c, dst, from, src, to)
	}
	cmd := calls.Request{Call: coll.Call{Kind: coll.SendRecv, N: src.Len(), RecvN: dst.Len(), From: int32(from)}}
	return collective(c, &cmd, dst, src, to)
}

// Barrier returns when every rank of c has called it. On a Comm with a stream it
// holds back that stream instead.
// Source: mpi.h, MPI_Barrier.
//
//go:noinline
func Barrier(c Comm) error {
	cmd := calls.Request{Call: coll.Call{Kind: coll.Barrier}}
	return collective(c, &cmd, Buffer[uint8]{}, Buffer[uint8]{}, 0)
}

// collective completes a command with what all of them share, and hands it to the communicator.
func collective[T Elem](c Comm, cmd *calls.Request, dst, src Buffer[T], root int) error {
	cmd.Type = elem.Of[T]()
	cmd.Dst, cmd.Src, cmd.DstBlock, cmd.SrcBlock = dst.addr(), src.addr(), dst.block(), src.block()
	return c.in().Do(c.queue(), cmd, root, dst.Bytes(), src.Bytes())
}
