package trace_test

import (
	"slices"
	"testing"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/internal/testkit"
	"lockstep/spmd/internal/trace"
	"lockstep/spmd/internal/transport"
)

var must = testkit.Must

// The clocks of ranks on other nodes are found as they are, and also how they run apart.
func TestClocks(t *testing.T) {
	const hour = int64(3600e9)
	for _, n := range []int{2, 3} {
		must(t, transport.RunTeam(n, func(c *transport.Member) error {
			r := int64(c.Rank())
			// a thousandth faster for each rank
			clock := func() int64 { return trace.Now() + r*hour + trace.Now()/1000*r }
			first, err := trace.CompareClocks(c, c.Rank(), clock)
			if err != nil {
				return err
			}
			var before [3]int64
			before[0], before[1] = trace.Now(), clock()
			before[2] = trace.Now() - before[0] // by which that may be wrong itself
			for trace.Now() < before[0]+int64(20e6) {
			}
			last, err := trace.CompareClocks(c, c.Rank(), clock)
			if err != nil {
				return err
			}
			all := make([]int64, 3*n)
			if err := c.AllGather(unsafe.Pointer(&all[0]), unsafe.Pointer(&before[0]), 3, elem.Int64); err != nil ||
				c.Rank() != 0 {
				return err
			}
			for i := range first {
				k := trace.Clock{[2]int64{first[i].At, last[i].At}, [2]int64{first[i].Ahead, last[i].Ahead},
					max(first[i].Within, last[i].Within)}
				off, most := k.ToFirst(all[3*i+1])-all[3*i], k.Within+all[3*i+2]+2000
				if off < -most || off > most {
					t.Errorf("rank %d of %d: %d ns wrong, and within %d, of which the test's own %d",
						i, n, off, most, all[3*i+2])
				}
			}
			return nil
		}))
	}
}

// Ranks of one node have one clock.
func TestOneClock(t *testing.T) {
	must(t, transport.RunTeam(3, func(c *transport.Member) error {
		looks, err := trace.CompareClocks(c, 7, func() int64 { return 5 })
		if c.Rank() == 0 && !slices.Equal(looks, []trace.Look{{At: 5}, {At: 5}, {At: 5}}) {
			t.Errorf("%v", looks)
		}
		return err
	}))
}
