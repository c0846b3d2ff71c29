package hybrid

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/internal/campaign"
	"lockstep/internal/ccall"
	"lockstep/internal/commtest"
	"lockstep/internal/elem"
)

// packing runs fn where nothing is packed, what is short, and all.
func packing(t *testing.T, c comm, fn func()) {
	t.Helper()
	was := mostPacked
	for _, most := range []int{0, 100, 1 << 30} {
		commtest.Must(t, c.Barrier())
		if c.local.Rank() == 0 {
			mostPacked = most
		}
		commtest.Must(t, c.Barrier())
		fn()
	}
	commtest.Must(t, c.Barrier())
	if c.local.Rank() == 0 {
		mostPacked = was
	}
}

// TestAllToAll exchanges between processes that have different numbers of ranks, which follow each other or do not.
func TestAllToAll(t *testing.T) {
	lists := [][]int{{0, 1, 2, 3, 4, 5}, {0, 1, 3}, {0, 1, 2, 3, 4}, {0, 2, 4}, {4, 0, 3, 1}, {5, 0}, {1}}
	lists = campaign.Some(t, "parts whose ranks exchange", lists, func(ranks []int) bool { return len(ranks) == 6 || len(ranks) == 4 || ranks[0] == 1 })
	each(t, func(t *testing.T, c comm) {
		packing(t, c, func() {
			for _, ranks := range lists {
				ranks := slices.Clone(ranks) // of all ranks of this process
				ranks = slices.DeleteFunc(ranks, func(r int) bool { return r >= c.Size() })
				key := slices.Index(ranks, c.Rank())
				part, err := c.Split(min(key, 0), key)
				commtest.Must(t, err)
				if part == nil {
					continue
				}
				p := comm{part.(*Comm)}
				for _, n := range append(commtest.Lengths, 5000) {
					commtest.Moves[uint8](t, p, n)
					commtest.Moves[elem.F16](t, p, n)
					commtest.Moves[float64](t, p, n)
				}
				exchangeUneven(t, p)
			}
		})
	})
}

// exchangeUneven has each rank give each other a number of elements of its own, often none.
func exchangeUneven(t *testing.T, c comm) {
	t.Helper()
	for round := range 20 {
		count := func(from, to int) int {
			random := rand.New(rand.NewPCG(uint64(round), uint64(from*100+to)))
			return max(0, random.IntN(40)-20) * []int{1, 1, 300}[random.IntN(3)]
		}
		value := func(from, to, i int) int32 { return int32((round*100+from)*1_000_000 + to*100_000 + i) }
		var give, get []int
		var src, want []int32
		for r := range c.Size() {
			give, get = append(give, count(c.Rank(), r)), append(get, count(r, c.Rank()))
			for i := range give[r] {
				src = append(src, value(c.Rank(), r, i))
			}
			for i := range get[r] {
				want = append(want, value(r, c.Rank(), i))
			}
		}
		dst, before := make([]int32, len(want)), slices.Clone(src)
		commtest.Must(t, c.AllToAllV(commtest.Ptr(dst), get, commtest.Ptr(src), give, elem.Int32))
		if !slices.Equal(dst, want) || !slices.Equal(src, before) {
			t.Errorf("round %d: rank %d of %d got something else", round, c.Rank(), c.Size())
		}
	}
}

// TestAllToAllMismatch: where a rank gives another what that does not expect, all ranks of the other's process learn it, and
// go on.
func TestAllToAllMismatch(t *testing.T) {
	each(t, func(t *testing.T, c comm) {
		packing(t, c, func() {
			for _, from := range []int{0, c.Size() - 2} { // of another process than the last rank, and of its own
				last := c.Size() - 1
				give, get := make([]int, c.Size()), make([]int, c.Size())
				for r := range give {
					give[r], get[r] = 30, 30
				}
				if c.Rank() == from {
					give[last] = 31
				}
				src, dst := make([]int32, 31*c.Size()), make([]int32, 31*c.Size())
				err := c.AllToAllV(commtest.Ptr(dst), get, commtest.Ptr(src), give, elem.Int32)
				switch {
				case c.mine < len(c.process)-1:
					commtest.Must(t, err)
				case err == nil || from == 0 && !errors.Is(err, ccall.ErrMismatch):
					t.Errorf("no mismatch: %v", err)
				}
				x := []int64{1}
				commtest.Must(t, c.AllReduce(commtest.Ptr(x), commtest.Ptr(x), 1, elem.Int64, elem.Sum))
				if x[0] != int64(c.Size()) {
					t.Errorf("a sum of %d", x[0])
				}
			}
		})
	})
}

// TestAllToAllNoAllocation: calls of warm ranks allocate next to nothing, packed and not.
func TestAllToAllNoAllocation(t *testing.T) {
	each(t, func(t *testing.T, c comm) {
		const n = 5000
		src, dst := make([]float32, n*c.Size()), make([]float32, n*c.Size())
		counts := make([]int, c.Size())
		for r := range counts {
			counts[r] = n
		}
		packing(t, c, func() {
			call := func() {
				commtest.Must(t, c.AllToAll(commtest.Ptr(dst), commtest.Ptr(src), n, elem.Float32))
				commtest.Must(t, c.AllToAllV(commtest.Ptr(dst), counts, commtest.Ptr(src), counts, elem.Float32))
			}
			for range 20 {
				call()
			}
			commtest.Must(t, c.Barrier())
			if c.local.Rank() > 0 {
				for range 101 {
					call()
				}
			} else if a := testing.AllocsPerRun(100, call); a != 0 { // of all ranks of the process, rounded down
				t.Errorf("%v allocations", a)
			}
		})
	})
}
