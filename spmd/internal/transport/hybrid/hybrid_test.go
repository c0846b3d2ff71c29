package hybrid

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"lockstep/cudampi"
	"lockstep/internal/campaign"
	"lockstep/internal/ccall"
	"lockstep/internal/commtest"
	"lockstep/internal/elem"
	"lockstep/internal/mpirun"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/transport"
)

func TestMain(m *testing.M) { os.Exit(mpirun.Main(m)) }

var (
	_ transport.Host  = (*Comm)(nil)
	_ transport.Ranks = (*Rank)(nil)
)

// comm has the calls of a communicator of package cudampi, made by the transport.
type comm struct{ *Comm }

func (c comm) do(k coll.Kind, call coll.Call) error {
	call.Kind = k
	return c.Do(nil, call)
}

func (c comm) Barrier() error { return c.do(coll.Barrier, coll.Call{}) }
func (c comm) Reduce(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op, root int) error {
	return c.do(coll.Reduce, coll.Call{Dst: dst, Src: src, N: n, Type: t, Op: op, Root: int32(root)})
}
func (c comm) Scan(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return c.do(coll.Scan, coll.Call{Dst: dst, Src: src, N: n, Type: t, Op: op})
}
func (c comm) ExScan(dst, src unsafe.Pointer, n int, t elem.Type, op elem.Op) error {
	return c.do(coll.ExScan, coll.Call{Dst: dst, Src: src, N: n, Type: t, Op: op})
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
func (c comm) SendRecv(dst unsafe.Pointer, recvN, from int, src unsafe.Pointer, sendN, to int, t elem.Type) error {
	return c.do(coll.SendRecv, coll.Call{Dst: dst, RecvN: recvN, From: int32(from), Src: src, N: sendN, Root: int32(to), Type: t})
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

// each runs fn on every rank of 3 processes of 2, and in make test-all of 2 processes of 2 and of 3.
func each(t *testing.T, fn func(t *testing.T, c comm)) {
	t.Helper()
	on(t, some(t, []int{3, 2}), func(processes int) []int { return []int{2, 3}[:4-processes] }, fn)
}

// some is the first of these numbers of processes, and in make test-all each of them.
func some(t *testing.T, processes []int) []int {
	t.Helper()
	return campaign.Some(t, "numbers of processes of several goroutines each", processes, func(n int) bool { return n == processes[0] })
}

// on runs fn on every rank of so many processes, each of which has as many ranks as here says.
func on(t *testing.T, processes []int, here func(processes int) []int, fn func(t *testing.T, c comm)) {
	t.Helper()
	mpirun.Run(t, processes, func(t *testing.T) {
		base, err := cudampi.Start() // which keeps MPI running between tests
		commtest.Must(t, err)
		mpirun.OnFail = func() { base.Abort(1) }
		for _, here := range here(base.Size()) {
			team := NewTeam(here)
			var wait sync.WaitGroup
			for i := range here {
				wait.Go(func() {
					h, err := team.Rank(i).Join()
					commtest.Must(t, err)
					fn(t, comm{h.(*Comm)})
				})
			}
			wait.Wait()
			commtest.Must(t, team.open.post.finish())
			commtest.Must(t, team.open.post.c.Close())
		}
		mpirun.AtEnd(cudampi.Stop)
	})
}

// TestCollectives runs all collectives of all types and operations, with the references of package commtest.
func TestCollectives(t *testing.T) {
	each(t, func(t *testing.T, c comm) {
		for _, n := range append(commtest.Lengths, 2000) {
			for op := elem.Op(0); op < elem.Ops; op++ {
				commtest.Reductions[int8](t, c, n, op)
				commtest.Reductions[uint64](t, c, n, op)
				commtest.Reductions[complex64](t, c, n, op)
				if op != elem.Prod || c.Size() <= 4 { // products of six are not exact in float32
					commtest.Reductions[elem.BF16](t, c, n, op)
				}
				commtest.Reductions[float64](t, c, n, op)
			}
			commtest.Moves[uint8](t, c, n)
			commtest.Moves[elem.F16](t, c, n)
			commtest.Moves[float64](t, c, n)
		}
		commtest.Reductions[elem.F16](t, c, 67, elem.Avg)
	})
}

// TestMany runs on many more ranks than this machine may have cores: 3 processes of 3, and 8 of 2, and on every other of them.
func TestMany(t *testing.T) {
	on(t, some(t, []int{8, 3}), func(processes int) []int { return []int{2 + 3/processes} }, func(t *testing.T, c comm) {
		half, err := c.Split(c.Rank()%2, -c.Rank())
		commtest.Must(t, err)
		for _, c := range []comm{c, {half.(*Comm)}} {
			for _, n := range []int{3, 2000} {
				commtest.Reductions[int32](t, c, n, elem.Sum)
				commtest.Moves[float64](t, c, n)
				commtest.Messages[int32](t, c, &group{c: c}, n)
			}
		}
	})
}

// TestMessages sends round a ring, from everyone to everyone, and in order, with heads only and with bodies of several pieces.
func TestMessages(t *testing.T) {
	commtest.TypesLeft(t, 3, "messages of goroutines of several processes")
	each(t, func(t *testing.T, c comm) {
		if c.local.Rank() == 0 {
			mostPiece = 10_000 // of all processes, before the first message
		}
		commtest.Must(t, c.Barrier())
		g := &group{c: c}
		for _, n := range append(commtest.Lengths, 7, 5000) {
			commtest.EveryMessage(t, c, g, n)
		}
		commtest.Must(t, c.Barrier())
		if c.local.Rank() == 0 {
			mostPiece = cudampi.MostBytes
		}
	})
}

// TestParts: communicators of any ranks, in any order, have their own collectives and messages, and those of a node are its.
func TestParts(t *testing.T) {
	each(t, func(t *testing.T, c comm) {
		random := rand.New(rand.NewPCG(3, 5))
		for round := range 12 {
			colors, keys := make([]int, c.Size()), random.Perm(c.Size())
			for r := range colors {
				colors[r] = random.IntN(3) - 1 + round/8 // below zero in the first rounds: in no part
			}
			part, err := c.Split(colors[c.Rank()], keys[c.Rank()])
			commtest.Must(t, err)
			if colors[c.Rank()] < 0 {
				if part != nil {
					t.Error("a part of those that have none")
				}
				continue
			}
			p := comm{part.(*Comm)}
			size, rank := 0, 0
			for r := range colors {
				if colors[r] == colors[c.Rank()] {
					size++
					if keys[r] < keys[c.Rank()] {
						rank++
					}
				}
			}
			if p.Size() != size || p.Rank() != rank {
				t.Errorf("rank %d of %d, want %d of %d", p.Rank(), p.Size(), rank, size)
			}
			commtest.Reductions[float32](t, p, 700, elem.Avg)
			commtest.Moves[int32](t, p, 700)
			commtest.Messages[int64](t, p, &group{c: p}, 5)
		}
		d, err := c.Dup()
		commtest.Must(t, err)
		commtest.Messages[int64](t, comm{d.(*Comm)}, &group{c: comm{d.(*Comm)}}, 5)
		node, err := c.SplitShared() // all processes of a test are on one
		commtest.Must(t, err)
		if node.Size() != c.Size() || node.Rank() != c.Rank() {
			t.Errorf("rank %d of %d on the node", node.Rank(), node.Size())
		}
	})
}

// TestMismatch: leaders that bring different calls learn it.
func TestMismatch(t *testing.T) {
	each(t, func(t *testing.T, c comm) {
		if c.local.Rank() != 0 {
			return // who waits for its leader's result would do so for ever
		}
		x := []int64{int64(c.Rank()), 0}
		p, odd := commtest.Ptr(x), c.mine/(len(c.process)-1) // 1 in the last process
		for _, call := range []coll.Call{
			{Kind: coll.AllReduce, Dst: p, Src: p, N: 1 + odd, Type: elem.Int64},
			{Kind: coll.AllReduce, Dst: p, Src: p, N: 1, Type: elem.Int64, Op: elem.Op(2 * odd)},
		} {
			c.turn++
			if err := c.among(&call); !errors.Is(err, ccall.ErrMismatch) || !strings.Contains(err.Error(), "brought AllReduce of ") {
				t.Errorf("no mismatch: %v", err)
			}
		}
	})
}

// TestDifferentTeams: processes with different numbers of ranks find it, all of them, before anything else.
func TestDifferentTeams(t *testing.T) {
	mpirun.Run(t, []int{3}, func(t *testing.T) {
		base, err := cudampi.Start()
		commtest.Must(t, err)
		mpirun.OnFail = func() { base.Abort(1) }
		_, err = NewTeam(1 + base.Rank()/2).Rank(0).Join()
		if want := "--gpus-per-process is 1 on process 0, and 2 on process 2"; err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, new(UsageError)) {
			t.Errorf("%v, want %s", err, want)
		}
		mpirun.AtEnd(cudampi.Stop)
	})
}

// TestTraffic has all ranks send to all others at once, in lengths of their own, through bodies that overtake heads, and in
// collectives of parts that cross.
func TestTraffic(t *testing.T) {
	each(t, func(t *testing.T, c comm) {
		part, err := c.Split(c.Rank()%2, 0)
		commtest.Must(t, err)
		const rounds = 30
		text := func(from, to, i int) []byte {
			random := rand.New(rand.NewPCG(uint64(from), uint64(to*rounds+i)))
			return bytes.Repeat([]byte(fmt.Sprint(from, to, i, ";")), random.IntN(5000))
		}
		for i := range rounds {
			var calls []coll.Call
			var got [][]byte
			for r := range c.Size() {
				out, in := text(c.Rank(), r, i), text(r, c.Rank(), i)
				got = append(got, make([]byte, len(in)))
				calls = append(calls,
					coll.Call{Kind: coll.Send, Src: unsafe.Pointer(unsafe.SliceData(out)), N: len(out), Type: elem.Uint8, Root: int32(r)},
					coll.Call{Kind: coll.Recv, Dst: unsafe.Pointer(unsafe.SliceData(got[r])), N: len(in), Type: elem.Uint8, Root: int32(r)})
			}
			commtest.Must(t, c.Group(nil, calls, nil))
			for r := range got {
				if !bytes.Equal(got[r], text(r, c.Rank(), i)) {
					t.Errorf("round %d: another text from rank %d", i, r)
				}
			}
			x := []int64{1}
			commtest.Must(t, part.AllReduce(commtest.Ptr(x), commtest.Ptr(x), 1, elem.Int64, elem.Sum))
			if x[0] != int64(part.Size()) {
				t.Errorf("round %d: %d of %d in the part", i, x[0], part.Size())
			}
		}
	})
}
