package calls_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"lockstep/internal/commtest"
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

// TestRefused: what cannot be called says so on the spot, and nothing has begun.
func TestRefused(t *testing.T) {
	onRanks(t, 2, func(w *calls.Rank) error {
		x := make([]int32, 8)
		at := func(i int) unsafe.Pointer { return unsafe.Pointer(&x[i]) }
		var none *calls.Comm
		part, err := w.All.Split(w.All.Rank(), 0)
		if err != nil {
			return err
		}
		if err := part.Close(); err != nil {
			return err
		}
		sum := coll.Call{Kind: coll.AllReduce, Dst: at(0), Src: at(4), N: 4, Type: elem.Int32}
		over, unknown := sum, sum
		over.Src = at(2)
		unknown.Op = elem.Ops
		for _, tc := range []struct {
			c    *calls.Comm
			call coll.Call
			root int
			want string
		}{
			{none, sum, 0, "AllReduce: the zero Comm"},
			{part, sum, 0, "AllReduce: the communicator is closed"},
			{w.All, sum, 2, "AllReduce: rank 2 is not in the communicator of 2 ranks"},
			{w.All, over, 0, "AllReduce: dst of 4 elements and src of 4 overlap"},
			{w.All, unknown, 0, "no such operation of buffers"},
		} {
			err := tc.c.Do(nil, &calls.Request{Call: tc.call}, tc.root, 16, 16)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		}
		return comm{w.All, nil, false}.Barrier() // in its turn
	})
}

// TestSplit: a part has the ranks of one color, in the order of their keys, and its own calls.
func TestSplit(t *testing.T) {
	onRanks(t, 5, func(w *calls.Rank) error {
		me := w.All.Rank()
		part, err := w.All.Split(me%2, -me)
		if err != nil {
			return err
		}
		size := []int{3, 2}[me%2]
		if part.Size() != size || part.Rank() != size-1-me/2 {
			return fmt.Errorf("rank %d is %d of %d in its part", me, part.Rank(), part.Size())
		}
		commtest.Reductions[int64](t, comm{part, nil, false}, 67, elem.Sum)
		return part.Close()
	})
}
