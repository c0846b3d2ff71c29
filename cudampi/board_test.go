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

// TestSharedMemory runs all reductions again on a Comm that shares memory, with lengths on both sides of its limit.
func TestSharedMemory(t *testing.T) {
	onRanks(t, counts, func(t *testing.T, c *Comm) {
		must(t, c.ShareMemory())
		must(t, c.ShareMemory())
		if has := c.board != nil; has != (c.size > 1) {
			t.Fatalf("%d ranks share memory: %v", c.size, has)
		}
		for _, n := range append(lengths, boardBytes/8, boardBytes/8+1) {
			everyReduction(t, c, n)
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
	onRanks(t, []int{2, 3}, func(t *testing.T, c *Comm) {
		must(t, c.ShareMemory())
		x := alloc[int64](257)
		for round := range 20_000 {
			n := 1 + round*31%257
			data := x.data()[:n]
			for i := range data {
				data[i] = int64(round + i + c.rank)
			}
			must(t, c.AllReduce(x.ptr(), x.ptr(), n, elem.Int64, elem.Sum))
			for i, got := range data {
				if want := int64(c.size*(round+i) + c.size*(c.size-1)/2); got != want {
					t.Fatalf("round %d: [%d] = %d, want %d", round, i, got, want)
				}
			}
		}
	})
}

// TestSharedMemoryMismatch: ranks that bring different things learn it, all of them, and the Comm works on.
func TestSharedMemoryMismatch(t *testing.T) {
	onRanks(t, []int{3}, func(t *testing.T, c *Comm) {
		must(t, c.ShareMemory())
		x := filled[float32](c.rank, 8)
		for _, tc := range []struct {
			n    int
			t    elem.Type
			op   elem.Op
			want string
		}{
			{4 + c.rank/2, elem.Float32, elem.Sum, fmt.Sprintf("sum of %d float32 here", 4+c.rank/2)},
			{4, elem.Float32 - elem.Type(c.rank/2*5), elem.Sum, "sum of 4"},
			{4, elem.Float32, elem.Op(c.rank / 2), "4 float32 here"},
		} {
			err := c.AllReduce(x.ptr(), x.ptr(), tc.n, tc.t, tc.op)
			var e *ccall.Error
			if !errors.As(err, &e) || e.Err != ErrCount || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "brought another") {
				t.Fatalf("rank %d: %v, want %q", c.rank, err, tc.want)
			}
		}
		reductions[float32](t, c, 8, elem.Sum)
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
				must(t, c.Send(x.ptr(), n, elem.Float64, 1))
			} else {
				must(t, c.Recv(x.ptr(), n, elem.Float64, 0))
			}
		}
		x.same(t, c, input[float64](0, n), "message")
		must(t, c.AllReduce(one.ptr(), one.ptr(), 1, elem.Float64, elem.Sum))
		one.same(t, c, reduced[float64](2, 1, elem.Sum), "all-reduce")
	})
}
