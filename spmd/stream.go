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
// The methods, Capture excepted, are safe for use by several goroutines; but
// collectives must be enqueued in the same order on every rank, so one goroutine
// should drive them. The queue has no bound: a program that enqueues for ever
// synchronizes now and then.
type Stream struct {
	w    *World
	name string
	q    hostQueue
	cap  *capture // not nil between the start and the end of Capture
}

// NewStream returns a new stream. The name appears in errors and reports.
func (w *World) NewStream(name string) (*Stream, error) {
	s := &Stream{w: w, name: name}
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
	return s.q.end().wait()
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
// other so far. It does not block the host. It fails where other has failed.
func (s *Stream) After(other *Stream) error {
	switch {
	case s == other:
		return nil
	case s.w != other.w:
		return fmt.Errorf("%s: After: stream %q belongs to another world than %q", ccall.At(), other.name, s.name)
	case other.cap != nil:
		node, err := other.cap.record(other)
		if err != nil {
			return err
		}
		return other.cap.wait(s, node)
	}
	return s.waitFor(other.q.end())
}

// Wait makes what is enqueued on s from now on wait for the point of the last
// Record of e; a later Record does not change it. An event that was never recorded
// is not waited for. It does not block the host.
func (s *Stream) Wait(e *Event) error {
	if s.w != e.w {
		return fmt.Errorf("%s: Wait: the event belongs to another world", ccall.At())
	}
	p, in, node := e.last()
	if in != nil {
		return in.wait(s, node)
	}
	return s.waitFor(p)
}

// waitFor enqueues the waiting for a point of another stream.
func (s *Stream) waitFor(p point) error {
	switch {
	case p.q == nil || p.q == &s.q:
		return nil
	case s.cap != nil:
		return fmt.Errorf("%s: Wait: stream %q is being captured, and would wait for what is outside the capture", ccall.At(), s.name)
	}
	if done, err := p.passed(); done {
		return err
	}
	c := command{call: call{kind: cmdWait}, at: p}
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
	_, err := s.q.push(c, args)
	return err
}

// point is a place in a queue: behind its first seq commands.
type point struct {
	q   *hostQueue
	seq uint64
}

// passed says whether the queue has got there, and the error where it never will.
func (p point) passed() (bool, error) {
	if p.q == nil || p.q.done.Load() >= p.seq {
		return true, p.failure()
	}
	return false, nil
}

// wait blocks until the queue has got there.
func (p point) wait() error {
	if p.q == nil {
		return nil
	}
	p.q.mu.Lock()
	for p.q.done.Load() < p.seq && p.q.err == nil {
		p.q.idle.Wait()
	}
	p.q.mu.Unlock()
	return p.failure()
}

// failure returns the error of a queue that failed before the point.
func (p point) failure() error {
	if p.q == nil {
		return nil
	}
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	if p.q.err != nil && p.seq >= p.q.failedAt {
		return p.q.err
	}
	return nil
}

// Event is a point in a stream, to be waited for by other streams or by the
// host. A second Record moves it, for those who wait from then on.
type Event struct {
	w    *World
	mu   sync.Mutex
	at   point
	time time.Time // when the stream got there; zero before
	cap  *capture  // the capture it was last recorded in, if any
	node int       // its number there
}

// NewEvent returns a new event that is not recorded yet.
func (w *World) NewEvent() (*Event, error) { return &Event{w: w}, nil }

// Record moves the event to the present end of s. It does not block the host. It
// fails where s has failed or is closed, and the event stays where it was.
func (e *Event) Record(s *Stream) error {
	if s.w != e.w {
		return fmt.Errorf("%s: Record: the event belongs to another world", ccall.At())
	}
	e.mu.Lock() // until the new point is there: the stream may get to it at once
	defer e.mu.Unlock()
	if s.cap != nil {
		node, err := s.cap.record(s)
		if err == nil {
			e.cap, e.node = s.cap, node
		}
		return err
	}
	c := command{call: call{kind: cmdRecord}, event: e}
	c.site.Here(0)
	seq, err := s.q.push(&c, nil)
	if err == nil {
		e.at, e.time, e.cap = point{&s.q, seq}, time.Time{}, nil
	}
	return err
}

// reached notes the time at which a queue got to p.
func (e *Event) reached(p point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at == p {
		e.time = time.Now()
	}
}

func (e *Event) last() (point, *capture, int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.at, e.cap, e.node
}

// Synchronize blocks the host until the last Record has been reached, and returns
// the error of the stream where that failed before it. An event recorded in a
// capture is a point of the graph, not of a stream: it cannot be synchronized with.
func (e *Event) Synchronize() error {
	p, in, _ := e.last()
	if in != nil {
		return fmt.Errorf("%s: Synchronize: the event was recorded in a capture", ccall.At())
	}
	return p.wait()
}

// Elapsed returns the time from the point of since to the point of e; both must
// have been reached.
func (e *Event) Elapsed(since *Event) (time.Duration, error) {
	var t [2]time.Time
	for i, x := range [2]*Event{since, e} {
		p, in, _ := x.last()
		done, err := p.passed()
		if err != nil {
			return 0, err
		}
		if p.q == nil || in != nil || !done {
			return 0, fmt.Errorf("%s: Elapsed: the event has not been reached: synchronize with it first", ccall.At())
		}
		x.mu.Lock()
		t[i] = x.time
		x.mu.Unlock()
	}
	return t[1].Sub(t[0]), nil
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
	bits   uint64 // fill value
	at     point  // what cmdWait waits for; where cmdRecord is
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
	s    *Stream
	mu   sync.Mutex
	more sync.Cond // commands were pushed
	idle sync.Cond // done moved
	ring []command
	tail uint64        // commands pushed
	done atomic.Uint64 // commands finished; written under mu
	err  error         // the first failure: nothing runs after it
	// failedAt is the place of the command that failed, from 1.
	failedAt uint64
	closed   bool
}

func (q *hostQueue) init(s *Stream) {
	q.s = s
	q.more.L, q.idle.L = &q.mu, &q.mu
	q.ring = make([]command, 16)
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
	switch {
	case c.kind.communicates():
		slot.ticket = mpiTurns.take(1)
	case c.kind == cmdGraph:
		slot.ticket = mpiTurns.take(c.graph.turns)
	case c.kind == cmdRecord:
		slot.at = point{q, q.tail + 1}
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
		var err error
		if failed == nil {
			err = c.run()
		}
		c.fn, c.graph, c.group, c.event = nil, nil, nil, nil // not to be kept alive by a ring
		q.mu.Lock()
		if err != nil {
			q.err, q.failedAt = q.s.asyncError(c, err), q.done.Load()+1
			q.s.w.fail(q.err)
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

// end returns the present end of the queue.
func (q *hostQueue) end() point {
	q.mu.Lock()
	defer q.mu.Unlock()
	return point{q, q.tail}
}

func (q *hostQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.more.Signal()
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
		c.event.reached(c.at)
	case cmdWait:
		return c.at.wait()
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
