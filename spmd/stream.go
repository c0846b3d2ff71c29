package spmd

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
)

// Stream is an ordered queue of work on the rank's device: what is enqueued on
// one stream runs in that order, what is enqueued on two may run at the same
// time. Enqueueing returns at once. On the host a stream is a queue with one
// goroutine.
//
// A command that fails stops its stream: the commands behind it are not run, the
// error comes back from Synchronize and from every later call on the stream, and
// spmd.Main ends the job with it.
//
// The methods are safe for use by several goroutines, but collectives must be
// enqueued in the same order on every rank, so one goroutine should drive them.
type Stream struct {
	w    *World
	name string
	q    hostQueue
	cap  *capture // not nil between the start and the end of Capture
	join *Event   // what After records
}

// NewStream returns a new stream. The name appears in errors and reports.
func (w *World) NewStream(name string) (*Stream, error) {
	s := &Stream{w: w, name: name, join: newEvent(w)}
	s.q.init(s)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, fmt.Errorf("%s: NewStream: the world is closed", ccall.At())
	}
	w.streams = append(w.streams, s)
	go s.q.work()
	return s, nil
}

// World returns the world that the stream belongs to.
func (s *Stream) World() *World { return s.w }

// Name returns the name given to NewStream.
func (s *Stream) Name() string { return s.name }

// Synchronize blocks the host until everything enqueued on s has run, and returns
// the first error of the stream.
func (s *Stream) Synchronize() error {
	if s.cap != nil {
		return fmt.Errorf("%s: Synchronize: stream %q is being captured", ccall.At(), s.name)
	}
	return s.q.wait()
}

// Close waits for the work of s and ends it. The world closes what is left.
func (s *Stream) Close() error {
	err := s.Synchronize()
	s.w.mu.Lock()
	s.w.streams = slices.DeleteFunc(s.w.streams, func(o *Stream) bool { return o == s })
	s.w.mu.Unlock()
	s.q.close()
	return err
}

// After makes what is enqueued on s from now on wait for everything enqueued on
// other so far. It does not block the host.
func (s *Stream) After(other *Stream) error {
	if s == other {
		return nil
	}
	e := other.join
	if err := e.Record(other); err != nil {
		return err
	}
	return s.Wait(e)
}

// Wait makes what is enqueued on s from now on wait for the last Record of e. An
// event that was never recorded is not waited for. It does not block the host.
func (s *Stream) Wait(e *Event) error {
	if s.w != e.w {
		return fmt.Errorf("%s: Wait: the event belongs to another world", ccall.At())
	}
	e.mu.Lock()
	gen, in, node := e.recorded, e.cap, e.node
	e.mu.Unlock()
	if in != nil {
		return in.wait(s, node)
	}
	if gen == 0 {
		return nil
	}
	if s.cap != nil {
		return fmt.Errorf("%s: Wait: stream %q is being captured, but the event was recorded outside the capture", ccall.At(), s.name)
	}
	c := command{call: call{kind: cmdWait}, event: e, bits: gen}
	return s.submit(&c, nil)
}

// HostFunc enqueues fn on s: it runs on the host when what was enqueued before it
// has finished, and what comes after waits for it. It must not call into the
// stream or into collectives. An error or a panic fails the stream.
func (s *Stream) HostFunc(fn func() error) error {
	c := command{call: call{kind: cmdFunc}, fn: fn}
	return s.submit(&c, nil)
}

// submitCall is submit for a call, out of line: what a queue needs is not cleared
// for a blocking call.
//
//go:noinline
func (s *Stream) submitCall(asked *call) error {
	c := command{call: *asked}
	return s.submit(&c, nil)
}

// submit enqueues c, or records it where s is being captured. The arguments of a
// kernel come beside c, and are copied element by element, so that those of a
// launch stay on its caller's stack.
func (s *Stream) submit(c *command, args []Arg) error {
	if err := s.w.checkBlocks(&c.call); err != nil {
		return err
	}
	if err := s.w.checkBlock(c.xblk); err != nil {
		return err
	}
	for i := range args {
		if err := s.w.checkBlock(args[i].blk); err != nil {
			return err
		}
	}
	c.site.Here(1)
	if s.cap != nil {
		return s.cap.add(s, c, args)
	}
	return s.q.push(c, args)
}

// Event is a point in a stream, to be waited for by other streams or by the
// host. A second Record moves it.
type Event struct {
	w        *World
	mu       sync.Mutex
	cond     sync.Cond
	recorded uint64 // number of Records enqueued
	reached  uint64 // number of Records that the streams have passed
	at       time.Time
	err      error    // of the stream that was to record it
	cap      *capture // the capture it was last recorded in, if any
	node     int      // its number there
}

// NewEvent returns a new event that is not recorded yet.
func (w *World) NewEvent() (*Event, error) { return newEvent(w), nil }

func newEvent(w *World) *Event {
	e := &Event{w: w}
	e.cond.L = &e.mu
	return e
}

// Record moves the event to the present end of s. It does not block the host.
func (e *Event) Record(s *Stream) error {
	if s.w != e.w {
		return fmt.Errorf("%s: Record: the event belongs to another world", ccall.At())
	}
	if s.cap != nil {
		return s.cap.record(s, e)
	}
	e.mu.Lock()
	e.cap = nil // an earlier capture may have held it
	e.recorded++
	c := command{call: call{kind: cmdRecord}, event: e, bits: e.recorded}
	e.mu.Unlock()
	return s.submit(&c, nil)
}

// Synchronize blocks the host until the last Record has been reached, and returns
// the error of the stream where that failed before it.
func (e *Event) Synchronize() error {
	e.mu.Lock()
	gen := e.recorded
	e.mu.Unlock()
	return e.wait(gen)
}

// Elapsed returns the time from the point of since to the point of e; both must
// have been reached.
func (e *Event) Elapsed(since *Event) (time.Duration, error) {
	a, err := since.time()
	if err != nil {
		return 0, err
	}
	b, err := e.time()
	return b.Sub(a), err
}

func (e *Event) time() (time.Time, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.recorded == 0 || e.reached < e.recorded {
		return time.Time{}, fmt.Errorf("%s: Elapsed: the event has not been reached: synchronize with it first", ccall.At())
	}
	return e.at, e.err
}

func (e *Event) wait(gen uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.reached < gen && e.err == nil {
		e.cond.Wait()
	}
	return e.err
}

func (e *Event) reach(gen uint64, err error) {
	e.mu.Lock()
	if gen > e.reached {
		e.reached, e.at = gen, time.Now()
	}
	if e.err == nil {
		e.err = err
	}
	e.mu.Unlock()
	e.cond.Broadcast()
}

type cmdKind uint8

const (
	cmdCopy cmdKind = iota
	cmdFill
	cmdKernel
	cmdGemm
	cmdGemv
	cmdFunc
	cmdRecord
	cmdWait
	cmdGraph
	// From here on commands of a communicator.
	cmdAllReduce
	cmdReduce
	cmdBroadcast
	cmdAllGather
	cmdReduceScatter
	cmdAllToAll
	cmdGather
	cmdScatter
	cmdAllGatherV
	cmdReduceScatterV
	cmdGatherV
	cmdScatterV
	cmdAllToAllV
	cmdSend
	cmdRecv
	cmdSendRecv
	cmdBarrier
	cmdGroup
)

// communicates says whether the command enters MPI, and so takes its turn in the
// order in which the program issued it.
func (k cmdKind) communicates() bool { return k >= cmdAllReduce }

// call is what a command asks of a communicator, or of memory. A blocking
// collective needs no more than this, and keeps it on its caller's stack.
type call struct {
	kind     cmdKind
	typ      elem.Type
	op       elem.Op
	dst, src unsafe.Pointer
	n        int // elements, bytes for cmdCopy
	root     int // or the peer sent to
	from     int // peer received from
	rn       int // elements received by cmdSendRecv
	counts   []int
	rcounts  []int
	comm     *commState
	group    *group
	dblk     *block // what dst lies in
	sblk     *block
}

// copyFrom makes c a copy of o with slices of its own, reusing those it has.
func (c *call) copyFrom(o *call) {
	counts, rcounts := c.counts[:0], c.rcounts[:0]
	*c = *o
	c.counts = append(counts, o.counts...)
	c.rcounts = append(rcounts, o.rcounts...)
}

// command is one unit of work of a stream. One struct serves all kinds, so that a
// queue is an array of them and enqueueing allocates nothing.
type command struct {
	call
	bits   uint64 // fill value, event generation
	ticket uint64
	kernel *Kernel
	grid   Grid
	args   []Arg
	gemm   gemm
	event  *Event
	graph  *Graph
	fn     func() error
	xblk   *block // a third operand's
	site   ccall.Site
}

// copyFrom makes c a copy of o with the given arguments, and with slices of its
// own, reusing those it has.
func (c *command) copyFrom(o *command, args []Arg) {
	own, asked := c.args[:0], c.call
	*c = *o
	c.call = asked
	c.call.copyFrom(&o.call)
	c.args = append(own, args...)
}

// hostQueue is a stream in host memory: a ring of commands and one goroutine.
type hostQueue struct {
	s      *Stream
	mu     sync.Mutex
	more   sync.Cond // commands were pushed
	idle   sync.Cond // done moved
	ring   []command
	tail   uint64        // commands pushed
	done   atomic.Uint64 // commands finished; written under mu
	err    error         // the first failure: nothing runs after it
	closed bool
}

func (q *hostQueue) init(s *Stream) {
	q.s = s
	q.more.L, q.idle.L = &q.mu, &q.mu
	q.ring = make([]command, 16)
}

// push enqueues c and takes its ticket in the order of MPI calls. Holding q.mu
// while doing so keeps tickets in queue order.
func (q *hostQueue) push(c *command, args []Arg) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return q.err
	}
	if q.closed {
		return fmt.Errorf("%s: stream %q is closed", ccall.At(), q.s.name)
	}
	if q.tail-q.done.Load() == uint64(len(q.ring)) {
		q.grow()
	}
	slot := &q.ring[q.tail%uint64(len(q.ring))]
	slot.copyFrom(c, args)
	switch {
	case c.kind.communicates():
		slot.ticket = mpiTurns.take(1)
	case c.kind == cmdGraph:
		slot.ticket = mpiTurns.take(c.graph.turns)
	}
	q.tail++
	q.more.Signal()
	return nil
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
		err := failed
		if failed == nil {
			err = c.run()
		} else {
			c.skip(failed)
		}
		q.mu.Lock()
		if err != nil && q.err == nil {
			q.err = q.s.asyncError(c, err)
			q.s.w.fail(q.err)
			if c.kind == cmdRecord {
				c.event.reach(c.bits, q.err)
			}
		}
		q.done.Add(1)
		q.idle.Broadcast()
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

func (q *hostQueue) wait() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for end := q.tail; q.done.Load() < end && q.err == nil; {
		q.idle.Wait()
	}
	return q.err
}

// pending returns the end of the queue, and whether anything is before it.
func (q *hostQueue) pending() (uint64, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tail, q.done.Load() < q.tail
}

func (q *hostQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.more.Signal()
}

// skip is what is left of a command whose stream has failed: nobody may wait for
// it for ever.
func (c *command) skip(err error) {
	switch c.kind {
	case cmdRecord:
		c.event.reach(c.bits, err)
	case cmdGroup:
		c.comm.recycle(c.group)
	}
}

// run executes a command of a stream.
func (c *command) run() error {
	switch c.kind {
	case cmdCopy:
		copy(unsafe.Slice((*byte)(c.dst), c.n), unsafe.Slice((*byte)(c.src), c.n))
	case cmdFill:
		fillAs(c.typ, c.dst, c.n, c.bits)
	case cmdKernel:
		return guard(func() error { return c.kernel.host(Args{c.args}) })
	case cmdGemm, cmdGemv:
		return guard(func() error { c.blas(); return nil })
	case cmdFunc:
		return guard(c.fn)
	case cmdRecord:
		c.event.reach(c.bits, nil)
	case cmdWait:
		return c.event.wait(c.bits)
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

// guard turns a panic of fn into an error. runtime.Goexit counts as one too: the
// goroutine belongs to the stream.
func guard(fn func() error) (err error) {
	finished := false
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, debug.Stack()}
		} else if !finished {
			err = &panicError{"runtime.Goexit in a stream", debug.Stack()}
		}
	}()
	err = fn()
	finished = true
	return err
}
