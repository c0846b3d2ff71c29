package calls_test

import (
	"context"
	"strings"
	"testing"
	"unsafe"

	"lockstep/cudampi/commtest"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/internal/world"
)

// comm has the calls of a communicator of package cudampi, made by calls.Comm: by calls that block,
// on a queue, or in a Group on one.
type comm struct {
	*calls.Comm
	q       exec.Queue // nil for calls that block
	grouped bool
}

func (c comm) do(k coll.Kind, call coll.Call) error {
	call.Kind = k
	dst, src := call.Extents(c.Rank(), c.Size())
	one := func() error {
		return c.Do(c.q, &calls.Request{Call: call}, int(call.Root), dst*call.Type.Size(), src*call.Type.Size())
	}
	err := error(nil)
	if c.grouped {
		err = c.Group(c.q, one)
	} else {
		err = one()
	}
	if err == nil && c.q != nil {
		err = c.q.End().Wait()
	}
	return err
}

func (c comm) Barrier() error { return c.do(coll.Barrier, coll.Call{}) }
func (c comm) AllReduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return c.do(coll.AllReduce, coll.Call{Dst: dst, Src: src, N: n, Type: t, Op: op})
}
func (c comm) Reduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op, root int) error {
	return c.do(coll.Reduce, coll.Call{Dst: dst, Src: src, N: n, Type: t, Op: op, Root: int32(root)})
}
func (c comm) Scan(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return c.do(coll.Scan, coll.Call{Dst: dst, Src: src, N: n, Type: t, Op: op})
}
func (c comm) ExScan(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return c.do(coll.ExScan, coll.Call{Dst: dst, Src: src, N: n, Type: t, Op: op})
}
func (c comm) Broadcast(buf unsafe.Pointer, n int, t elem.Type, root int) error {
	return c.do(coll.Broadcast, coll.Call{Dst: buf, N: n, Type: t, Root: int32(root)})
}
func (c comm) AllGather(dst, src unsafe.Pointer, n int, t elem.Type) error {
	return c.do(coll.AllGather, coll.Call{Dst: dst, Src: src, N: n, Type: t})
}
func (c comm) AllGatherV(dst, src unsafe.Pointer, counts []int, t elem.Type) error {
	return c.do(coll.AllGatherV, coll.Call{Dst: dst, Src: src, Counts: counts, Type: t})
}
func (c comm) ReduceScatter(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return c.do(coll.ReduceScatter, coll.Call{Dst: dst, Src: src, N: n, Type: t, Op: op})
}
func (c comm) ReduceScatterV(dst, src unsafe.Pointer, counts []int, t elem.Type, op elem.Op) error {
	return c.do(coll.ReduceScatterV, coll.Call{Dst: dst, Src: src, Counts: counts, Type: t, Op: op})
}
func (c comm) AllToAll(dst, src unsafe.Pointer, n int, t elem.Type) error {
	return c.do(coll.AllToAll, coll.Call{Dst: dst, Src: src, N: n, Type: t})
}
func (c comm) AllToAllV(dst unsafe.Pointer, recvCounts []int, src unsafe.Pointer, sendCounts []int, t elem.Type) error {
	return c.do(coll.AllToAllV, coll.Call{Dst: dst, Src: src, Counts: sendCounts, RecvCounts: recvCounts, Type: t})
}
func (c comm) Gather(dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	return c.do(coll.Gather, coll.Call{Dst: dst, Src: src, N: n, Type: t, Root: int32(root)})
}
func (c comm) GatherV(dst, src unsafe.Pointer, counts []int, t elem.Type, root int) error {
	return c.do(coll.GatherV, coll.Call{Dst: dst, Src: src, Counts: counts, Type: t, Root: int32(root)})
}
func (c comm) Scatter(dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	return c.do(coll.Scatter, coll.Call{Dst: dst, Src: src, N: n, Type: t, Root: int32(root)})
}
func (c comm) ScatterV(dst, src unsafe.Pointer, counts []int, t elem.Type, root int) error {
	return c.do(coll.ScatterV, coll.Call{Dst: dst, Src: src, Counts: counts, Type: t, Root: int32(root)})
}
func (c comm) Send(src unsafe.Pointer, n int, t elem.Type, to int) error {
	return c.do(coll.Send, coll.Call{Src: src, N: n, Type: t, Root: int32(to)})
}
func (c comm) Recv(dst unsafe.Pointer, n int, t elem.Type, from int) error {
	return c.do(coll.Recv, coll.Call{Dst: dst, N: n, Type: t, Root: int32(from)})
}
func (c comm) SendRecv(dst unsafe.Pointer, recvN, from int, src unsafe.Pointer, sendN, to int, t elem.Type) error {
	call := coll.Call{Dst: dst, RecvN: recvN, From: int32(from), Src: src, N: sendN, Root: int32(to), Type: t}
	return c.do(coll.SendRecv, call)
}

// onRanks runs fn on ranks that are goroutines.
func onRanks(t *testing.T, ranks int, fn func(w *calls.Rank) error) {
	t.Helper()
	start := world.Start{Config: job.Flags{Device: "host", LogLevel: "error"}}
	run := func(_ context.Context, w *world.World) error { return fn(w.Rank()) }
	if err := world.Local(t.Context(), start, ranks, nil, run); err != nil {
		t.Errorf("%d ranks: %v", ranks, err)
	}
}

// TestCollectives makes every collective in each way that a program can. Package commtest has the
// references.
func TestCollectives(t *testing.T) {
	for _, ranks := range []int{1, 2, 3} {
		onRanks(t, ranks, func(w *calls.Rank) error {
			q, err := w.NewQueue("calls", exec.Normal)
			if err != nil {
				return err
			}
			for _, c := range []comm{{w.All, nil, false}, {w.All, nil, true}, {w.All, q, false}, {w.All, q, true}} {
				for _, n := range commtest.Lengths {
					commtest.Reductions[int32](t, c, n, elem.Sum)
					commtest.Reductions[float64](t, c, n, elem.Max)
					commtest.Moves[uint8](t, c, n)
				}
			}
			return w.CloseQueue(q)
		})
	}
}

// TestGroupOperands walks all pairs of calls that a Group takes, with each pair of their operands
// one element into each other, and side by side. It refuses a pair if an element of one is written
// that is another's too, and takes it else.
func TestGroupOperands(t *testing.T) {
	const ranks, n, far = 3, 4, 100
	onRanks(t, ranks, func(w *calls.Rank) error {
		q, err := w.NewQueue("calls", exec.Normal)
		if err != nil {
			return err
		}
		x, pairs := make([]int32, 2*far), 0
		call := func(k coll.Kind, dst, src int) coll.Call {
			c := coll.Call{Kind: k, Type: elem.Int32, N: n, RecvN: n, Root: 1, From: 2,
				Dst: unsafe.Pointer(&x[dst]), Src: unsafe.Pointer(&x[src])}
			if k.Traits().Lengths != coll.Equal {
				c.Counts, c.RecvCounts = []int{n, n, n}, []int{n, n, n}
			}
			return c
		}
		// touches says of each element that a call uses whether it writes it.
		touches := func(c *coll.Call) map[unsafe.Pointer]bool {
			all := map[unsafe.Pointer]bool{}
			dst, src := c.Extents(w.All.Rank(), ranks)
			for i := range src {
				all[unsafe.Add(c.Src, 4*i)] = false
			}
			for i := range dst {
				all[unsafe.Add(c.Dst, 4*i)] = c.Kind != coll.Broadcast || int(c.Root) != w.All.Rank()
			}
			return all
		}
		try := func(first, second coll.Call, shift int) {
			its, want := touches(&second), false
			for at, writes := range touches(&first) {
				other, both := its[at]
				want = want || both && (writes || other)
			}
			_, err := w.Capture(q, func() error { // which runs nothing
				return w.All.Group(q, func() error {
					for _, c := range []coll.Call{first, second} {
						dst, src := c.Extents(w.All.Rank(), ranks)
						if err := w.All.Do(q, &calls.Request{Call: c}, int(c.Root), 4*dst, 4*src); err != nil {
							return err
						}
					}
					return nil
				})
			})
			if refused := err != nil && strings.Contains(err.Error(), "overlap, and one is written"); refused != want ||
				err != nil && !refused {
				t.Errorf("rank %d: %v and %v, %d apart: %v, want it refused: %v", w.All.Rank(), &first, &second, shift,
					err, want)
			}
			pairs++
		}
		grouped := func(k coll.Kind) bool { return k != coll.None && k < coll.Group && k.Traits().Moves() }
		for a := range coll.Kind(coll.Kinds) {
			for b := range coll.Kind(coll.Kinds) {
				for shift := n - 1; shift <= n && grouped(a) && grouped(b); shift++ {
					try(call(a, 0, far), call(b, shift, far+50), shift)
					try(call(a, 0, far), call(b, far+50, shift), shift)
					try(call(a, far, 0), call(b, shift, far+50), shift)
					try(call(a, far, 0), call(b, far+50, shift), shift)
				}
			}
		}
		if pairs != 8*18*18 {
			t.Errorf("%d pairs", pairs)
		}
		return w.CloseQueue(q)
	})
}
