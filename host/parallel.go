package host

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

var threads atomic.Int64

func init() { SetThreads(0) }

// SetThreads sets how many cores Parallel and what is built on it use from now on. n < 1 restores
// the default: the cores of the machine, or fewer where Go itself is confined to fewer
// (GOMAXPROCS, a container's CPU limit).
func SetThreads(n int) {
	if n < 1 {
		n = min(runtime.NumCPU(), runtime.GOMAXPROCS(0))
	}
	threads.Store(int64(n))
}

// Threads returns the number of cores this rank may use; at least 1.
func Threads() int { return int(threads.Load()) }

// Parallel calls fn on consecutive ranges [lo, hi) that together are [0, n), each in its own
// goroutine, and returns when all are done. There are at most Threads ranges, none shorter than grain
// (n itself excepted) and none more than one longer than another; where they begin depends on n, grain and
// Threads only. A single range is a plain call of fn; n < 1 calls nothing.
//
// Choose grain so that a range takes tens of microseconds: starting a goroutine takes about one.
//
// A panic in fn is raised again in the caller once all ranges have ended, with the stack of the
// goroutine it came from.
func Parallel(n, grain int, fn func(lo, hi int)) {
	parts := min(Threads(), n/max(grain, 1))
	if parts <= 1 {
		if n > 0 {
			fn(0, n)
		}
		return
	}
	var w workers
	w.Add(parts - 1)
	each, longer := n/parts, n%parts
	lo := each + min(longer, 1) // the first range is the caller's own
	for p := 1; p < parts; p++ {
		hi := lo + each
		if p < longer {
			hi++
		}
		go w.run(fn, lo, hi)
		lo = hi
	}
	w.Add(1)
	w.run(fn, 0, each+min(longer, 1))
	w.Wait()
	if p := w.panicked.Load(); p != nil {
		panic(p)
	}
}

// workers waits for the goroutines of one Parallel and keeps the first panic among them.
type workers struct {
	sync.WaitGroup
	panicked atomic.Pointer[workerPanic]
}

func (w *workers) run(fn func(lo, hi int), lo, hi int) {
	finished := false
	defer func() {
		if !finished { // a panic, or runtime.Goexit, for which recover gives nil
			w.panicked.CompareAndSwap(nil, &workerPanic{recover(), debug.Stack()})
		}
		w.Done()
	}()
	fn(lo, hi)
	finished = true
}

// workerPanic is what Parallel panics with: the value of the panic in fn and where it happened.
type workerPanic struct {
	value any
	stack []byte
}

func (p *workerPanic) Error() string {
	return fmt.Sprintf("host.Parallel: %v\n\n%s", p.value, p.stack)
}

// Origin returns the value of the panic in fn and the stack there, for those who report panics.
func (p *workerPanic) Origin() (value any, stack []byte) { return p.value, p.stack }

// Unwrap returns the value of the panic if it was an error.
func (p *workerPanic) Unwrap() error {
	err, _ := p.value.(error)
	return err
}
