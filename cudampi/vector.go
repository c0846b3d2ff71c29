package cudampi

import (
	"unsafe"

	"lockstep/internal/elem"
)

// total adds up the counts of a V form. It refuses counts that are not one for each rank, or out of
// range.
func (c *Comm) total(op string, counts []int) (int, error) {
	if err := c.Usable(op); err != nil {
		return 0, err
	}
	if len(counts) != c.size {
		return 0, c.Errorf(op, ErrCount, "%d counts for a communicator of %d ranks", len(counts), c.size)
	}
	sum := 0
	for r, n := range counts {
		if uint(n) > maxElems {
			return 0, c.Errorf(op, ErrCount, "%d elements of rank %d, but a count goes from 0 to %d", n, r, maxElems)
		}
		sum += n
	}
	return sum, nil
}

// AllGatherV sets dst to the src of all ranks in rank order, on every rank. src has counts[Rank()]
// elements, dst as many as all counts together.
//
// Collective; it blocks. In place: src is this rank's part of dst. Source: mpi.h, MPI_Allgatherv.
func (c *Comm) AllGatherV(dst, src unsafe.Pointer, counts []int, t elem.Type) error {
	const name = "MPI_Allgatherv"
	total, err := c.total(name, counts)
	if err != nil {
		return err
	}
	p := Parts{Counts: counts}
	if err := c.readyParts(name, dst, total, src, counts[c.rank], t); err != nil || total == 0 {
		return err
	}
	if total > maxCount {
		return c.bigAllGather(dst, src, p, t)
	}
	c.v.set(counts)
	return c.Check(name, sysAllGatherV(c, dst, src, t, elem.IsAt(src, dst, p.Offset(c.rank), t)))
}

// ReduceScatterV sets dst to this rank's part of op over all ranks of src. dst has counts[Rank()]
// elements, src as many as all counts together: the parts lie in rank order.
//
// Collective; it blocks. In place: dst is this rank's part of src; the other parts of src are
// unchanged. Source: mpi.h, MPI_Reduce_scatter.
func (c *Comm) ReduceScatterV(dst, src unsafe.Pointer, counts []int, t elem.Type, op elem.Op) error {
	const name = "MPI_Reduce_scatter"
	total, err := c.total(name, counts)
	if err != nil {
		return err
	}
	p := Parts{Counts: counts}
	if err := c.readyParts(name, src, total, dst, counts[c.rank], t); err != nil {
		return err
	}
	if err := c.CheckOp(name, op, t); err != nil || total == 0 {
		return err
	}
	if total > reduceCount(t) {
		return c.bigReduceScatter(dst, src, p, t, op)
	}
	c.v.set(counts)
	return c.Check(name, sysReduceScatterV(c, dst, src, total, t, op, elem.IsAt(dst, src, p.Offset(c.rank), t)))
}

// GatherV sets dst on the root to the src of all ranks in rank order; elsewhere dst is not used.
// src has counts[Rank()] elements, dst as many as all counts together.
//
// Collective; it blocks until this rank's src may change. In place: the root's src is its part of
// dst. Source: mpi.h, MPI_Gatherv.
func (c *Comm) GatherV(dst, src unsafe.Pointer, counts []int, t elem.Type, root int) error {
	const name = "MPI_Gatherv"
	total, err := c.total(name, counts)
	if err != nil {
		return err
	}
	if err := c.CheckRoot(name, root); err != nil {
		return err
	}
	p, whole := Parts{Counts: counts}, total
	if c.rank != root {
		dst, whole = nil, 0
	}
	if err := c.readyParts(name, dst, whole, src, counts[c.rank], t); err != nil || total == 0 {
		return err
	}
	if total > maxCount {
		return c.bigGather(dst, src, p, t, root)
	}
	c.v.set(counts)
	return c.Check(name, sysGatherV(c, dst, src, t, root, c.rank == root && elem.IsAt(src, dst, p.Offset(root), t)))
}

// ScatterV sets dst to this rank's part of the src of the root; elsewhere src is not used. dst has
// counts[Rank()] elements, src as many as all counts together: the parts lie in rank order.
//
// Collective; it blocks until this rank has its part, or on the root until src may change. In
// place: the root's dst is its part of src. Source: mpi.h, MPI_Scatterv.
func (c *Comm) ScatterV(dst, src unsafe.Pointer, counts []int, t elem.Type, root int) error {
	const name = "MPI_Scatterv"
	total, err := c.total(name, counts)
	if err != nil {
		return err
	}
	if err := c.CheckRoot(name, root); err != nil {
		return err
	}
	p, whole := Parts{Counts: counts}, total
	if c.rank != root {
		src, whole = nil, 0
	}
	if err := c.readyParts(name, src, whole, dst, counts[c.rank], t); err != nil || total == 0 {
		return err
	}
	if total > maxCount {
		return c.bigScatter(dst, src, p, t, root)
	}
	c.v.set(counts)
	return c.Check(name, sysScatterV(c, dst, src, t, root, c.rank == root && elem.IsAt(dst, src, p.Offset(root), t)))
}

// AllToAllV sets part r of dst to this rank's part of the src of rank r. The parts lie in rank
// order, in dst with recvCounts[r] elements, in src with sendCounts[r]. Rank r must send as many as
// are received, or the call fails with both numbers. Ranks that differ in the type wait for ever.
//
// Collective; it blocks. There is no in-place form. It is made of messages, since ranks whose
// totals differ could not agree on how to do a count beyond MPI's. Source: mpi.h, MPI_Irecv,
// MPI_Isend, MPI_Wait.
func (c *Comm) AllToAllV(
	dst unsafe.Pointer, recvCounts []int, src unsafe.Pointer, sendCounts []int, t elem.Type,
) error {
	const name = "MPI_Alltoallv"
	recvTotal, err := c.total(name, recvCounts)
	if err != nil {
		return err
	}
	sendTotal, err := c.total(name, sendCounts)
	if err != nil {
		return err
	}
	if err := c.readyParts(name, dst, recvTotal, src, sendTotal, t); err != nil {
		return err
	}
	if dst == src && recvTotal > 0 && sendTotal > 0 {
		return c.Errorf(name, ErrBuffer, "dst is src, %d and %d elements: there is no in-place form",
			recvTotal, sendTotal)
	}
	recv, send := Parts{Counts: recvCounts}, Parts{Counts: sendCounts}
	if r, s := recv.Len(c.rank), send.Len(c.rank); r != s {
		return c.Errorf(name, ErrCount, "rank %d sends %d %v elements to itself, %d expected", c.rank, s, t, r)
	}
	return c.exchange(dst, recv, src, send, t)
}

// readyParts is ready for two pieces of memory of different lengths.
func (c *Comm) readyParts(op string, a unsafe.Pointer, an int, b unsafe.Pointer, bn int, t elem.Type) error {
	if err := c.Ready(op, an, t, a, a); err != nil {
		return err
	}
	return c.Ready(op, bn, t, b, b)
}
