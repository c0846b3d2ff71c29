package transport_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"lockstep/cudampi/commtest"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/internal/testkit"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/transport"
)

var (
	_ transport.Host   = (*transport.Member)(nil)
	_ transport.Ranks  = (*transport.Goroutine)(nil)
	_ control.Exchange = (*transport.Member)(nil)
)

// comm has the calls of a communicator of package cudampi, made by the transport.
type comm struct{ *transport.Member }

func (c comm) Barrier() error { return c.Do(nil, coll.Call{Kind: coll.Barrier}) }
func (c comm) Reduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op, root int) error {
	return c.Do(nil, coll.Call{Kind: coll.Reduce, Dst: dst, Src: src, N: n, Type: t, Op: op, Root: int32(root)})
}
func (c comm) Scan(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return c.Do(nil, coll.Call{Kind: coll.Scan, Dst: dst, Src: src, N: n, Type: t, Op: op})
}
func (c comm) ExScan(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return c.Do(nil, coll.Call{Kind: coll.ExScan, Dst: dst, Src: src, N: n, Type: t, Op: op})
}
func (c comm) ReduceScatter(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return c.Do(nil, coll.Call{Kind: coll.ReduceScatter, Dst: dst, Src: src, N: n, Type: t, Op: op})
}
func (c comm) ReduceScatterV(dst, src unsafe.Pointer, counts []int, t elem.Type, op elem.Op) error {
	return c.Do(nil, coll.Call{Kind: coll.ReduceScatterV, Dst: dst, Src: src, Counts: counts, Type: t, Op: op})
}
func (c comm) AllToAll(dst, src unsafe.Pointer, n int, t elem.Type) error {
	return c.Do(nil, coll.Call{Kind: coll.AllToAll, Dst: dst, Src: src, N: n, Type: t})
}
func (c comm) AllToAllV(dst unsafe.Pointer, recvCounts []int, src unsafe.Pointer, sendCounts []int, t elem.Type) error {
	return c.Do(nil, coll.Call{Kind: coll.AllToAllV, Dst: dst, Src: src, Counts: sendCounts, RecvCounts: recvCounts,
		Type: t})
}
func (c comm) Gather(dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	return c.Do(nil, coll.Call{Kind: coll.Gather, Dst: dst, Src: src, N: n, Type: t, Root: int32(root)})
}
func (c comm) GatherV(dst, src unsafe.Pointer, counts []int, t elem.Type, root int) error {
	return c.Do(nil, coll.Call{Kind: coll.GatherV, Dst: dst, Src: src, Counts: counts, Type: t, Root: int32(root)})
}
func (c comm) Scatter(dst, src unsafe.Pointer, n int, t elem.Type, root int) error {
	return c.Do(nil, coll.Call{Kind: coll.Scatter, Dst: dst, Src: src, N: n, Type: t, Root: int32(root)})
}
func (c comm) ScatterV(dst, src unsafe.Pointer, counts []int, t elem.Type, root int) error {
	return c.Do(nil, coll.Call{Kind: coll.ScatterV, Dst: dst, Src: src, Counts: counts, Type: t, Root: int32(root)})
}
func (c comm) Send(src unsafe.Pointer, n int, t elem.Type, to int) error {
	return c.Do(nil, coll.Call{Kind: coll.Send, Src: src, N: n, Type: t, Root: int32(to)})
}
func (c comm) Recv(dst unsafe.Pointer, n int, t elem.Type, from int) error {
	return c.Do(nil, coll.Call{Kind: coll.Recv, Dst: dst, N: n, Type: t, Root: int32(from)})
}
func (c comm) SendRecv(dst unsafe.Pointer, recvN, from int, src unsafe.Pointer, sendN, to int, t elem.Type) error {
	return c.Do(nil, coll.Call{Kind: coll.SendRecv, Dst: dst, RecvN: recvN, From: int32(from), Src: src, N: sendN,
		Root: int32(to), Type: t})
}

// group is a group of messages, as cudampi.P2P.
type group struct {
	c     comm
	calls []coll.Call
}

func (g *group) Send(_ comm, src unsafe.Pointer, n int, t elem.Type, to int) error {
	g.calls = append(g.calls, coll.Call{Kind: coll.Send, Src: src, N: n, Type: t, Root: int32(to)})
	return nil
}
func (g *group) Recv(_ comm, dst unsafe.Pointer, n int, t elem.Type, from int) error {
	g.calls = append(g.calls, coll.Call{Kind: coll.Recv, Dst: dst, N: n, Type: t, Root: int32(from)})
	return nil
}

func (g *group) Wait() error {
	calls := g.calls
	g.calls = g.calls[:0]
	return g.c.Group(nil, calls, nil)
}

// TestCollectives runs all collectives of all types and operations, with the
// references of package commtest.
func TestCollectives(t *testing.T) {
	commtest.TypesLeft(t, 4, "collectives of goroutines")
	onTeams(t, func(c *transport.Member) {
		for _, n := range append(commtest.Lengths, 300, 2000) {
			commtest.EveryReduction(t, comm{c}, n)
			commtest.EveryMove(t, comm{c}, n)
		}
	})
}

// onTeams runs fn on 1 to 4 ranks.
func onTeams(t *testing.T, fn func(c *transport.Member)) {
	t.Helper()
	for n := 1; n <= 4; n++ {
		if err := transport.RunTeam(n, func(c *transport.Member) error { fn(c); return nil }); err != nil {
			t.Errorf("%d ranks: %v", n, err)
		}
	}
}

// TestMessages sends round a ring, from everyone to everyone, and in order, in lengths that rooms
// of memory do not matter to.
func TestMessages(t *testing.T) {
	commtest.TypesLeft(t, 4, "messages of goroutines")
	onTeams(t, func(c *transport.Member) {
		g := &group{c: comm{c}}
		for _, n := range append(commtest.Lengths, 7, 5000) {
			commtest.EveryMessage(t, comm{c}, g, n)
		}
		if c.Size() > 1 {
			commtest.WrongType(t, comm{c}, g)
		}
	})
}

// TestMismatch: ranks that bring different calls learn it, all of them, and go on; so does
// who receives another length.
func TestMismatch(t *testing.T) {
	failed := transport.RunTeam(3, func(r *transport.Member) error {
		c, x := comm{r}, []int64{int64(r.Rank()), 0}
		p, odd := commtest.Ptr(x), r.Rank()/2 // 1 on the last rank
		for _, err := range []error{
			c.AllReduce(p, p, 1+odd, elem.Int64, elem.Sum),
			c.AllReduce(p, p, 1, elem.Int64, elem.Op(odd)),
			c.Broadcast(p, 1, elem.Int64, odd),
		} {
			if !errors.Is(err, ccall.ErrMismatch) {
				return fmt.Errorf("no mismatch: %v", err)
			}
		}
		if r.Rank() == 0 {
			if err := c.Send(p, 2, elem.Int64, 1); err != nil {
				return err
			}
		} else if r.Rank() == 1 {
			if err := c.Recv(p, 1, elem.Int64, 0); err == nil ||
				!strings.Contains(err.Error(), "message from rank 0 has 16 bytes, 8 (1 int64 elements) expected") {
				return fmt.Errorf("another length: %v", err)
			}
		}
		x[0] = int64(r.Rank())
		if err := c.AllReduce(p, p, 1, elem.Int64, elem.Sum); err != nil || x[0] != 3 {
			return fmt.Errorf("sum %d, %v", x[0], err)
		}
		return nil
	})
	if failed != nil {
		t.Error(failed)
	}
}

// TestFailureEndsAll: ranks that wait for one that fails, panics, or returns too
// early do not wait for ever.
func TestFailureEndsAll(t *testing.T) {
	mine := errors.New("of my own")
	for name, end := range map[string]func() error{
		"fails": func() error { return mine }, "returns": func() error { return nil },
	} {
		for wait, call := range map[string]func(c comm) error{
			"barrier": comm.Barrier,
			"message": func(c comm) error { x := [1]int8{}; return c.Recv(unsafe.Pointer(&x), 1, elem.Int8, 1) },
		} {
			var waited [3]error
			err := transport.RunTeam(3, func(r *transport.Member) error {
				if r.Rank() == 1 {
					return end()
				}
				waited[r.Rank()] = call(comm{r})
				return nil
			})
			if (name == "fails") != errors.Is(err, mine) {
				t.Errorf("rank 1 %s: %v", name, err)
			}
			for _, r := range []int{0, 2} {
				if waited[r] == nil || !strings.Contains(waited[r].Error(), "rank 1") {
					t.Errorf("rank 1 %s, and rank %d in a %s has: %v", name, r, wait, waited[r])
				}
			}
		}
	}
	defer func() {
		if p := recover(); p != "mine" {
			t.Errorf("recovered %v", p)
		}
	}()
	_ = transport.RunTeam(2, func(r *transport.Member) error {
		if r.Rank() == 0 {
			panic("mine")
		}
		return comm{r}.Barrier()
	})
}

// TestNoAllocation: calls of warm ranks allocate nothing.
func TestNoAllocation(t *testing.T) {
	failed := transport.RunTeam(1, func(r *transport.Member) error {
		c := comm{r}
		x, y := make([]float32, 64), make([]float32, 64)
		px, py := commtest.Ptr(x), commtest.Ptr(y)
		for name, call := range map[string]func() error{
			"AllReduce": func() error { return c.AllReduce(py, px, 64, elem.Float32, elem.Sum) },
			"AllGather": func() error { return c.AllGather(py, px, 64, elem.Float32) },
			"SendRecv":  func() error { return c.SendRecv(py, 64, 0, px, 64, 0, elem.Float32) },
		} {
			if n := testkit.Allocations(50, func() { commtest.Must(t, call()) }); n != 0 {
				t.Errorf("%s allocates %v times", name, n)
			}
		}
		return nil
	})
	commtest.Must(t, failed)
}

// TestSplit: parts of a communicator, parts of these, and copies talk
// among themselves and do not mix.
func TestSplit(t *testing.T) {
	onTeams(t, func(base *transport.Member) {
		sum := func(c transport.Host, mine int64) int64 {
			x := []int64{mine}
			commtest.Must(t, c.AllReduce(commtest.Ptr(x), commtest.Ptr(x), 1, elem.Int64, elem.Sum))
			return x[0]
		}
		me, size := base.Rank(), base.Size()
		for range 3 { // the same colors again
			half, err := base.Split(me%2, -me)
			commtest.Must(t, err)
			want, ranks := int64(0), 0
			for r := me % 2; r < size; r += 2 {
				want += int64(1) << r
				ranks++
			}
			last := (size-1-me%2)/2*2 + me%2
			if half.Size() != ranks || half.Rank() != (last-me)/2 {
				t.Errorf("rank %d of %d is %d of %d in its half", me, size, half.Rank(), half.Size())
			}
			twin, err := half.Dup()
			commtest.Must(t, err)
			if a, b := sum(half, 1<<me), sum(twin, 2<<me); a != want || b != 2*want {
				t.Errorf("sums over a half: %d and %d, want %d and twice that", a, b, want)
			}
			others, err := half.Split(min(half.Rank(), 1)-1, 0)
			commtest.Must(t, err)
			if (others == nil) != (half.Rank() == 0) {
				t.Errorf("rank %d of a half, where rank 0 takes no part, gets %v", half.Rank(), others)
			}
			node, err := half.SplitShared()
			commtest.Must(t, err)
			if got := sum(node, 1); got != int64(ranks) {
				t.Errorf("%d ranks, want %d", got, ranks)
			}
		}
	})
}

// Operands that are variables of a caller do not lie on its stack, which moves and goes: other
// ranks may read them meanwhile, and the garbage collector finds where they were.
func TestVariables(t *testing.T) {
	for range 10 {
		onTeams(t, func(c *transport.Member) {
			const n = 300
			deep(100, func() {
				var mine, sum [n]int64
				for i := range mine {
					mine[i] = int64(i + c.Rank())
				}
				if c.Rank() == 0 {
					deep(10_000, runtime.GC) // stacks of those that wait move meanwhile
				}
				commtest.Must(t, c.AllReduce(unsafe.Pointer(&sum), unsafe.Pointer(&mine), n, elem.Int64, elem.Sum))
				size := int64(c.Size())
				for i, v := range sum {
					if want := size*int64(i) + size*(size-1)/2; v != want {
						t.Errorf("rank %d of %d: sum[%d] = %d, want %d", c.Rank(), size, i, v, want)
						return
					}
				}
			})
		})
		runtime.GC() // frees the stacks
		runtime.GC() // and finds what still points there
	}
}

// deep calls fn with a deep stack.
func deep(n int, fn func()) {
	var room [64]byte
	if n == 0 {
		fn()
		return
	}
	deep(n-1, fn)
	runtime.KeepAlive(&room)
}
