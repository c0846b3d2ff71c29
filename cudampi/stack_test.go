package cudampi_test

import (
	"cmp"
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/cudampi/commtest"
	"lockstep/internal/elem"
)

// TestOperandsOnStacks: a variable of a function may be an operand, though the stack that it would
// lie on moves.
func TestOperandsOnStacks(t *testing.T) {
	onRanks(t, []int{3}, func(t *testing.T, c *cudampi.Comm) {
		type P = unsafe.Pointer
		me, next, prev := c.Rank(), (c.Rank()+1)%3, (c.Rank()+2)%3
		mine, int64s, is := int64(me+1), elem.Int64, commtest.Is[int64]
		whole := [3]int64{mine, 10 * mine, 100 * mine} // rank r's parts are 1, 10 and 100 times r+1
		weight := []int64{1, 10, 100}[me]
		ones := []int{1, 1, 1}
		var g cudampi.P2P
		commtest.AtDepths(t, []commtest.Case{
			{Name: "All", Call: func() error {
				yes, err := c.All(me != 2)
				return cmp.Or(err, commtest.Is(yes, false))
			}},
			{Name: "FirstFailure", Call: func() error {
				var own error
				if me == 2 {
					own = errors.New("mine")
				}
				if err := c.FirstFailure(own); err == nil {
					return errors.New("no failure")
				}
				return nil
			}},
			{Name: "AllReduce", Call: func() error {
				x, y := mine, int64(0)
				err := c.AllReduce(P(&y), P(&x), 1, int64s, elem.Sum)
				return cmp.Or(err, is(y, 6), is(x, mine))
			}},
			{Name: "AllReduce in place", Call: func() error {
				x := int32(mine)
				err := c.AllReduce(P(&x), P(&x), 1, elem.Int32, elem.Prod)
				return cmp.Or(err, commtest.Is(x, 6))
			}},
			{Name: "Reduce", Call: func() error {
				x, y, want := mine, int64(0), int64(0)
				if me == 1 {
					want = 6
				}
				err := c.Reduce(P(&y), P(&x), 1, int64s, elem.Sum, 1)
				return cmp.Or(err, is(y, want))
			}},
			{Name: "Scan", Call: func() error {
				x, y := mine, int64(0)
				err := c.Scan(P(&y), P(&x), 1, int64s, elem.Sum)
				return cmp.Or(err, is(y, mine*(mine+1)/2))
			}},
			{Name: "ExScan", Call: func() error {
				x, y := mine, int64(0)
				err := c.ExScan(P(&y), P(&x), 1, int64s, elem.Sum)
				return cmp.Or(err, is(y, mine*(mine-1)/2))
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
			{Name: "AllGatherV", Call: func() error {
				x, all := mine, [3]int64{}
				err := c.AllGatherV(P(&all), P(&x), ones, int64s)
				return cmp.Or(err, commtest.Is(all, [3]int64{1, 2, 3}))
			}},
			{Name: "ReduceScatter", Call: func() error {
				x, y := whole, int64(0)
				err := c.ReduceScatter(P(&y), P(&x), 1, int64s, elem.Sum)
				return cmp.Or(err, is(y, 6*weight))
			}},
			{Name: "ReduceScatterV", Call: func() error {
				x, y := whole, int64(0)
				err := c.ReduceScatterV(P(&y), P(&x), ones, int64s, elem.Sum)
				return cmp.Or(err, is(y, 6*weight))
			}},
			{Name: "AllToAll", Call: func() error {
				x, y := whole, [3]int64{}
				err := c.AllToAll(P(&y), P(&x), 1, int64s)
				return cmp.Or(err, commtest.Is(y, [3]int64{weight, 2 * weight, 3 * weight}))
			}},
			{Name: "AllToAllV", Call: func() error {
				x, y := whole, [3]int64{}
				err := c.AllToAllV(P(&y), ones, P(&x), ones, int64s)
				return cmp.Or(err, commtest.Is(y, [3]int64{weight, 2 * weight, 3 * weight}))
			}},
			{Name: "Gather", Call: func() error {
				x, all := mine, [3]int64{}
				err := cmp.Or(c.Gather(P(&all), P(&x), 1, int64s, 1), c.GatherV(P(&all), P(&x), ones, int64s, 1))
				if me != 1 {
					return err
				}
				return cmp.Or(err, commtest.Is(all, [3]int64{1, 2, 3}))
			}},
			{Name: "Scatter", Call: func() error {
				x, y, z := whole, int64(0), int64(0)
				err := cmp.Or(c.Scatter(P(&y), P(&x), 1, int64s, 1), c.ScatterV(P(&z), P(&x), ones, int64s, 1))
				return cmp.Or(err, is(y, 2*weight), is(z, y))
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
			{Name: "Split", Call: func() error {
				half, err := c.Split(min(me, 1), -me)
				if err != nil {
					return err
				}
				return cmp.Or(half.Close(), commtest.Is(fmt.Sprint(half.Rank(), half.Size()),
					[]string{"0 1", "1 2", "0 2"}[me]))
			}},
		})
	})
}
