package shm

import (
	"testing"

	"lockstep/cudampi"
	"lockstep/cudampi/commtest"
	"lockstep/internal/elem"
)

var counts = []int{1, 2, 3, 4} // of ranks

func TestMain(m *testing.M) { commtest.Main(m) }

func BenchmarkLatency(b *testing.B) {
	base, err := cudampi.Start()
	commtest.Must(b, err)
	c, err := Share(base)
	commtest.Must(b, err)
	commtest.Latencies(b, c, &P2P{})
	commtest.Must(b, c.Close())
}

// onRanks is commtest.OnRanks with memory that is shared. Where each rank has a core it waits as it
// does outside of tests.
func onRanks(t *testing.T, ranks []int, fn func(t *testing.T, c *NodeComm)) {
	t.Helper()
	commtest.OnRanks(t, ranks, func(t *testing.T, c *cudampi.Comm) {
		t.Setenv(yieldEnv, "0")
		d, err := c.Dup()
		commtest.Must(t, err)
		s, err := Share(d)
		commtest.Must(t, err)
		fn(t, s)
		commtest.Must(t, s.Close())
		commtest.Must(t, s.Close())
	})
}

var classes = commtest.Classes{Buffer: cudampi.ErrBuffer, Count: cudampi.ErrCount, Truncate: cudampi.ErrTruncate}

func TestMessages(t *testing.T) {
	commtest.TypesLeft(t, len(counts), "messages through shared memory")
	onRanks(t, counts, func(t *testing.T, c *NodeComm) {
		var g P2P
		// 1022 of 8 bytes are the most through a ring
		for _, n := range append(commtest.Lengths, 7, 49, 1022, 1023, 20000) {
			commtest.EveryMessage(t, c, &g, n)
		}
	})
}

// TestGroupOverComms has groups of messages through two rings, and through a ring and MPI.
func TestGroupOverComms(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *NodeComm) {
		d, err := c.Dup()
		commtest.Must(t, err)
		commtest.GroupOverComms(t, c, &NodeComm{Comm: d}, &P2P{})
		s, err := Share(d)
		commtest.Must(t, err)
		commtest.GroupOverComms(t, c, s, &P2P{})
		commtest.Must(t, s.Close())
	})
}

func TestWrongLength(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *NodeComm) { commtest.WrongLength(t, c, &P2P{}, classes) })
}

func TestWrongType(t *testing.T) {
	onRanks(t, []int{2, 3}, func(t *testing.T, c *NodeComm) { commtest.WrongType(t, c, &P2P{}) })
}

func TestGroupIsReusable(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *NodeComm) { commtest.GroupIsReusable(t, c, &P2P{}, classes) })
}

func TestNoAllocation(t *testing.T) {
	onRanks(t, []int{1, 2}, func(t *testing.T, c *NodeComm) { commtest.NoAllocation(t, c, &P2P{}) })
}

// TestRefusals calls what shared memory carries wrongly. Nothing is
// sent: an odd one out would hang.
func TestRefusals(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *NodeComm) {
		x := make([]float32, 16)
		p, f := commtest.Ptr(x), elem.Float32
		refused := func(err error, op string, want error, texts ...string) {
			t.Helper()
			commtest.Refused(t, c, err, op, want, texts...)
		}
		const op, ty = elem.Op(elem.HostOps), elem.Type(elem.Types)
		if c.Rank() == 0 {
			refused(c.AllReduce(p, p, -1, f, elem.Sum), "MPI_Allreduce", cudampi.ErrCount, "-1 elements")
			refused(c.AllReduce(p, p, 1, ty, elem.Sum), "MPI_Allreduce", cudampi.ErrType)
			refused(c.AllReduce(p, p, 1, f, op), "MPI_Allreduce", cudampi.ErrOp)
			refused(c.AllReduce(p, nil, 1, f, elem.Sum), "MPI_Allreduce", cudampi.ErrBuffer, "1 elements")
			refused(c.ReduceScatter(p, p, 1, f, op), "MPI_Reduce_scatter_block", cudampi.ErrOp)
			refused(c.ReduceScatter(p, nil, 1, f, elem.Sum), "MPI_Reduce_scatter_block", cudampi.ErrBuffer)
			refused(c.Scan(p, p, 1, f, elem.Avg), "MPI_Scan", cudampi.ErrOp, "no avg")
			refused(c.ExScan(p, p, 1, f, op), "MPI_Exscan", cudampi.ErrOp)
			refused(c.AllGather(nil, p, 1, f), "MPI_Allgather", cudampi.ErrBuffer)
			refused(c.AllToAll(p, nil, 1, f), "MPI_Alltoall", cudampi.ErrBuffer)
			refused(c.Broadcast(p, 1, f, 2), "MPI_Bcast", cudampi.ErrRoot, "root 2 in a communicator of 2 ranks")
			refused(c.Broadcast(nil, 1, f, 0), "MPI_Bcast", cudampi.ErrBuffer)
			refused(c.Send(nil, 1, f, 1), "MPI_Send", cudampi.ErrBuffer)
			refused(c.Recv(p, -1, f, 1), "MPI_Recv", cudampi.ErrCount)
			var g P2P
			for _, rank := range []int{-2, -1, 2} {
				refused(c.Send(p, 1, f, rank), "MPI_Send", cudampi.ErrRank, "2 ranks")
				refused(c.Recv(p, 1, f, rank), "MPI_Recv", cudampi.ErrRank, "2 ranks")
				refused(c.SendRecv(p, 1, rank, commtest.Ptr(x[8:]), 1, 1, f), "MPI_Sendrecv", cudampi.ErrRank,
					"2 ranks")
				refused(c.SendRecv(p, 1, 1, commtest.Ptr(x[8:]), 1, rank, f), "MPI_Sendrecv", cudampi.ErrRank,
					"2 ranks")
				refused(g.Send(c, p, 1, f, rank), "MPI_Isend", cudampi.ErrRank, "2 ranks")
				refused(g.Recv(c, p, 1, f, rank), "MPI_Irecv", cudampi.ErrRank, "2 ranks")
			}
			refused(c.SendRecv(p, 1, 1, p, 1, 1, f), "MPI_Sendrecv", cudampi.ErrBuffer, "in-place")
		}
		commtest.Must(t, c.Barrier())
	})
}

func TestFreed(t *testing.T) {
	commtest.OnRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
		d, err := c.Dup()
		commtest.Must(t, err)
		s, err := Share(d)
		commtest.Must(t, err)
		commtest.Must(t, s.Close())
		x := []float32{1}
		p := commtest.Ptr(x)
		commtest.Refused(t, s, s.AllReduce(p, p, 1, elem.Float32, elem.Sum), "MPI_Allreduce", cudampi.ErrComm, "freed")
		commtest.Refused(t, s, s.Send(p, 1, elem.Float32, 1-s.Rank()), "MPI_Send", cudampi.ErrComm, "freed")
		commtest.Refused(t, s, s.Barrier(), "MPI_Barrier", cudampi.ErrComm, "freed")
	})
}
