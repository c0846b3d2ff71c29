package shm

import (
	"cmp"
	"testing"
	"unsafe"

	"lockstep/cudampi/commtest"
	"lockstep/internal/elem"
)

// TestOperandsOnStacks: as in package cudampi, of what goes through memory that the ranks share.
// The two have no form in common: through an interface or a type parameter every operand is on the
// heap, whatever the method does with it.
func TestOperandsOnStacks(t *testing.T) {
	onRanks(t, []int{3}, func(t *testing.T, c *NodeComm) {
		type P = unsafe.Pointer
		me, next, prev := c.Rank(), (c.Rank()+1)%3, (c.Rank()+2)%3
		mine, int64s, is := int64(me+1), elem.Int64, commtest.Is[int64]
		var g P2P
		commtest.AtDepths(t, []commtest.Case{
			{Name: "All", Call: func() error {
				yes, err := c.All(me != 2)
				return cmp.Or(err, commtest.Is(yes, false))
			}},
			{Name: "AllReduce", Call: func() error {
				x, y := mine, int64(0)
				err := c.AllReduce(P(&y), P(&x), 1, int64s, elem.Sum)
				return cmp.Or(err, is(y, 6), is(x, mine))
			}},
			{Name: "Broadcast", Call: func() error {
				x := mine
				err := c.Broadcast(P(&x), 1, int64s, 2)
				return cmp.Or(err, is(x, 3))
			}},
			{Name: "AllGather", Call: func() error {
				x, all := mine, [3]int64{}
				err := c.AllGather(P(&all), P(&x), 1, int64s)
				return cmp.Or(err, commtest.Is(all, [3]int64{1, 2, 3}))
			}},
			{Name: "Send and Recv", Call: func() error {
				x, y := mine, int64(0)
				if me == 0 {
					err := cmp.Or(c.Send(P(&x), 1, int64s, next), c.Recv(P(&y), 1, int64s, prev))
					return cmp.Or(err, is(y, 3))
				}
				err := cmp.Or(c.Recv(P(&y), 1, int64s, prev), c.Send(P(&x), 1, int64s, next))
				return cmp.Or(err, is(y, int64(me)))
			}},
			{Name: "SendRecv", Call: func() error {
				x, y := mine, int64(0)
				err := c.SendRecv(P(&y), 1, prev, P(&x), 1, next, int64s)
				return cmp.Or(err, is(y, int64(prev+1)))
			}},
			{Name: "P2P", Call: func() error {
				x, y := mine, int64(0)
				err := cmp.Or(g.Recv(c, P(&y), 1, int64s, prev), g.Send(c, P(&x), 1, int64s, next), g.Wait())
				return cmp.Or(err, is(y, int64(prev+1)))
			}},
		})
	})
}
