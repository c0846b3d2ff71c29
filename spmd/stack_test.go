package spmd_test

import (
	"cmp"
	"testing"

	"lockstep/cudampi/commtest"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/internal/coll"
)

// TestOperandsOnStacks: operands of a call may be variables of a function, though the stack that
// they would lie on moves. So may the framework's own copy of the call.
func TestOperandsOnStacks(t *testing.T) {
	everyKind(t, []int{3}, func(t *testing.T, w *spmd.World) {
		c, me, next, prev := w.Comm(), w.Rank(), (w.Rank()+1)%3, (w.Rank()+2)%3
		three, to := alloc[float32](t, w, 3), alloc[float32](t, w, 3)
		s := stream(t, w, "stacks")
		// on makes a call of buffers of one element for each rank, blocking and on a stream.
		on := func(name string, want int, call func(c spmd.Comm, dst, src floats) error) commtest.Case {
			return commtest.Case{Name: name, Call: func() error {
				for _, c := range []spmd.Comm{c, c.On(s)} {
					for i := range 3 {
						three.Set(i, float32(me+1))
					}
					to.Set(0, 0)
					if name == "Broadcast" {
						to.Set(0, float32(me+1))
					}
					if err := cmp.Or(call(c, to, three), s.Synchronize()); err != nil {
						return err
					}
					if err := commtest.Is(to.At(0), float32(want)); err != nil {
						return err
					}
				}
				return nil
			}}
		}
		part := func(b floats) floats { return b.Slice(0, 1) }
		root := func(v int) int { // of a result that rank 1 alone gets
			if me == 1 {
				return v
			}
			return 0
		}
		want := map[coll.Kind]int{coll.AllReduce: 6, coll.Reduce: root(6), coll.Broadcast: 2, coll.AllGather: 1,
			coll.AllGatherV: 1, coll.ReduceScatter: 6, coll.ReduceScatterV: 6, coll.AllToAll: 1, coll.AllToAllV: 1,
			coll.Gather: root(1), coll.GatherV: root(1), coll.Scatter: 2, coll.ScatterV: 2,
			coll.Scan: (me + 1) * (me + 2) / 2, coll.ExScan: me * (me + 1) / 2, coll.SendRecv: prev + 1}
		var cases []commtest.Case
		for _, call := range everyCall(1) {
			cases = append(cases, on(call.kind.String(), want[call.kind],
				func(c spmd.Comm, dst, src floats) error { return call.do(c, dst, src, 1) }))
		}
		cases = append(cases, []commtest.Case{
			on("Send and Recv", prev+1, func(c spmd.Comm, dst, src floats) error {
				if me == 0 {
					return cmp.Or(spmd.Send(c, part(src), next), spmd.Recv(c, part(dst), prev))
				}
				return cmp.Or(spmd.Recv(c, part(dst), prev), spmd.Send(c, part(src), next))
			}),
			on("Group", prev+1, func(c spmd.Comm, dst, src floats) error {
				return c.Group(func() error {
					return cmp.Or(spmd.AllReduce(c, dst.Slice(1, 2), part(src), spmd.Sum),
						spmd.Send(c, part(src), next), spmd.Recv(c, part(dst), prev))
				})
			}),
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
				return cmp.Or(err, commtest.Is(int(y[0]), root(6)))
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
		}...)
		commtest.AtDepths(t, cases)
	})
}
