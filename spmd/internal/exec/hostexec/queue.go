package hostexec

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"lockstep/host"
	"lockstep/internal/ccall"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/kernels"
	"lockstep/spmd/internal/trace"
)

// queue is a stream in host memory: a ring of commands and one goroutine.
type queue struct {
	exec.Seat
	d     *Host
	name  string
	mu    sync.Mutex
	more  sync.Cond // commands were enqueued
	moved sync.Cond // done did
	ring  []slot
	tail  uint64        // commands enqueued
	done  atomic.Uint64 // commands finished; written under mu
	err   error         // the first failure: nothing runs after it
	// failedAt is the place of the command that failed, from 1.
	failedAt uint64
	closed   bool
	scratch  exec.Scratch
	lane     atomic.Pointer[exec.Lane] // while it is captured; written under mu
	events   *trace.Thread             // nil if nobody notes them
	looked   atomic.Int64              // when stayNear last did, in ns; graphs run commands of the queue beside it
}

// slot is a command, and what the queue has of it.
type slot struct {
	exec.Command
	ticket uint64     // of its calls
	at     exec.Point // what a DoWait waits for; where a DoRecord is
	timer  *timer     // of a DoRecord
	node   int        // in a capture: of a DoRecord and a DoWait
	as     *Emulator  // runs kernels, and libraries that only launch kernels; nil for their host functions
}

func newQueue(d *Host, name string) *queue {
	q := &queue{d: d, name: name, ring: make([]slot, 16), events: d.Trace.Thread("stream " + name)}
	q.more.L, q.moved.L = &q.mu, &q.mu
	return q
}

var _ exec.Queue = (*queue)(nil)

func (q *queue) Name() string { return q.name }

func (q *queue) Lane() *exec.Lane { return q.lane.Load() }

func (q *queue) Begin(k exec.CommandKind) (*exec.Command, error) {
	s, err := q.begin(k)
	if err != nil {
		return nil, err
	}
	return &s.Command, nil
}

// begin is Begin for any kind.
func (q *queue) begin(k exec.CommandKind) (*slot, error) {
	q.mu.Lock()
	if l := q.lane.Load(); l != nil {
		s := l.Track.(*track).next()
		s.Kind = k
		return s, nil
	}
	if q.err != nil || q.closed {
		defer q.mu.Unlock()
		return nil, q.refusal()
	}
	if q.tail-q.done.Load() == uint64(len(q.ring)) {
		q.grow()
	}
	s := &q.ring[q.tail%uint64(len(q.ring))]
	s.Kind = k
	return s, nil
}

// refusal returns why the queue takes no more commands.
func (q *queue) refusal() error {
	if q.err != nil {
		return q.err
	}
	return fmt.Errorf("%s: stream %q is closed", ccall.At(), q.name)
}

// Enqueue implements exec.Queue. It takes the tickets of a command, so that tickets are in the
// order of the queue.
func (q *queue) Enqueue(c *exec.Command) error {
	if err := q.Check(c, q.lane.Load(), q.tail+1); err != nil {
		q.mu.Unlock()
		return err
	}
	q.enqueue((*slot)(unsafe.Pointer(c))) // its first field
	return nil
}

// enqueue enqueues what begin returned, and returns its place.
func (q *queue) enqueue(s *slot) uint64 {
	defer q.mu.Unlock()
	s.Site.Near()
	if s.as != q.d.Emulator { // to store a pointer costs more
		s.as = q.d.Emulator
	}
	if l := q.lane.Load(); l != nil {
		l.Takes(&s.Command)
		l.Track.(*track).add(s)
		return 0
	}
	switch s.Kind {
	case exec.DoCall:
		s.ticket = q.d.tickets.Take(1)
	case exec.DoGraph:
		s.ticket = q.d.tickets.Take(s.Capture.Replay.(*graph).turns)
	case exec.DoRecord:
		s.at = exec.Point{Q: q, Seq: q.tail + 1}
	}
	if q.done.Load() == q.tail { // else nobody waits
		q.more.Signal()
	}
	q.tail++
	return q.tail
}

func (q *queue) Uses(a, b *exec.Block) {
	if l := q.lane.Load(); l != nil {
		l.Uses(a, b)
		return
	}
	seq := q.tail + 1
	a.UsedBy(&q.Seat, seq)
	b.UsedBy(&q.Seat, seq)
}

func (q *queue) UsesArgs(c *exec.Command) {
	if l := q.lane.Load(); l != nil {
		for i := range c.Args {
			l.Uses(c.Args[i].Block, nil)
		}
		return
	}
	seq := q.tail + 1
	for i := range c.Args {
		c.Args[i].Block.UsedBy(&q.Seat, seq)
	}
}

func (q *queue) Using(b *exec.Block) (p exec.Point, pending bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	seq := min(b.LastUse(&q.Seat), q.tail) // another queue may have had the seat
	if q.done.Load() >= seq {
		b.Unused(&q.Seat)
		return p, false
	}
	return exec.Point{Q: q, Seq: seq}, true
}

// grow doubles the ring. The worker may be running a command in the old array, which is unchanged.
func (q *queue) grow() {
	ring := make([]slot, 2*len(q.ring))
	for i := q.done.Load(); i < q.tail; i++ {
		ring[i%uint64(len(ring))] = q.ring[i%uint64(len(q.ring))]
	}
	q.ring = ring
}

// work runs the commands, one after the other, until Close.
func (q *queue) work() {
	var y host.Yielder
	running := false
	defer func() {
		if running { // a function of the program has ended this goroutine
			q.mu.Lock()
			q.over(exec.Exited())
			q.mu.Unlock()
			go q.work()
		}
	}()
	q.mu.Lock()
	for {
		for q.done.Load() == q.tail && !q.closed {
			q.more.Wait()
		}
		if q.done.Load() == q.tail {
			q.mu.Unlock()
			return
		}
		s, failed := &q.ring[q.done.Load()%uint64(len(q.ring))], q.err
		q.mu.Unlock()
		y.Yield()
		var err error
		if failed == nil {
			running = true
			err = q.execute(s, s.ticket)
			running = false
		}
		q.mu.Lock()
		q.over(err)
	}
}

// over ends the command that runs. The caller has the lock.
func (q *queue) over(err error) {
	s := &q.ring[q.done.Load()%uint64(len(q.ring))] // the ring may have grown meanwhile
	s.Func, s.Capture, s.timer = nil, nil, nil      // not to be kept alive by it
	if err != nil {
		q.err, q.failedAt = q.asyncError(s, err), q.done.Load()+1
		q.d.fail(q.err)
	}
	q.done.Add(1)
	q.moved.Broadcast()
}

// asyncError adds what a reader of a late error lacks: the stream, and where the
// command was enqueued.
func (q *queue) asyncError(s *slot, err error) error {
	err = q.d.Found.Of(err)
	var ce *ccall.Error
	if errors.As(err, &ce) && ce.At == "" {
		ce.At = s.Site.String()
		return fmt.Errorf("stream %q: %w", q.name, err)
	}
	return fmt.Errorf("stream %q, command enqueued at %s: %w", q.name, &s.Site, err)
}

func (q *queue) End() exec.Point {
	q.mu.Lock()
	defer q.mu.Unlock()
	return exec.Point{Q: q, Seq: q.tail}
}

func (q *queue) Idle() bool { return q.Reached(q.End().Seq) }

var _ exec.Order = (*queue)(nil)

func (q *queue) Reached(seq uint64) bool { return q.done.Load() >= seq }

func (q *queue) Wait(seq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.done.Load() < seq && q.err == nil {
		q.moved.Wait()
	}
}

func (q *queue) Failure(seq uint64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil && seq >= q.failedAt {
		return q.err
	}
	return nil
}

func (q *queue) After(p exec.Point, _ exec.Timer) error {
	if done, err := p.Passed(); done {
		return err
	}
	s, err := q.begin(exec.DoWait)
	if err != nil {
		return err
	}
	s.at = p
	q.enqueue(s)
	return nil
}

func (q *queue) Scratch(n int) (*exec.Block, error) {
	if l := q.lane.Load(); l != nil {
		return l.Scratch(q.d.pool, n)
	}
	return q.scratch.Get(q.d.pool, n, func(b *exec.Block) { q.d.pool.Release(b, q.d.Marks()) })
}

func (q *queue) Passed() uint64 { return q.done.Load() }

func (q *queue) Running(is func(*exec.Command) bool) (site string, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.done.Load() == q.tail {
		return "", false
	}
	c := &q.ring[q.done.Load()%uint64(len(q.ring))]
	return c.Site.String(), is(&c.Command)
}

func (q *queue) State() (exec.State, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	done := q.done.Load()
	if done == q.tail {
		return exec.State{}, false
	}
	c := &q.ring[done%uint64(len(q.ring))]
	s := exec.State{Waiting: q.tail - done, Command: c.Kind.String(), At: "from " + c.Site.String()}
	switch c.Kind {
	case exec.DoCall:
		s.Command = c.Call.String()
	case exec.DoLibrary:
		s.Command = c.Library.Name
	}
	return s, true
}

func (q *queue) Close() error {
	q.d.Remove(q)
	q.events.Close()
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.more.Signal()
	if b := q.scratch.Take(); b != nil {
		q.d.pool.Release(b, nil)
	}
	return nil
}

// nearEvery is the least time between two looks of a queue that computes at the core that it is on.
const nearEvery = time.Millisecond

// stayNear has what computes for long stay on the cores of its rank. The thread is that of the
// command that follows.
func (q *queue) stayNear() {
	if now := time.Now().UnixNano(); now-q.looked.Load() > int64(nearEvery) {
		q.looked.Store(now)
		q.d.Near()
	}
}

// execute runs a command, whose first call has a ticket, and notes it.
func (q *queue) execute(s *slot, ticket uint64) error {
	if q.d.Near != nil && (s.Kind == exec.DoKernel || s.Kind == exec.DoLibrary) {
		q.stayNear()
	}
	if q.events == nil {
		return q.run(s, nil, ticket)
	}
	class, name, bytes := s.Describe()
	if class == trace.Classes { // a call notes itself, and an event takes no time
		return q.run(s, q.events, ticket)
	}
	m := q.events.Begin(class)
	err := q.run(s, q.events, ticket)
	if class == trace.Wait {
		q.events.EndLong(m, name)
	} else {
		q.events.End(m, class, name, bytes)
	}
	return err
}

// run executes a command.
func (q *queue) run(s *slot, events *trace.Thread, ticket uint64) error {
	switch s.Kind {
	case exec.DoCopy:
		copy(unsafe.Slice((*byte)(s.Dst), s.N), unsafe.Slice((*byte)(s.Src), s.N))
	case exec.DoFill:
		FillAs(s.Type, s.Dst, s.N, s.Bits)
	case exec.DoPrefetch: // there is one memory
	case exec.DoKernel:
		if s.as != nil {
			return s.as.Launch(s.Kernel, s.Grid, s.Args)
		}
		if kernels.RunningBoth() {
			return compareKernel(s.Kernel, s.Grid, s.Args)
		}
		return exec.GuardKernel(s.Kernel.Name(), func() error { return s.Kernel.Host()(s.Args) })
	case exec.DoLibrary:
		if s.as != nil && s.Library.OnlyKernels {
			return s.as.call(s.Library, s.Args, s.N)
		}
		if kernels.RunningBoth() && s.Library.OnlyKernels {
			return compareLibrary(s.Library, s.Args, s.N)
		}
		return exec.Guard(func() error { return s.Library.Host(s.Args) })
	case exec.DoFunc:
		return exec.HostFunc(s.Func)
	case exec.DoRecord:
		s.timer.reached(s.at)
	case exec.DoWait:
		return s.at.Wait()
	case exec.DoGraph:
		return s.Capture.Replay.(*graph).replay(ticket)
	default:
		return q.call(s, events, ticket)
	}
	return nil
}

// call makes a call of a communicator in its turn, so that all ranks enter MPI in one order.
func (q *queue) call(s *slot, events *trace.Thread, ticket uint64) error {
	if err := q.d.tickets.Enter(ticket); err != nil {
		return err
	}
	err := s.Call.Run(events)
	q.d.tickets.Leave()
	return err
}
