package shm

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/cudampi"
	"lockstep/cudampi/commtest"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
)

// TestCollectives runs all collectives again on a Comm that shares memory, with lengths
// on both sides of its limits.
func TestCollectives(t *testing.T) {
	commtest.TypesLeft(t, len(counts), "collectives through shared memory")
	onRanks(t, counts, func(t *testing.T, c *NodeComm) {
		if has := c.s != nil; has != (c.Size() > 1) {
			t.Fatalf("%d ranks share memory: %v", c.Size(), has)
		}
		for _, n := range append(commtest.Lengths, slotBytes/8, slotBytes/8+1, slotBytes/8/c.Size(), bcastBytes/8,
			bcastBytes/8+1) {
			commtest.EveryReduction(t, c, n)
			commtest.EveryMove(t, c, n)
		}
		part, err := c.Split(c.Rank()%2, 0)
		commtest.Must(t, err)
		half, err := Share(part)
		commtest.Must(t, err)
		commtest.Reductions[float32](t, half, 3, elem.Sum)
		commtest.Must(t, half.Close())
	})
}

// TestCrowded: ranks share cores where they are more than what they may use together.
func TestCrowded(t *testing.T) {
	set := func(cores ...int) (s unix.CPUSet) {
		for _, c := range cores {
			s.Set(c)
		}
		return s
	}
	for _, tc := range []struct {
		ranks []unix.CPUSet
		want  bool
	}{
		{[]unix.CPUSet{set(0), set(1)}, false},
		{[]unix.CPUSet{set(0), set(0)}, true},
		{[]unix.CPUSet{set(0, 1), set(0, 1)}, false},
		{[]unix.CPUSet{set(0, 1), set(0, 1), set(1)}, true},
		{[]unix.CPUSet{set(5), set(5), set(900, 901)}, false},
	} {
		if got := together(tc.ranks) < len(tc.ranks); got != tc.want {
			t.Errorf("%d ranks on %v share cores: %v", len(tc.ranks), tc.ranks, got)
		}
	}
}

// TestYields: ranks that were all told to yield do not spin, also where each has a core.
func TestYields(t *testing.T) {
	commtest.OnRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
		for _, told := range [][]string{{"0", "0"}, {"0", "1"}, {"1", "1"}, {"", "true"}, {"true", "true"}} {
			t.Setenv(yieldEnv, told[c.Rank()])
			d, err := c.Dup()
			commtest.Must(t, err)
			s, err := Share(d)
			commtest.Must(t, err)
			all := told[0] == told[1] && told[0] != "0"
			if s.s != nil && (s.s.spins != 0) != (!all && runtime.NumCPU() > 1) {
				t.Errorf("told %q: %d spins on %d cores", told, s.s.spins, runtime.NumCPU())
			}
			commtest.Must(t, s.Close())
		}
	})
}

// TestManyRanks has nine ranks on one core each, the same: so many share memory there, too.
func TestManyRanks(t *testing.T) {
	commtest.OnRanks(t, []int{9}, func(t *testing.T, c *cudampi.Comm) {
		var all, one unix.CPUSet
		one.Set(0)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		commtest.Must(t, unix.SchedGetaffinity(0, &all))
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			t.Skip(err)
		}
		defer func() { commtest.Must(t, unix.SchedSetaffinity(0, &all)) }()
		s, err := Share(c)
		commtest.Must(t, err)
		if s.s == nil || s.s.spins != 0 {
			t.Fatalf("9 ranks on one core share memory: %v", s.s != nil)
		}
		commtest.Reductions[int32](t, s, 3, elem.Sum)
		commtest.Must(t, s.Close())
	})
}

// carried makes a call through slots.
func carried(c *NodeComm, call coll.Call) error {
	done, err := c.Carry(&call)
	if err == nil && !done {
		err = fmt.Errorf("%v is left to MPI", &call)
	}
	return err
}

// TestRounds runs many rounds of different lengths back to back, in which fast ranks overtake
// slow ones as far as they may.
func TestRounds(t *testing.T) {
	const rounds, most = 5000, 257
	value := func(round, rank, i int) int64 { return int64(round + 1000*rank + i) }
	onRanks(t, []int{2, 3}, func(t *testing.T, c *NodeComm) {
		src, dst := commtest.Alloc[int64](most*c.Size()), commtest.Alloc[int64](most*c.Size())
		// check runs one collective, of n elements, of which length come, the i-th of value want.
		check := func(name string, call func(round, n int) error, length func(n int) int,
			want func(round, n, i int) int64) {
			for round := range rounds {
				for i := range src.Data() {
					src.Data()[i] = value(round, c.Rank(), i)
				}
				n := 1 + round*31%most
				commtest.Must(t, call(round, n))
				for i, got := range dst.Data()[:length(n)] {
					if got != want(round, n, i) {
						t.Fatalf("%s, round %d: [%d] = %d, want %d", name, round, i, got, want(round, n, i))
					}
				}
			}
		}
		one, all := func(n int) int { return n }, func(n int) int { return n * c.Size() }
		check("AllReduce", func(_, n int) error {
			return c.AllReduce(dst.Ptr(), src.Ptr(), n, elem.Int64, elem.Sum)
		}, one, func(round, _, i int) int64 { return int64(c.Size()*(round+i) + 1000*c.Size()*(c.Size()-1)/2) })
		check("ReduceScatter", func(_, n int) error {
			return carried(c, coll.Call{Kind: coll.ReduceScatter, Dst: dst.Ptr(), Src: src.Ptr(), N: n,
				Type: elem.Int64, Op: elem.Max})
		}, one, func(round, n, i int) int64 { return value(round, c.Size()-1, c.Rank()*n+i) })
		check("Scan", func(_, n int) error {
			return carried(c, coll.Call{Kind: coll.Scan, Dst: dst.Ptr(), Src: src.Ptr(), N: n, Type: elem.Int64})
		}, one, func(round, _, i int) int64 { return int64((c.Rank()+1)*(round+i) + 1000*c.Rank()*(c.Rank()+1)/2) })
		check("AllGather", func(_, n int) error {
			return c.AllGather(dst.Ptr(), src.Ptr(), n, elem.Int64)
		}, all, func(round, n, i int) int64 { return value(round, i/n, i%n) })
		check("AllToAll", func(_, n int) error {
			return carried(c, coll.Call{Kind: coll.AllToAll, Dst: dst.Ptr(), Src: src.Ptr(), N: n,
				Type: elem.Int64})
		}, all, func(round, n, i int) int64 { return value(round, i/n, c.Rank()*n+i%n) })
		root := func(round int) int { return round / 50 % c.Size() } // each is ahead for a while
		check("Broadcast", func(round, n int) error {
			copy(dst.Data(), src.Data()[:n])
			return c.Broadcast(dst.Ptr(), n, elem.Int64, root(round))
		}, one, func(round, _, i int) int64 { return value(round, root(round), i) })
	})
}

// TestMismatch: ranks that differ from the root of a short Broadcast learn it, and the Comm works
// on. The root does not hear of it, and is not held up by it.
func TestMismatch(t *testing.T) {
	onRanks(t, []int{3}, func(t *testing.T, c *NodeComm) {
		y := commtest.Alloc[float32](24)
		odd := c.Rank() / 2 // rank 2 brings something else
		for range bcasts + 1 {
			err := c.Broadcast(y.Ptr(), 4+odd, elem.Float32, 0)
			if odd == 0 {
				commtest.Must(t, err)
			} else if !errors.Is(err, ccall.ErrMismatch) ||
				!strings.Contains(err.Error(), "rank 0 brought Broadcast of 4 float32 (root 0)") {
				t.Fatalf("rank %d: %v", c.Rank(), err)
			}
			y.Same(t, c, commtest.Alloc[float32](24).Data(), "what a wrong broadcast leaves")
		}
		commtest.EveryReduction(t, c, 3)
		commtest.EveryMove(t, c, 3)
	})
}

// TestBarrier: who leaves finds that all have come. Every rank notes its
// round in memory of all first.
func TestBarrier(t *testing.T) {
	onRanks(t, []int{2, 4}, func(t *testing.T, c *NodeComm) {
		mem, err := Map(c.Comm, 8*c.Size())
		commtest.Must(t, err)
		for round := range int64(2000) {
			atomic.StoreInt64((*int64)(unsafe.Pointer(&mem[8*c.Rank()])), round)
			commtest.Must(t, c.Barrier())
			for r := range c.Size() {
				if got := atomic.LoadInt64((*int64)(unsafe.Pointer(&mem[8*r]))); got < round {
					t.Fatalf("rank %d has left barrier %d, and rank %d has not come: it is at %d",
						c.Rank(), round, r, got)
				}
			}
		}
		commtest.Must(t, c.Barrier())
		commtest.Must(t, unix.Munmap(mem))
	})
}

// TestWaitLetsMessagesThrough has rank 0 wait in a small all-reduce for rank 1, which first takes
// so many messages of rank 0 that MPI cannot have delivered all of them when it said that they may
// be forgotten: the waiting must let MPI progress.
func TestWaitLetsMessagesThrough(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *NodeComm) {
		const n, messages = 100, 20_000
		x, one := commtest.Filled[float64](c.Rank(), n), commtest.Filled[float64](c.Rank(), 1)
		for range messages {
			if c.Rank() == 0 {
				commtest.Must(t, c.Comm.Send(x.Ptr(), n, elem.Float64, 1)) // by MPI
			} else {
				commtest.Must(t, c.Comm.Recv(x.Ptr(), n, elem.Float64, 0))
			}
		}
		x.Same(t, c, commtest.Input[float64](0, n), "message")
		commtest.Must(t, c.AllReduce(one.Ptr(), one.Ptr(), 1, elem.Float64, elem.Sum))
		one.Same(t, c, commtest.Reduced[float64](2, 1, elem.Sum), "all-reduce")
	})
}

// TestAverages: an average is the sum, divided as Go divides it.
func TestAverages(t *testing.T) {
	divides[int8, int32](t, -128, -7, -1, 0, 5, 127)
	divides[uint8, uint32](t, 0, 1, 5, 255)
	divides[int32, int32](t, -1<<31, -7, 5, 1<<31-1)
	divides[uint32, uint32](t, 0, 7, 1<<32-1)
	divides[int64, int64](t, -1<<63, -7, 5, 1<<63-1)
	divides[uint64, uint64](t, 0, 7, 1<<64-1)
	divides[float32, float32](t, -1, 0.1, 7, 1e38)
	divides[float64, float64](t, -1, 0.1, 7, 1e308)
}

// divides divides sums in Wide, to which C widens the type and the divisor.
func divides[T, Wide int8 | uint8 | int32 | uint32 | int64 | uint64 | float32 | float64](t *testing.T, values ...T) {
	t.Helper()
	n, ty := 4096, elem.Of[T]() // longer than a block of Reduce
	for _, ranks := range []int{2, 3, 7} {
		at := make([]uintptr, ranks)
		brought, sum, avg := make([][]T, ranks), make([]T, n), make([]T, n)
		for r := range ranks {
			brought[r] = make([]T, n)
			at[r] = uintptr(unsafe.Pointer(&brought[r][0]))
			for i := range n {
				if (i+r)%2 == 0 || r == 0 {
					brought[r][i] = values[i%len(values)]
				}
			}
		}
		Reduce(unsafe.Pointer(&avg[0]), at, n, ty, elem.Avg)
		Reduce(unsafe.Pointer(&sum[0]), at, n, ty, elem.Sum)
		runtime.KeepAlive(brought)
		for i := range n {
			if want := T(Wide(sum[i]) / Wide(ranks)); avg[i] != want {
				t.Fatalf("%v, %d ranks: the average of the sum %v is %v, want %v", ty, ranks, sum[i], avg[i], want)
			}
		}
	}
}
