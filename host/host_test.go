package host

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
)

func TestParallelCoversEachElementOnce(t *testing.T) {
	defer SetThreads(Threads())
	for _, cores := range []int{1, 2, 3, 7} {
		SetThreads(cores)
		for _, c := range []struct{ n, grain, parts int }{
			{-1, 1, 0}, {0, 1, 0}, {1, 1, 1}, {5, 10, 1}, {10, 10, 1}, {19, 10, 1}, {20, 10, min(2, cores)},
			{100, 0, cores}, {101, 1, cores}, {7, 1, cores},
		} {
			var mu sync.Mutex
			var hits [101]int
			parts, least, most := 0, math.MaxInt, 0
			Parallel(c.n, c.grain, func(lo, hi int) {
				mu.Lock()
				defer mu.Unlock()
				parts++
				least, most = min(least, hi-lo), max(most, hi-lo)
				for i := lo; i < hi; i++ {
					hits[i]++
				}
			})
			for i := range hits {
				if want := min(1, max(0, c.n-i)); hits[i] != want {
					t.Fatalf("%d cores, %+v: element %d is in %d ranges", cores, c, i, hits[i])
				}
			}
			if parts != c.parts || parts > 1 && (least < c.grain || most > least+1) {
				t.Errorf("%d cores, %+v: %d ranges of %d to %d", cores, c, parts, least, most)
			}
		}
	}
}

func TestParallelNests(t *testing.T) {
	defer SetThreads(Threads())
	SetThreads(3)
	var mu sync.Mutex
	total := 0
	Parallel(6, 1, func(lo, hi int) {
		Parallel(10*(hi-lo), 1, func(lo, hi int) {
			mu.Lock()
			defer mu.Unlock()
			total += hi - lo
		})
	})
	if total != 60 {
		t.Errorf("%d elements, want 60", total)
	}
}

var errBroken = errors.New("broken")

func breakdown(lo int) {
	if lo > 0 {
		panic(fmt.Errorf("range from %d: %w", lo, errBroken))
	}
}

func TestParallelRaisesPanicInCaller(t *testing.T) {
	defer SetThreads(Threads())
	SetThreads(3)
	done := 0
	defer func() {
		err, ok := recover().(error)
		if !ok || !errors.Is(err, errBroken) {
			t.Fatalf("recovered %v", err)
		}
		for _, want := range []string{"range from", "broken", "breakdown("} { // the value, and where it was
			if !strings.Contains(err.Error(), want) {
				t.Errorf("panic does not say %q: %v", want, err)
			}
		}
		if done != 1 { // the caller's own range, finished before the panic goes on
			t.Errorf("%d ranges finished, want 1", done)
		}
	}()
	Parallel(3, 1, func(lo, hi int) {
		breakdown(lo)
		done++ // in the range [0, 1) only
	})
	t.Fatal("no panic")
}

func TestParallelReportsGoexit(t *testing.T) {
	defer SetThreads(Threads())
	SetThreads(2)
	defer func() {
		if recover() == nil {
			t.Error("a range that ended by Goexit counts as finished")
		}
	}()
	Parallel(2, 1, func(lo, hi int) {
		if lo > 0 {
			runtime.Goexit()
		}
	})
}

// TestParallelGoexitOfTheCaller: a goroutine that its own range ends leaves the helpers to the
// next.
func TestParallelGoexitOfTheCaller(t *testing.T) {
	defer SetThreads(Threads())
	SetThreads(2)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Parallel(2, 1, func(lo, hi int) {
			if lo == 0 {
				runtime.Goexit()
			}
		})
	}()
	<-ended
	if !standby.mu.TryLock() {
		t.Fatal("the helpers are still taken")
	}
	standby.mu.Unlock()
}

func TestSetThreads(t *testing.T) {
	defer SetThreads(Threads())
	SetThreads(5)
	if Threads() != 5 {
		t.Errorf("Threads is %d, want 5", Threads())
	}
	SetThreads(0)
	if n := Threads(); n < 1 || n > runtime.NumCPU() {
		t.Errorf("Threads is %d of %d cores", n, runtime.NumCPU())
	}
}

// The least share of the process's ranks holds, and the default when the last has ended.
func TestShare(t *testing.T) {
	defer SetThreads(Threads())
	SetThreads(0)
	whole := Threads()
	a, b, c := Share(7), Share(5), Share(6)
	for _, step := range []struct {
		end  func()
		want int
	}{{func() {}, 5}, {a, 5}, {b, 6}, {b, 6}, {c, whole}, {a, whole}} {
		step.end()
		if Threads() != step.want {
			t.Fatalf("Threads is %d, want %d", Threads(), step.want)
		}
	}
}

func TestSetenvRestores(t *testing.T) {
	const name = "LOCKSTEP_TEST_SETENV"
	setenv(name, "1")()
	if v, ok := os.LookupEnv(name); ok {
		t.Errorf("%s is left behind as %q", name, v)
	}
	t.Setenv(name, "old")
	setenv(name, "new")()
	if v := os.Getenv(name); v != "old" {
		t.Errorf("%s is %q, want old", name, v)
	}
}

// lengths reach past one chunk, and past the chunks that Sum handles at a time.
var lengths = []int{0, 1, 2, 31, 32, 33, 1000, chunk - 1, chunk, chunk + 1, 3*chunk + 77, 65*chunk + 5}

func random(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// exact returns the sum of f(i) for i < n, with Neumaier's compensation: right to the last bits.
func exact(n int, f func(i int) float64) (sum, size float64) {
	c := 0.0
	for i := range n {
		v := f(i)
		s := sum + v
		if math.Abs(sum) >= math.Abs(v) {
			c += (sum - s) + v
		} else {
			c += (v - s) + sum
		}
		sum, size = s, size+math.Abs(v)
	}
	return sum + c, size
}

func TestSums(t *testing.T) {
	defer SetThreads(Threads())
	for _, n := range lengths {
		x := random(uint64(n), n+1)[1:] // not aligned to a vector
		for name, c := range map[string]struct {
			sum func([]float32) float64
			f   func(i int) float64
		}{
			"Sum":        {Sum, func(i int) float64 { return float64(x[i]) }},
			"SumSquares": {SumSquares, func(i int) float64 { return float64(x[i]) * float64(x[i]) }},
		} {
			got := c.sum(x)
			want, size := exact(n, c.f)
			// chunk/LANES additions in a lane, 5 to fold the lanes, then the chunks.
			if bound := float64(chunk/32+5+n/chunk) * 0x1p-53 * size; math.Abs(got-want) > bound {
				t.Errorf("%s of %d: %v, want %v: off by %g, at most %g", name, n, got, want, got-want, bound)
			}
		}
		for _, cores := range []int{1, 2, 3, 7} {
			SetThreads(cores)
			if got, want := SumParallel(x), Sum(x); got != want {
				t.Errorf("SumParallel of %d on %d cores: %v, on one %v", n, cores, got, want)
			}
		}
	}
}

// Float32 additions would stop at 2^24 here.
func TestSumOfManyEqual(t *testing.T) {
	x := make([]float32, 1<<22)
	for i := range x {
		x[i] = 16777215
	}
	if got, want := SumParallel(x), float64(len(x))*16777215; got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestDot(t *testing.T) {
	for _, n := range lengths {
		x, y := random(1, n+1)[1:], random(2, n)
		want, size := exact(n, func(i int) float64 { return float64(x[i]) * float64(y[i]) })
		bound := float64(n/32+6)*0x1p-24*size + 0x1p-149
		if got := float64(Dot(x, y)); math.Abs(got-want) > bound {
			t.Errorf("of %d: %v, want %v: off by %g, at most %g", n, got, want, got-want, bound)
		}
	}
}

func TestAxpyAndScale(t *testing.T) {
	for _, n := range []int{0, 1, 7, 16, 33, 1000} {
		x, y := make([]float32, n), make([]float32, n+1)
		for i := range x {
			x[i], y[i] = float32(i%17), float32(i%5) // small integers: exact with and without fused multiply-add
		}
		y[n] = 42 // must stay
		Axpy(y[:n], 3, x)
		Scale(x, -2)
		for i := range x {
			if want := float32(i%5 + 3*(i%17)); y[i] != want {
				t.Fatalf("Axpy of %d: element %d is %v, want %v", n, i, y[i], want)
			}
			if want := float32(-2 * (i % 17)); x[i] != want {
				t.Fatalf("Scale of %d: element %d is %v, want %v", n, i, x[i], want)
			}
		}
		if y[n] != 42 {
			t.Errorf("Axpy of %d wrote past the end", n)
		}
	}
}

func BenchmarkSumParallel(b *testing.B) {
	x := random(1, 30_000_000)
	b.SetBytes(int64(4 * len(x)))
	for b.Loop() {
		SumParallel(x)
	}
}

func BenchmarkDot(b *testing.B) {
	x := random(1, 768)
	b.SetBytes(int64(8 * len(x)))
	for b.Loop() {
		Dot(x, x)
	}
}

func BenchmarkParallel(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Parallel(Threads(), 1, func(lo, hi int) {})
	}
}
