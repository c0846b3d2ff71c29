package spmd_test

import (
	"cmp"
	"testing"

	"lockstep/internal/commtest"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
)

// TestOperandsOnStacks: operands of a call may be variables of a function, though the stack that
// they would lie on moves. So may the framework's own copy of the call.
func TestOperandsOnStacks(t *testing.T) {
	everyKind(t, []int{3}, func(t *testing.T, w *spmd.World) {
		c, me, next, prev := w.Comm(), w.Rank(), (w.Rank()+1)%3, (w.Rank()+2)%3
		one, three, to := alloc[int64](t, w, 1), alloc[int64](t, w, 3), alloc[int64](t, w, 3)
		s := stream(t, w, "stacks")
		ones := []int{1, 1, 1}
		// on makes a call of buffers of one element, or of one for each rank, blocking and on a
		// stream.
		on := func(name string, want int64, call func(c spmd.Comm, dst, src spmd.Buffer[int64]) error) commtest.Case {
			return commtest.Case{Name: name, Call: func() error {
				for _, c := range []spmd.Comm{c, c.On(s)} {
					for i := range 3 {
						three.Set(i, int64(me+1))
					}
					one.Set(0, int64(me+1))
					to.Set(0, 0)
					if err := cmp.Or(call(c, to, three), s.Synchronize()); err != nil {
						return err
					}
					if err := commtest.Is(to.At(0), want); err != nil {
						return err
					}
				}
				return nil
			}}
		}
		part := func(b spmd.Buffer[int64]) spmd.Buffer[int64] { return b.Slice(0, 1) }
		root := func(v int64) int64 { // of a result that rank 1 alone gets
			if me == 1 {
				return v
			}
			return 0
		}
		cases := []commtest.Case{
			on("AllReduce", 6, func(c spmd.Comm, dst, _ spmd.Buffer[int64]) error {
				return spmd.AllReduce(c, part(dst), one, spmd.Sum)
			}),
			on("Reduce", root(6), func(c spmd.Comm, dst, _ spmd.Buffer[int64]) error {
				return spmd.Reduce(c, part(dst), one, spmd.Sum, 1)
			}),
			on("Broadcast", 2, func(c spmd.Comm, dst, _ spmd.Buffer[int64]) error {
				return cmp.Or(spmd.Copy(s, part(dst), one), s.Synchronize(), spmd.Broadcast(c, part(dst), 1))
			}),
			on("AllGather", 1, func(c spmd.Comm, dst, _ spmd.Buffer[int64]) error {
				return spmd.AllGather(c, dst, one)
			}),
			on("AllGatherV", 1, func(c spmd.Comm, dst, _ spmd.Buffer[int64]) error {
				return spmd.AllGatherV(c, dst, one, ones)
			}),
			on("ReduceScatter", 6, func(c spmd.Comm, dst, src spmd.Buffer[int64]) error {
				return spmd.ReduceScatter(c, part(dst), src, spmd.Sum)
			}),
			on("ReduceScatterV", 6, func(c spmd.Comm, dst, src spmd.Buffer[int64]) error {
				return spmd.ReduceScatterV(c, part(dst), src, ones, spmd.Sum)
			}),
			on("AllToAll", 1, func(c spmd.Comm, dst, src spmd.Buffer[int64]) error {
				return spmd.AllToAll(c, dst, src)
			}),
			on("AllToAllV", 1, func(c spmd.Comm, dst, src spmd.Buffer[int64]) error {
				return spmd.AllToAllV(c, dst, src, ones, ones)
			}),
			on("Gather", root(1), func(c spmd.Comm, dst, _ spmd.Buffer[int64]) error {
				return spmd.Gather(c, dst, one, 1)
			}),
			on("GatherV", root(1), func(c spmd.Comm, dst, _ spmd.Buffer[int64]) error {
				return spmd.GatherV(c, dst, one, ones, 1)
			}),
			on("Scatter", 2, func(c spmd.Comm, dst, src spmd.Buffer[int64]) error {
				return spmd.Scatter(c, part(dst), src, 1)
			}),
			on("ScatterV", 2, func(c spmd.Comm, dst, src spmd.Buffer[int64]) error {
				return spmd.ScatterV(c, part(dst), src, ones, 1)
			}),
			on("Scan", int64((me+1)*(me+2)/2), func(c spmd.Comm, dst, _ spmd.Buffer[int64]) error {
				return spmd.Scan(c, part(dst), one, spmd.Sum)
			}),
			on("ExScan", int64(me*(me+1)/2), func(c spmd.Comm, dst, _ spmd.Buffer[int64]) error {
				return spmd.ExScan(c, part(dst), one, spmd.Sum)
			}),
			on("SendRecv", int64(prev+1), func(c spmd.Comm, dst, _ spmd.Buffer[int64]) error {
				return spmd.SendRecv(c, part(dst), prev, one, next)
			}),
			on("Send and Recv", int64(prev+1), func(c spmd.Comm, dst, _ spmd.Buffer[int64]) error {
				if me == 0 {
					return cmp.Or(spmd.Send(c, one, next), spmd.Recv(c, part(dst), prev))
				}
				return cmp.Or(spmd.Recv(c, part(dst), prev), spmd.Send(c, one, next))
			}),
			on("Group", int64(prev+1), func(c spmd.Comm, dst, _ spmd.Buffer[int64]) error {
				return c.Group(func() error {
					return cmp.Or(spmd.AllReduce(c, dst.Slice(1, 2), one, spmd.Sum),
						spmd.Send(c, one, next), spmd.Recv(c, part(dst), prev))
				})
			}),
			{Name: "Barrier", Call: func() error {
				return cmp.Or(spmd.Barrier(c), spmd.Barrier(c.On(s)), s.Synchronize())
			}},
			{Name: "hostdata.AllReduce", Call: func() error {
				sum, err := hostdata.AllReduce(c, me, spmd.Sum)
				return cmp.Or(err, commtest.Is(sum, 3))
			}},
			{Name: "BroadcastNumber", Call: func() error {
				x, err := hostdata.Broadcast(c, me, 2)
				return cmp.Or(err, commtest.Is(x, 2))
			}},
			{Name: "AllGatherNumber", Call: func() error {
				all, err := hostdata.AllGather(c, me)
				return cmp.Or(err, commtest.Is([3]int(all), [3]int{0, 1, 2}))
			}},
			{Name: "Any", Call: func() error {
				any, err := hostdata.Any(c, me == 2)
				return cmp.Or(err, commtest.Is(any, true))
			}},
			{Name: "AllReduceSlice", Call: func() error {
				x, y := [1]int{me}, [1]int{}
				err := hostdata.AllReduceSlice(c, y[:], x[:], spmd.Sum)
				return cmp.Or(err, commtest.Is(y, [1]int{3}))
			}},
			{Name: "ReduceSlice", Call: func() error {
				x, y := [1]int32{2}, [1]int32{}
				err := hostdata.ReduceSlice(c, y[:], x[:], spmd.Sum, 1)
				return cmp.Or(err, commtest.Is(int64(y[0]), root(6)))
			}},
			{Name: "AllReduceIf", Call: func() error {
				x, y := [1]float64{float64(me)}, [1]float64{}
				any, err := hostdata.AllReduceIf(c, me > 0, y[:], x[:], spmd.Sum)
				return cmp.Or(err, commtest.Is(any, true), commtest.Is(y, [1]float64{3}))
			}},
			{Name: "AllReduceIf of bytes", Call: func() error {
				x, y := [1]uint8{uint8(me)}, [1]uint8{}
				any, err := hostdata.AllReduceIf(c, me > 0, y[:], x[:], spmd.Max)
				return cmp.Or(err, commtest.Is(any, true), commtest.Is(y, [1]uint8{2}))
			}},
			{Name: "values", Call: func() error {
				x, err := hostdata.Broadcast(c, [1]int{me}, 2)
				if err != nil {
					return err
				}
				all, err := hostdata.AllGather(c, [1]int{me})
				return cmp.Or(err, commtest.Is(x, [1]int{2}), commtest.Is([3][1]int(all), [3][1]int{{0}, {1}, {2}}))
			}},
			{Name: "Split", Call: func() error {
				half, err := c.Split(min(me, 1), -me)
				if err != nil {
					return err
				}
				rank, size := half.Rank(), half.Size()
				return cmp.Or(half.Close(), commtest.Is([2]int{rank, size}, [][2]int{{0, 1}, {1, 2}, {0, 2}}[me]))
			}},
		}
		commtest.AtDepths(t, cases)
	})
}
