package cudampi

import (
	"unsafe"

	"lockstep/internal/elem"
)

// The most elements of one MPI call; tests lower these. Larger calls are done in parts. A message
// of more than an int holds is one of a derived datatype (sys.h).
var (
	maxCount = 1 << 27 // of a collective, all ranks' parts together: libraries add them up, some in an int
	maxHalf  = 1 << 20 // of a reduction of 16-bit floats, which goes through float32 scratch memory
	maxSwap  = 1 << 20 // of one exchange within an in-place AllToAll, which MPI buffers
)

// reduceCount returns the most elements of one reduction.
func reduceCount(t elem.Type) int {
	if t.Half() {
		return min(maxCount, maxHalf)
	}
	return maxCount
}

// Barrier blocks until every rank of c has called it. Collective. Source: mpi.h, MPI_Barrier.
func (c *Comm) Barrier() error {
	const name = "MPI_Barrier"
	if err := c.Usable(name); err != nil {
		return err
	}
	return c.Check(name, sysBarrier(c.h))
}

// AllReduce sets dst[i] to op over all ranks of src[i], on every rank; dst and src have n elements.
//
// Collective; it blocks. In place: dst is src. Source: mpi.h, MPI_Allreduce.
func (c *Comm) AllReduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	const name = "MPI_Allreduce"
	if err := c.Ready(name, n, t, dst, src); err != nil {
		return err
	}
	if err := c.CheckOp(name, op, t); err != nil {
		return err
	}
	limit := reduceCount(t)
	for lo := 0; lo < n; lo += limit {
		if err := c.Check(name, sysAllReduce(c, elem.At(dst, lo, n-lo, t), elem.At(src, lo, n-lo, t),
			min(limit, n-lo), t, op)); err != nil {
			return err
		}
	}
	return nil
}

// Reduce sets dst[i] to op over all ranks of src[i], on the root; elsewhere dst is not used. dst
// and src have n elements.
//
// Collective; it blocks until this rank's src may change. In place: dst is src on the root. Source:
// mpi.h, MPI_Reduce.
func (c *Comm) Reduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op, root int) error {
	const name = "MPI_Reduce"
	if c.rank != root {
		dst = src
	}
	if err := c.Ready(name, n, t, dst, src); err != nil {
		return err
	}
	if err := c.CheckOp(name, op, t); err != nil {
		return err
	}
	if err := c.CheckRoot(name, root); err != nil {
		return err
	}
	return c.reduce(dst, src, n, t, op, root)
}

func (c *Comm) reduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op, root int) error {
	if c.rank != root {
		dst = nil // it may be shorter than the root's
	}
	limit := reduceCount(t)
	for lo := 0; lo < n; lo += limit {
		if err := c.Check("MPI_Reduce", sysReduce(c, elem.At(dst, lo, n-lo, t), elem.At(src, lo, n-lo, t),
			min(limit, n-lo), t, op, root)); err != nil {
			return err
		}
	}
	return nil
}

// Scan sets dst[i] to op over the ranks up to this one of src[i]; dst and src have n elements.
// There is no Avg.
//
// Collective; it blocks. In place: dst is src. Source: mpi.h, MPI_Scan.
func (c *Comm) Scan(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	if err := c.CheckScan(nameScan, dst, src, n, t, op); err != nil {
		return err
	}
	return c.scan(nameScan, dst, src, n, t, op)
}

// ExScan sets dst[i] to op over the ranks before this one of src[i]. On rank 0 dst is unchanged.
// There is no Avg.
//
// Collective; it blocks. In place: dst is src. Source: mpi.h, MPI_Exscan.
func (c *Comm) ExScan(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	if err := c.CheckScan(nameExScan, dst, src, n, t, op); err != nil {
		return err
	}
	return c.scan(nameExScan, dst, src, n, t, op)
}

const nameScan, nameExScan = "MPI_Scan", "MPI_Exscan"

func (c *Comm) scan(name string, dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	limit := reduceCount(t)
	for lo := 0; lo < n; lo += limit {
		if err := c.Check(name, sysScan(c, elem.At(dst, lo, n-lo, t), elem.At(src, lo, n-lo, t),
			min(limit, n-lo), t, op, name == nameExScan)); err != nil {
			return err
		}
	}
	return nil
}

// Broadcast copies the n elements at buf from the root to every rank.
//
// Collective; it blocks until this rank has the data, or on the root until buf may change. Source:
// mpi.h, MPI_Bcast.
func (c *Comm) Broadcast(buf unsafe.Pointer, n int, t elem.Type, root int) error {
	const name = "MPI_Bcast"
	if err := c.Ready(name, n, t, buf, buf); err != nil {
		return err
	}
	if err := c.CheckRoot(name, root); err != nil {
		return err
	}
	return c.broadcast(buf, n, t, root)
}

func (c *Comm) broadcast(buf unsafe.Pointer, n int, t elem.Type, root int) error {
	for lo := 0; lo < n; lo += maxCount {
		if err := c.Check("MPI_Bcast", sysBroadcast(c, elem.At(buf, lo, n-lo, t), min(maxCount, n-lo), t,
			root)); err != nil {
			return err
		}
	}
	return nil
}

// AllGather sets dst to the src of all ranks in rank order, on every rank. src has n elements, dst
// Size()*n.
//
// Collective; it blocks. In place: src is this rank's part of dst, dst[Rank()*n:]. Source: mpi.h,
// MPI_Allgather.
func (c *Comm) AllGather(dst, src unsafe.Pointer, n int, t elem.Type) error {
	const name = "MPI_Allgather"
	if err := c.Ready(name, n, t, dst, src); err != nil || n == 0 {
		return err
	}
	if n*c.size > maxCount {
		return c.bigAllGather(dst, src, Parts{Each: n}, t)
	}
	return c.Check(name, sysAllGather(c, dst, src, n, t, elem.IsAt(src, dst, c.rank*n, t)))
}

// ReduceScatter sets dst to this rank's part of op over all ranks of src. dst has n elements, src
// Size()*n: the part of rank r is src[r*n:(r+1)*n].
//
// Collective; it blocks. In place: dst is this rank's part of src; the other parts of src are
// unchanged. Source: mpi.h, MPI_Reduce_scatter_block.
func (c *Comm) ReduceScatter(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	const name = "MPI_Reduce_scatter_block"
	if err := c.Ready(name, n, t, dst, src); err != nil {
		return err
	}
	if err := c.CheckOp(name, op, t); err != nil || n == 0 {
		return err
	}
	if n*c.size > reduceCount(t) {
		return c.bigReduceScatter(dst, src, Parts{Each: n}, t, op)
	}
	return c.Check(name, sysReduceScatter(c, dst, src, n, t, op, elem.IsAt(dst, src, c.rank*n, t)))
}

// AllToAll sets part r of dst to this rank's part of the src of rank r. dst and src have Size()
// parts of n elements.
//
// Collective; it blocks. In place: dst is src. Source: mpi.h, MPI_Alltoall.
func (c *Comm) AllToAll(dst, src unsafe.Pointer, n int, t elem.Type) error {
	const name = "MPI_Alltoall"
	if err := c.Ready(name, n, t, dst, src); err != nil || n == 0 {
		return err
	}
	if n*c.size > maxCount {
		return c.bigAllToAll(dst, src, n, t)
	}
	return c.Check(name, sysAllToAll(c, dst, src, n, t))
}

// Gather sets dst on the root to the src of all ranks in rank order; elsewhere dst is not used. src
// has n elements, dst Size()*n.
//
// Collective; it blocks until this rank's src may change. In place: the root's src is its part of
// dst. Source: mpi.h, MPI_Gather.
func (c *Comm) Gather(dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	const name = "MPI_Gather"
	if c.rank != root {
		dst = src
	}
	if err := c.Ready(name, n, t, dst, src); err != nil {
		return err
	}
	if err := c.CheckRoot(name, root); err != nil || n == 0 {
		return err
	}
	if n*c.size > maxCount {
		return c.bigGather(dst, src, Parts{Each: n}, t, root)
	}
	return c.Check(name, sysGather(c, dst, src, n, t, root, c.rank == root && elem.IsAt(src, dst, root*n, t)))
}

// Scatter sets dst to this rank's part of the src of the root; elsewhere src is not used. dst has n
// elements, src Size()*n.
//
// Collective; it blocks until this rank has its part, or on the root until src may change. In
// place: the root's dst is its part of src. Source: mpi.h, MPI_Scatter.
func (c *Comm) Scatter(dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	const name = "MPI_Scatter"
	if c.rank != root {
		src = dst
	}
	if err := c.Ready(name, n, t, dst, src); err != nil {
		return err
	}
	if err := c.CheckRoot(name, root); err != nil || n == 0 {
		return err
	}
	if n*c.size > maxCount {
		return c.bigScatter(dst, src, Parts{Each: n}, t, root)
	}
	return c.Check(name, sysScatter(c, dst, src, n, t, root, c.rank == root && elem.IsAt(dst, src, root*n, t)))
}
