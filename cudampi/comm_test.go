package cudampi_test

import (
	"testing"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/cudampi/commtest"
	"lockstep/internal/elem"
)

func TestComms(t *testing.T) {
	onRanks(t, counts, func(t *testing.T, c *cudampi.Comm) {
		sum := func(c *cudampi.Comm) int64 {
			x := []int64{int64(c.Rank()) + 1}
			commtest.Must(t, c.AllReduce(commtest.Ptr(x), commtest.Ptr(x), 1, elem.Int64, elem.Sum))
			return x[0]
		}
		d, err := c.Dup()
		commtest.Must(t, err)
		if d.Rank() != c.Rank() || d.Size() != c.Size() {
			t.Fatalf("the duplicate is rank %d of %d, want %d of %d", d.Rank(), d.Size(), c.Rank(), c.Size())
		}
		if got, want := sum(d), int64(c.Size()*(c.Size()+1)/2); got != want {
			t.Fatalf("sum on the duplicate is %d, want %d", got, want)
		}
		commtest.Must(t, d.Close())
		commtest.Must(t, d.Close())

		// Even and odd ranks apart, in reverse order.
		s, err := c.Split(c.Rank()%2, -c.Rank())
		commtest.Must(t, err)
		size := (c.Size() + 1 - c.Rank()%2) / 2
		if s.Size() != size || s.Rank() != size-1-c.Rank()/2 {
			t.Fatalf("rank %d is rank %d of %d after the split", c.Rank(), s.Rank(), s.Size())
		}
		if got, want := sum(s), int64(size*(size+1)/2); got != want {
			t.Fatalf("sum on the split is %d, want %d", got, want)
		}
		commtest.Must(t, s.Close())

		color := -1
		if c.Rank() == 0 {
			color = 7
		}
		s, err = c.Split(color, 0)
		commtest.Must(t, err)
		if (s == nil) != (c.Rank() != 0) {
			t.Fatalf("rank %d of a split by color %d: %v", c.Rank(), color, s)
		}
		if s != nil {
			commtest.Must(t, s.Close())
		}

		s, err = c.SplitShared()
		commtest.Must(t, err)
		if s.Size() != c.Size() || s.Rank() != c.Rank() { // tests run on one machine
			t.Fatalf("rank %d of %d on this node", s.Rank(), s.Size())
		}
		commtest.Must(t, s.Close())
	})
}

func TestBroadcastID(t *testing.T) {
	onRanks(t, []int{1, 3}, func(t *testing.T, c *cudampi.Comm) {
		d, err := c.Dup()
		commtest.Must(t, err)
		for _, c := range []*cudampi.Comm{c, d} { // through gompi, and not
			root := c.Size() - 1
			var buf struct{ before, id, after [128]byte }
			if c.Rank() == root {
				for i := range buf.id {
					buf.id[i] = byte(i + 1)
				}
			}
			commtest.Must(t, c.BroadcastID(&buf.id, root))
			for i, b := range buf.id {
				if b != byte(i+1) {
					t.Fatalf("byte %d is %d", i, b)
				}
			}
			if buf.before != [128]byte{} || buf.after != [128]byte{} {
				t.Fatal("wrote outside of the id")
			}
			commtest.Refused(t, c, c.BroadcastID(&buf.id, c.Size()), "MPI_Bcast", cudampi.ErrRoot)
		}
		commtest.Must(t, d.Close())
	})
}

// TestRefusals calls everything wrongly. Nothing is sent, so that the ranks need not agree: an odd
// one out would hang.
func TestRefusals(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
		x := make([]float32, 16)
		p, f := commtest.Ptr(x), elem.Float32
		var nilp unsafe.Pointer
		if c.Rank() == 1 {
			commtest.Must(t, c.Barrier())
			return
		}
		for _, root := range []int{-1, 2, 1 << 40} {
			commtest.Refused(t, c, c.Broadcast(p, 1, f, root), "MPI_Bcast", cudampi.ErrRoot,
				"in a communicator of 2 ranks")
			commtest.Refused(t, c, c.Reduce(p, p, 1, f, elem.Sum, root), "MPI_Reduce", cudampi.ErrRoot, "2 ranks")
			commtest.Refused(t, c, c.Gather(p, p, 1, f, root), "MPI_Gather", cudampi.ErrRoot, "2 ranks")
			commtest.Refused(t, c, c.Scatter(p, p, 1, f, root), "MPI_Scatter", cudampi.ErrRoot, "2 ranks")
			commtest.Refused(t, c, c.GatherV(p, p, []int{1, 1}, f, root), "MPI_Gatherv", cudampi.ErrRoot, "2 ranks")
			commtest.Refused(t, c, c.ScatterV(p, p, []int{1, 1}, f, root), "MPI_Scatterv", cudampi.ErrRoot, "2 ranks")
		}
		commtest.Refused(t, c, c.Broadcast(p, 1, f, 5), "MPI_Bcast", cudampi.ErrRoot,
			"root 5 in a communicator of 2 ranks")
		var g cudampi.P2P
		for _, rank := range []int{-2, -1, 2} { // -1 and -2 mean any rank and none to MPI
			commtest.Refused(t, c, c.Send(p, 1, f, rank), "MPI_Send", cudampi.ErrRank, "2 ranks")
			commtest.Refused(t, c, c.Recv(p, 1, f, rank), "MPI_Recv", cudampi.ErrRank, "2 ranks")
			commtest.Refused(t, c, c.SendRecv(p, 1, rank, commtest.Ptr(x[8:]), 1, 0, f), "MPI_Sendrecv",
				cudampi.ErrRank, "2 ranks")
			commtest.Refused(t, c, c.SendRecv(p, 1, 0, commtest.Ptr(x[8:]), 1, rank, f), "MPI_Sendrecv",
				cudampi.ErrRank, "2 ranks")
			commtest.Refused(t, c, g.Send(c, p, 1, f, rank), "MPI_Isend", cudampi.ErrRank, "2 ranks")
			commtest.Refused(t, c, g.Recv(c, p, 1, f, rank), "MPI_Irecv", cudampi.ErrRank, "2 ranks")
		}
		commtest.Must(t, g.Wait())

		const op, ty = elem.Op(elem.HostOps), elem.Type(elem.Types)
		commtest.Refused(t, c, c.AllReduce(p, p, -1, f, elem.Sum), "MPI_Allreduce", cudampi.ErrCount, "-1 elements")
		commtest.Refused(t, c, c.AllReduce(p, p, 1, ty, elem.Sum), "MPI_Allreduce", cudampi.ErrType)
		commtest.Refused(t, c, c.AllReduce(p, p, 1, f, op), "MPI_Allreduce", cudampi.ErrOp)
		commtest.Refused(t, c, c.AllReduce(p, nilp, 1, f, elem.Sum), "MPI_Allreduce", cudampi.ErrBuffer, "1 elements")
		commtest.Refused(t, c, c.AllReduce(nilp, p, 1, f, elem.Sum), "MPI_Allreduce", cudampi.ErrBuffer)
		commtest.Refused(t, c, c.Reduce(p, p, 1, f, op, 0), "MPI_Reduce", cudampi.ErrOp)
		commtest.Refused(t, c, c.Reduce(nilp, p, 1, f, elem.Sum, 0), "MPI_Reduce", cudampi.ErrBuffer)
		commtest.Refused(t, c, c.Scan(p, p, 1, f, elem.Avg), "MPI_Scan", cudampi.ErrOp, "no avg")
		commtest.Refused(t, c, c.Scan(p, nil, 1, f, elem.Sum), "MPI_Scan", cudampi.ErrBuffer)
		commtest.Refused(t, c, c.ExScan(p, p, 1, f, op), "MPI_Exscan", cudampi.ErrOp)
		commtest.Refused(t, c, c.ReduceScatter(p, p, 1, f, op), "MPI_Reduce_scatter_block", cudampi.ErrOp)
		commtest.Refused(t, c, c.ReduceScatter(p, nilp, 1, f, elem.Sum), "MPI_Reduce_scatter_block", cudampi.ErrBuffer)
		commtest.Refused(t, c, c.AllGather(nilp, p, 1, f), "MPI_Allgather", cudampi.ErrBuffer)
		commtest.Refused(t, c, c.AllToAll(p, nilp, 1, f), "MPI_Alltoall", cudampi.ErrBuffer)
		commtest.Refused(t, c, c.Send(p, cudampi.MaxElems+1, f, 1), "MPI_Send", cudampi.ErrCount)
		commtest.Refused(t, c, c.Recv(nilp, 1, f, 1), "MPI_Recv", cudampi.ErrBuffer)

		one := []int{1}
		commtest.Refused(t, c, c.AllGatherV(p, p, one, f), "MPI_Allgatherv", cudampi.ErrCount,
			"1 counts for a communicator of 2 ranks")
		commtest.Refused(t, c, c.ReduceScatterV(p, p, []int{1, 2, 3}, f, elem.Sum), "MPI_Reduce_scatter",
			cudampi.ErrCount, "3 counts", "2 ranks")
		commtest.Refused(t, c, c.ReduceScatterV(p, p, []int{1, 2}, f, op), "MPI_Reduce_scatter", cudampi.ErrOp)
		commtest.Refused(t, c, c.GatherV(p, p, []int{1, -2}, f, 0), "MPI_Gatherv", cudampi.ErrCount,
			"-2 elements of rank 1")
		commtest.Refused(t, c, c.ScatterV(p, p, nil, f, 0), "MPI_Scatterv", cudampi.ErrCount, "0 counts")
		commtest.Refused(t, c, c.ScatterV(p, nilp, []int{0, 1}, f, 0), "MPI_Scatterv", cudampi.ErrBuffer)
		commtest.Refused(t, c, c.AllGatherV(nilp, nilp, []int{0, 1}, f), "MPI_Allgatherv", cudampi.ErrBuffer)
		commtest.Refused(t, c, c.AllToAllV(p, one, commtest.Ptr(x[8:]), []int{1, 1}, f), "MPI_Alltoallv",
			cudampi.ErrCount)
		commtest.Refused(t, c, c.AllToAllV(p, []int{1, 1}, commtest.Ptr(x[8:]), one, f), "MPI_Alltoallv",
			cudampi.ErrCount)
		commtest.Refused(t, c, c.AllToAllV(p, []int{1, 1}, p, []int{1, 1}, f), "MPI_Alltoallv", cudampi.ErrBuffer,
			"in-place")
		commtest.Refused(t, c, c.AllToAllV(p, []int{3, 1}, commtest.Ptr(x[8:]), []int{2, 1}, f),
			"MPI_Alltoallv", cudampi.ErrCount, "sends 2", "3 expected")
		commtest.Refused(t, c, c.SendRecv(p, 1, 1, p, 1, 1, f), "MPI_Sendrecv", cudampi.ErrBuffer, "in-place")
		_, err := c.Split(1<<40, 0)
		commtest.Refused(t, c, err, "MPI_Comm_split", cudampi.ErrArg, "1099511627776")

		commtest.Must(t, c.Barrier()) // everything still works
	})
}

func TestFreedComm(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
		d, err := c.Dup()
		commtest.Must(t, err)
		commtest.Must(t, d.Close())
		x := []float32{1}
		commtest.Refused(t, d, d.AllReduce(commtest.Ptr(x), commtest.Ptr(x), 1, elem.Float32, elem.Sum),
			"MPI_Allreduce", cudampi.ErrComm, "freed")
		commtest.Refused(t, d, d.Barrier(), "MPI_Barrier", cudampi.ErrComm, "freed")
		commtest.Refused(t, d, d.AllGatherV(commtest.Ptr(x), commtest.Ptr(x), []int{1, 1}, elem.Float32),
			"MPI_Allgatherv", cudampi.ErrComm, "freed")
		_, err = d.Dup()
		commtest.Refused(t, d, err, "MPI_Comm_dup", cudampi.ErrComm, "freed")
		_, err = d.Split(0, 0)
		commtest.Refused(t, d, err, "MPI_Comm_split", cudampi.ErrComm, "freed")
		_, err = d.SplitShared()
		commtest.Refused(t, d, err, "MPI_Comm_split_type", cudampi.ErrComm, "freed")
		commtest.Refused(t, d, d.BroadcastID(new([128]byte), 0), "MPI_Bcast", cudampi.ErrComm, "freed")
	})
}

// TestMPIErrors is about failures that MPI itself finds: they come back as errors, with MPI's
// class.
func TestMPIErrors(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
		d, err := c.Dup()
		commtest.Must(t, err)
		for _, c := range []*cudampi.Comm{c, d} {
			// A root that this package would refuse, given to MPI as it is.
			x := []float32{1}
			commtest.Refused(t, c, c.BroadcastRaw(commtest.Ptr(x), 1, elem.Float32, 77), "MPI_Bcast", cudampi.ErrRoot)
			commtest.Refused(t, c, c.SendRaw(commtest.Ptr(x), 1, elem.Float32, 77), "MPI_Send", cudampi.ErrRank)
		}
		commtest.Must(t, d.Close())
	})
}
