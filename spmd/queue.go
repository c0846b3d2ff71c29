package spmd

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"unsafe"

	"lockstep/host"
	"lockstep/internal/ccall"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/job"
)

// cmdKind says what a command of a stream is.
type cmdKind uint8

const (
	cmdCopy cmdKind = iota
	cmdFill
	cmdKernel
	cmdLibrary
	cmdFunc
	cmdRecord
	cmdWait
	cmdGraph
	cmdCall // a call of a communicator: it takes its turn in the order in which the program issued it
)

// call is what a command asks of a communicator, or of memory. A blocking
// collective needs no more than this, and keeps it on its caller's stack.
type call struct {
	coll.Call
	route route
	begun bool // on a GPU: activity knows it already, for --check
	comm  *commState
	group *group
	dblk  *block // what Dst lies in
	sblk  *block
	site  *ccall.Site // of a command; a blocking call's is on its stack
}

// copyFrom makes c a copy of o with slices of its own, reusing those it has.
func (c *call) copyFrom(o *call) {
	counts, received := c.Counts[:0], c.RecvCounts[:0]
	*c = *o
	c.Counts = append(counts, o.Counts...)
	c.RecvCounts = append(received, o.RecvCounts...)
}

// command is one unit of work of a stream. One struct serves all kinds, so that a
// queue is an array of them and enqueueing allocates nothing.
type command struct {
	kind   cmdKind
	call              // of cmdCall, and operands of others
	bits   uint64     // fill value
	at     exec.Point // what cmdWait waits for; where cmdRecord is
	ticket uint64
	kernel *Kernel
	lib    *Library
	grid   Grid
	args   []Arg
	event  *Event
	node   int // in a capture: of cmdRecord and cmdWait
	graph  *Graph
	fn     func() error
	site   ccall.Site
}

// copyFrom makes c a copy of o with the given arguments, and with slices of its
// own, reusing those it has.
func (c *command) copyFrom(o *command, args []Arg) {
	own, counts, received := c.args[:0], c.Counts[:0], c.RecvCounts[:0]
	*c = *o
	c.Counts = append(counts, o.Counts...)
	c.RecvCounts = append(received, o.RecvCounts...)
	c.args = append(own, args...)
}

// queue is the order of a stream, on the host or on a GPU.
type queue interface {
	exec.Queue
	// end returns the present end.
	end() exec.Point
	// idle says whether everything is known to have run. It never blocks.
	idle() bool
	// close ends the queue, whose work is over.
	close() error
	// report says what the queue holds, and whether that is anything.
	report() (job.StreamState, bool)
}

// hostQueue is a stream in host memory: a ring of commands and one goroutine.
type hostQueue struct {
	s     *Stream
	mu    sync.Mutex
	more  sync.Cond // commands were pushed
	moved sync.Cond // done did
	ring  []command
	tail  uint64        // commands pushed
	done  atomic.Uint64 // commands finished; written under mu
	err   error         // the first failure: nothing runs after it
	// failedAt is the place of the command that failed, from 1.
	failedAt uint64
	closed   bool
}

func newHostQueue(s *Stream) *hostQueue {
	q := &hostQueue{s: s, ring: make([]command, 16)}
	q.more.L, q.moved.L = &q.mu, &q.mu
	return q
}

// push enqueues c, returns its place, and takes its ticket in the order of MPI
// calls. Holding q.mu while doing so keeps tickets in queue order.
func (q *hostQueue) push(c *command, args []Arg) (uint64, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return 0, q.err
	}
	if q.closed {
		return 0, fmt.Errorf("%s: stream %q is closed", ccall.At(), q.s.name)
	}
	if q.tail-q.done.Load() == uint64(len(q.ring)) {
		q.grow()
	}
	slot := &q.ring[q.tail%uint64(len(q.ring))]
	slot.copyFrom(c, args)
	slot.call.site = &slot.site
	switch {
	case c.kind == cmdCall:
		slot.ticket = q.s.w.order.Take(1)
	case c.kind == cmdGraph:
		slot.ticket = q.s.w.order.Take(c.graph.turns)
	case c.kind == cmdRecord:
		slot.at = exec.Point{Q: q, Seq: q.tail + 1}
	}
	q.tail++
	q.more.Signal()
	return q.tail, nil
}

// grow doubles the ring. The worker may be running a command in the old array,
// which stays as it is.
func (q *hostQueue) grow() {
	ring := make([]command, 2*len(q.ring))
	for i := q.done.Load(); i < q.tail; i++ {
		ring[i%uint64(len(ring))] = q.ring[i%uint64(len(q.ring))]
	}
	q.ring = ring
}

// work runs the commands, one after the other, until close.
func (q *hostQueue) work() {
	var y host.Yielder
	q.mu.Lock()
	for {
		for q.done.Load() == q.tail && !q.closed {
			q.more.Wait()
		}
		if q.done.Load() == q.tail {
			q.mu.Unlock()
			return
		}
		c, failed := &q.ring[q.done.Load()%uint64(len(q.ring))], q.err
		q.mu.Unlock()
		y.Yield()
		var err error
		if failed == nil {
			err = c.run()
		}
		q.mu.Lock()
		c = &q.ring[q.done.Load()%uint64(len(q.ring))]       // the ring may have grown meanwhile
		c.fn, c.graph, c.group, c.event = nil, nil, nil, nil // not to be kept alive by it
		if err != nil {
			q.err, q.failedAt = q.s.asyncError(c, err), q.done.Load()+1
			q.s.w.fail(q.err)
		}
		q.done.Add(1)
		q.moved.Broadcast()
	}
}

// asyncError adds what a reader of a late error lacks: the stream, and where the
// command was enqueued.
func (s *Stream) asyncError(c *command, err error) error {
	var ce *ccall.Error
	if errors.As(err, &ce) && ce.At == "" {
		ce.At = c.site.String()
		return fmt.Errorf("stream %q: %w", s.name, err)
	}
	return fmt.Errorf("stream %q, command enqueued at %s: %w", s.name, &c.site, err)
}

func (q *hostQueue) end() exec.Point {
	q.mu.Lock()
	defer q.mu.Unlock()
	return exec.Point{Q: q, Seq: q.tail}
}

func (q *hostQueue) idle() bool { return q.Reached(q.end().Seq) }

func (q *hostQueue) Reached(seq uint64) bool { return q.done.Load() >= seq }

func (q *hostQueue) Wait(seq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.done.Load() < seq && q.err == nil {
		q.moved.Wait()
	}
}

func (q *hostQueue) Failure(seq uint64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil && seq >= q.failedAt {
		return q.err
	}
	return nil
}

func (q *hostQueue) close() error {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.more.Signal()
	return nil
}

// run executes a command of a stream.
func (c *command) run() error {
	switch c.kind {
	case cmdCopy:
		copy(unsafe.Slice((*byte)(c.Dst), c.N), unsafe.Slice((*byte)(c.Src), c.N))
	case cmdFill:
		fillAs(c.Type, c.Dst, c.N, c.bits)
	case cmdKernel:
		return guard(func() error { return c.kernel.host(Args{c.args}) })
	case cmdLibrary:
		return guard(func() error { return c.lib.host(Args{c.args}) })
	case cmdFunc:
		return guard(c.fn)
	case cmdRecord:
		c.event.reached(c.at)
	case cmdWait:
		return c.at.Wait()
	case cmdGraph:
		return c.graph.replay(c.ticket)
	default:
		return c.communicate(c.ticket)
	}
	return nil
}

// panicError is a panic of application code in a stream, with its stack.
type panicError struct {
	value any
	stack []byte
}

func (p *panicError) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// Stack is that of the panic.
func (p *panicError) Stack() []byte { return p.stack }

// guard turns a panic of fn into an error. runtime.Goexit counts as one too: the
// goroutine belongs to the stream.
func guard(fn func() error) (err error) {
	finished := false
	defer func() {
		if v := recover(); v != nil {
			stack := debug.Stack()
			if o, ok := v.(interface{ Origin() (any, []byte) }); ok { // raised again by host.Parallel
				v, stack = o.Origin()
			}
			err = &panicError{v, stack}
		} else if !finished {
			err = &panicError{"runtime.Goexit in a stream", debug.Stack()}
		}
	}()
	err = fn()
	finished = true
	return err
}
