package cudampi

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
)

// TestSharedMemory runs all collectives again on a Comm that shares memory, with lengths on both sides of its limits.
func TestSharedMemory(t *testing.T) {
	onRanks(t, counts, func(t *testing.T, c *Comm) {
		must(t, c.ShareMemory())
		must(t, c.ShareMemory())
		if has := c.board != nil; has != (c.size > 1) {
			t.Fatalf("%d ranks share memory: %v", c.size, has)
		}
		for _, n := range append(lengths, boardBytes/8, boardBytes/8+1, boardBytes/8/c.size, newsBytes/8, newsBytes/8+1) {
			everyReduction(t, c, n)
			everyMove(t, c, n)
		}
		half, err := c.Split(c.rank%2, 0)
		must(t, err)
		must(t, half.ShareMemory())
		reductions[float32](t, half, 3, elem.Sum)
		must(t, half.Free())
	})
}

// TestSharedMemoryManyRanks: so many ranks use messages, unless they share cores.
func TestSharedMemoryManyRanks(t *testing.T) {
	onRanks(t, []int{9}, func(t *testing.T, c *Comm) {
		must(t, c.ShareMemory())
		if has := c.board != nil; has != (runtime.NumCPU() < c.size) {
			t.Fatalf("9 ranks on %d cores share memory: %v", runtime.NumCPU(), has)
		}
		reductions[int32](t, c, 3, elem.Sum)
	})
}

// TestSharedMemoryRounds runs many rounds of different lengths back to back, in which fast ranks overtake slow ones as
// far as they may.
func TestSharedMemoryRounds(t *testing.T) {
	const rounds, most = 5000, 257
	value := func(round, rank, i int) int64 { return int64(round + 1000*rank + i) }
	onRanks(t, []int{2, 3}, func(t *testing.T, c *Comm) {
		must(t, c.ShareMemory())
		src, dst := alloc[int64](most*c.size), alloc[int64](most*c.size)
		// check runs one collective, of n elements, of which length come, the i-th of value want.
		check := func(name string, call func(round, n int) error, length func(n int) int, want func(round, n, i int) int64) {
			for round := range rounds {
				for i := range src.data() {
					src.data()[i] = value(round, c.rank, i)
				}
				n := 1 + round*31%most
				must(t, call(round, n))
				for i, got := range dst.data()[:length(n)] {
					if got != want(round, n, i) {
						t.Fatalf("%s, round %d: [%d] = %d, want %d", name, round, i, got, want(round, n, i))
					}
				}
			}
		}
		one, all := func(n int) int { return n }, func(n int) int { return n * c.size }
		check("AllReduce", func(_, n int) error {
			return c.AllReduce(dst.ptr(), src.ptr(), n, elem.Int64, elem.Sum)
		}, one, func(round, _, i int) int64 { return int64(c.size*(round+i) + 1000*c.size*(c.size-1)/2) })
		check("ReduceScatter", func(_, n int) error {
			return c.ReduceScatter(dst.ptr(), src.ptr(), n, elem.Int64, elem.Max)
		}, one, func(round, n, i int) int64 { return value(round, c.size-1, c.rank*n+i) })
		check("AllGather", func(_, n int) error {
			return c.AllGather(dst.ptr(), src.ptr(), n, elem.Int64)
		}, all, func(round, n, i int) int64 { return value(round, i/n, i%n) })
		check("AllToAll", func(_, n int) error {
			return c.AllToAll(dst.ptr(), src.ptr(), n, elem.Int64)
		}, all, func(round, n, i int) int64 { return value(round, i/n, c.rank*n+i%n) })
		root := func(round int) int { return round / 50 % c.size } // each is ahead for a while
		check("Broadcast", func(round, n int) error {
			copy(dst.data(), src.data()[:n])
			return c.Broadcast(dst.ptr(), n, elem.Int64, root(round))
		}, one, func(round, _, i int) int64 { return value(round, root(round), i) })
	})
}

// TestSharedMemoryMismatch: ranks that bring different things learn it, all of them, and the Comm works on.
func TestSharedMemoryMismatch(t *testing.T) {
	onRanks(t, []int{3}, func(t *testing.T, c *Comm) {
		must(t, c.ShareMemory())
		x, y := filled[float32](c.rank, 24), filled[float32](c.rank, 24)
		odd := c.rank / 2 // rank 2 brings something else
		check := func(err error, want string) {
			t.Helper()
			var e *ccall.Error
			if !errors.As(err, &e) || e.Err != ErrCount || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "brought another") {
				t.Fatalf("rank %d: %v, want %q", c.rank, err, want)
			}
		}
		n, ty := 4+odd, elem.Float32-elem.Type(odd*5)
		check(c.AllReduce(x.ptr(), x.ptr(), n, elem.Float32, elem.Sum), fmt.Sprintf("sum of %d float32 here", n))
		check(c.AllReduce(x.ptr(), x.ptr(), 4, ty, elem.Sum), "sum of 4")
		check(c.AllReduce(x.ptr(), x.ptr(), 4, elem.Float32, elem.Op(odd)), "4 float32 here")
		check(c.ReduceScatter(y.ptr(), x.ptr(), n, elem.Float32, elem.Sum), fmt.Sprintf("sum of %d float32 here", n))
		check(c.ReduceScatter(y.ptr(), x.ptr(), 4, elem.Float32, elem.Op(odd)), "4 float32 here")
		check(c.AllGather(y.ptr(), x.ptr(), n, elem.Float32), fmt.Sprintf("(%d float32 here", n))
		check(c.AllToAll(y.ptr(), x.ptr(), 4, ty), "(4 ")
		y = alloc[float32](24)
		for range newsRounds + 1 { // the root does not hear of it, and is not held up by it
			err := c.Broadcast(y.ptr(), n, elem.Float32, 0)
			if odd == 0 {
				must(t, err)
				continue
			}
			check(err, "5 float32 here, but rank 0 brought another operation, type or count: 4 elements")
			y.same(t, c, alloc[float32](24).data(), "what a wrong broadcast leaves")
		}
		everyReduction(t, c, 3)
		everyMove(t, c, 3)
	})
}

// TestSharedMemoryBarrier: who leaves finds that all have come. Every rank notes its round in memory of all first.
func TestSharedMemoryBarrier(t *testing.T) {
	onRanks(t, []int{2, 4}, func(t *testing.T, c *Comm) {
		must(t, c.ShareMemory())
		var mem []byte
		must(t, c.shareFile(8*c.size, &mem))
		for round := range int64(2000) {
			atomic.StoreInt64((*int64)(unsafe.Pointer(&mem[8*c.rank])), round)
			must(t, c.Barrier())
			for r := range c.size {
				if got := atomic.LoadInt64((*int64)(unsafe.Pointer(&mem[8*r]))); got < round {
					t.Fatalf("rank %d has left barrier %d, and rank %d has not come: it is at %d", c.rank, round, r, got)
				}
			}
		}
		must(t, c.Barrier())
		must(t, unix.Munmap(mem))
	})
}

// TestSharedMemoryLetsMessagesThrough has rank 0 wait in a small all-reduce for rank 1, which first takes so many messages
// of rank 0 that MPI cannot have delivered all of them when it said that they may be forgotten: the waiting must let MPI
// progress.
func TestSharedMemoryLetsMessagesThrough(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *Comm) {
		must(t, c.ShareMemory())
		const n, messages = 100, 20_000
		x, one := filled[float64](c.rank, n), filled[float64](c.rank, 1)
		for range messages {
			if c.rank == 0 {
				must(t, c.send(x.ptr(), n, elem.Float64, 1, tagUser+1)) // those of users go through the board
			} else {
				must(t, c.recv(x.ptr(), n, elem.Float64, 0, tagUser+1))
			}
		}
		x.same(t, c, input[float64](0, n), "message")
		must(t, c.AllReduce(one.ptr(), one.ptr(), 1, elem.Float64, elem.Sum))
		one.same(t, c, reduced[float64](2, 1, elem.Sum), "all-reduce")
	})
}
