package hybrid

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"lockstep/internal/commtest"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// TestTrees runs all collectives by each of the ways there are for short and for long ones, also between ranks of which those of
// a process do not follow each other, and with numbers of processes that are no power of two.
func TestTrees(t *testing.T) {
	on(t, some(t, []int{5, 3, 6}), func(processes int) []int { return []int{1 + processes%2} }, func(t *testing.T, c comm) {
		mixed, err := c.Split(0, rand.New(rand.NewPCG(7, 11)).Perm(c.Size())[c.Rank()])
		commtest.Must(t, err)
		for _, limit := range []int{0, 1000, 1 << 30} {
			commtest.Must(t, c.Barrier()) // nobody of this process is in a collective with the old limits
			if c.local.Rank() == 0 {
				short, tree = limit, limit
			}
			commtest.Must(t, c.Barrier())
			for _, x := range []comm{c, {mixed.(*Comm)}} {
				for _, n := range []int{1, 67, 300} {
					commtest.Reductions[int64](t, x, n, elem.Sum)
					commtest.Reductions[float64](t, x, n, elem.Avg)
					commtest.Reductions[uint8](t, x, n, elem.Max)
					commtest.Moves[int32](t, x, n)
				}
			}
		}
		commtest.Must(t, c.Barrier())
		if c.local.Rank() == 0 {
			short, tree = 16<<10, 256<<10
		}
	})
}

// TestNoAllocation: what calls of every kind need, short ones and ones with bodies, they have from the calls before.
func TestNoAllocation(t *testing.T) {
	each(t, func(t *testing.T, c comm) {
		const most = 3000
		size := c.Size()
		one, all, all2 := make([]float64, most), make([]float64, size*most), make([]float64, size*most)
		counts := make([]int, size)
		next, last := int32((c.Rank()+1)%size), int32((c.Rank()+size-1)%size)
		p, whole, other := commtest.Ptr(one), commtest.Ptr(all), commtest.Ptr(all2)
		for _, n := range []int{3, most} {
			for r := range counts {
				counts[r] = n
			}
			calls := []coll.Call{
				{Kind: coll.AllReduce, Dst: p, Src: p, N: n, Op: elem.Avg},
				{Kind: coll.AllReduce, Type: elem.BFloat16, Dst: p, Src: p, N: n},
				{Kind: coll.Reduce, Dst: p, Src: p, N: n, Op: elem.Max, Root: 1},
				{Kind: coll.Broadcast, Dst: p, N: n, Root: 2},
				{Kind: coll.AllGather, Dst: whole, Src: p, N: n},
				{Kind: coll.AllGatherV, Dst: whole, Src: p, Counts: counts},
				{Kind: coll.ReduceScatter, Dst: p, Src: whole, N: n},
				{Kind: coll.ReduceScatterV, Dst: p, Src: whole, Counts: counts},
				{Kind: coll.AllToAll, Dst: other, Src: whole, N: n},
				{Kind: coll.AllToAllV, Dst: other, Src: whole, Counts: counts, RecvCounts: counts},
				{Kind: coll.Gather, Dst: whole, Src: p, N: n, Root: 3},
				{Kind: coll.GatherV, Dst: whole, Src: p, Counts: counts, Root: 1},
				{Kind: coll.Scatter, Dst: p, Src: whole, N: n, Root: 3},
				{Kind: coll.ScatterV, Dst: p, Src: whole, Counts: counts},
				{Kind: coll.Scan, Dst: p, Src: p, N: n},
				{Kind: coll.ExScan, Dst: p, Src: p, N: n},
				{Kind: coll.SendRecv, Dst: other, RecvN: n, From: last, Src: p, N: n, Root: next},
				{Kind: coll.Barrier},
			}
			for i := range calls {
				if calls[i].Type == 0 {
					calls[i].Type = elem.Float64
				}
				if got := mallocs(t, c, &calls[i]); got != 0 {
					t.Errorf("%v allocates %d times", &calls[i], got)
				}
			}
		}
	})
}

// mallocs is how often the ranks of this process allocate in a call; 0 on all but one of them.
func mallocs(t *testing.T, c comm, call *coll.Call) uint64 {
	t.Helper()
	const times = 100
	barrier := coll.Call{Kind: coll.Barrier}
	var before, after runtime.MemStats
	for i := range 2 * times {
		if i == times {
			commtest.Must(t, c.Make(&barrier))
			if c.local.Rank() == 0 {
				runtime.ReadMemStats(&before)
			}
			commtest.Must(t, c.Make(&barrier))
		}
		commtest.Must(t, c.Make(call))
		if i%10 == 9 { // no rank has many messages that another has not got yet
			commtest.Must(t, c.Make(&barrier))
		}
	}
	commtest.Must(t, c.Make(&barrier))
	if c.local.Rank() == 0 {
		runtime.ReadMemStats(&after)
	}
	commtest.Must(t, c.Make(&barrier))
	return (after.Mallocs - before.Mallocs) / times
}
