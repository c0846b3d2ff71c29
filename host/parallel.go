package host

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

var threads atomic.Int64

func init() { SetThreads(0) }

// SetThreads sets how many cores Parallel, and functions built on it, use from now on. n < 1
// restores the default: the cores of the machine, or fewer if Go itself is confined to fewer
// (GOMAXPROCS, a container's CPU limit).
func SetThreads(n int) {
	if n < 1 {
		n = min(runtime.NumCPU(), runtime.GOMAXPROCS(0))
	}
	threads.Store(int64(n))
}

// shares has the shares of the ranks that this process has now.
var shares struct {
	mu   sync.Mutex
	list []*int
}

// Share is SetThreads for a rank of this process, until end. Parallel does not know for which rank
// it is called: none has more than the least share of all. When the last has ended, the default
// holds again.
func Share(n int) (end func()) {
	mine := &n
	shares.mu.Lock()
	defer shares.mu.Unlock()
	shares.list = append(shares.list, mine)
	setLeast()
	return func() {
		shares.mu.Lock()
		defer shares.mu.Unlock()
		if i := slices.Index(shares.list, mine); i >= 0 {
			shares.list = slices.Delete(shares.list, i, i+1)
			setLeast()
		}
	}
}

// setLeast sets the least of the shares, whose lock the caller holds.
func setLeast() {
	least := 0
	for i, n := range shares.list {
		if i == 0 || *n < least {
			least = *n
		}
	}
	SetThreads(least)
}

// Threads returns the number of cores this rank may use; at least 1.
func Threads() int { return int(threads.Load()) }

// Parallel calls fn on consecutive ranges [lo, hi) that together are [0, n), each in its own
// goroutine, and returns when all are done. There are at most Threads ranges, none shorter than
// grain (n itself excepted) and none more than one longer than another. Their begins depend on n,
// grain and Threads only. A single range is a plain call of fn; n < 1 calls nothing.
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
	w.Add(parts)
	c := &standby
	ours := c.mu.TryLock() // else another Parallel has the helpers: its own fn, or another goroutine
	if ours {
		c.grow(parts - 1)
	}
	left := true // by runtime.Goexit in fn, which ends this goroutine
	defer func() {
		if ours {
			c.await(parts - 1)
		}
		w.Wait()
		if ours {
			c.mu.Unlock()
		}
		if p := w.panicked.Load(); p != nil && !left {
			panic(p)
		}
	}()
	each, longer := n/parts, n%parts
	lo := each + min(longer, 1) // the first range is the caller's own
	for p := 1; p < parts; p++ {
		hi := lo + each
		if p < longer {
			hi++
		}
		if ours {
			c.helpers[p-1].start(&w, fn, lo, hi)
		} else {
			go w.run(fn, lo, hi, nil)
		}
		lo = hi
	}
	w.run(fn, 0, each+min(longer, 1), nil)
	left = false
}

// workers waits for the goroutines of one Parallel and keeps the first panic among them.
type workers struct {
	sync.WaitGroup
	panicked atomic.Pointer[workerPanic]
}

// run calls fn; h is the helper whose goroutine this is, if any.
func (w *workers) run(fn func(lo, hi int), lo, hi int, h *helper) {
	finished := false
	defer func() {
		if !finished { // a panic, or runtime.Goexit, for which recover gives nil
			w.panicked.CompareAndSwap(nil, &workerPanic{recover(), debug.Stack()})
		}
		if h != nil {
			h.state.Store(idle)
		}
		w.Done()
	}()
	fn(lo, hi)
	finished = true
}

// standby are the goroutines that wait for the next Parallel. A new goroutine is as quick to make.
// But the system often starts its thread on the core that the caller is busy on, and takes a
// millisecond to move it. A thread that keeps looking for work for a while stays on its core.
var standby crew

type crew struct {
	mu      sync.Mutex // held by the Parallel that uses the helpers
	helpers []*helper
}

type helper struct {
	state  atomic.Int32 // idle, working or asleep
	wake   chan struct{}
	w      *workers
	fn     func(lo, hi int)
	lo, hi int
}

const (
	idle = iota
	working
	asleep
)

// spins is how often a waiting goroutine looks before it sleeps: about 50 us, the time between the
// kernels of a stream.
const spins = 100_000

// Yielder keeps Go's monitor thread away from a goroutine that computes in C without a pause. The
// monitor takes a goroutine that has not passed through the scheduler for 10 ms for one that blocks
// others. It then looks at it every 20 us, from the core that it computes on, which costs an eighth
// of that core.
type Yielder struct{ last time.Time }

// Yield passes through the scheduler if 5 ms have gone since it last did; call it between pieces of
// work.
func (y *Yielder) Yield() {
	if now := time.Now(); now.Sub(y.last) > 5*time.Millisecond {
		y.last = now
		runtime.Gosched()
	}
}

func (c *crew) grow(n int) {
	for len(c.helpers) < n {
		h := &helper{wake: make(chan struct{}, 1)}
		c.helpers = append(c.helpers, h)
		go h.loop()
	}
}

// await looks for the end of the first n helpers' work for a while.
func (c *crew) await(n int) {
	for _, h := range c.helpers[:n] {
		for i := 0; i < spins && h.state.Load() == working; i++ {
		}
	}
}

func (h *helper) start(w *workers, fn func(lo, hi int), lo, hi int) {
	h.w, h.fn, h.lo, h.hi = w, fn, lo, hi
	if h.state.Swap(working) == asleep {
		h.wake <- struct{}{}
	}
}

func (h *helper) loop() {
	defer func() { go h.loop() }() // reached when fn calls runtime.Goexit
	var y Yielder
	for {
		y.Yield()
		for i := 0; i < spins && h.state.Load() != working; i++ {
		}
		if h.state.CompareAndSwap(idle, asleep) {
			<-h.wake
		}
		w, fn := h.w, h.fn
		h.w, h.fn = nil, nil
		w.run(fn, h.lo, h.hi, h)
	}
}

// workerPanic is the value of Parallel's panic: the value of the panic in fn, and where it
// happened.
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
