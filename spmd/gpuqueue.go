package spmd

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/cuda"
	"lockstep/internal/ccall"
)

// gpuQueue is a stream on a GPU. Commands go to the driver when they are issued;
// the queue counts them, and records an event where somebody wants to know how far
// the GPU has got. So a command costs nothing beyond the driver's call, and a
// point is as cheap here as on the host.
type gpuQueue struct {
	s     *Stream
	g     *gpu
	h     *cuda.Stream
	known atomic.Uint64        // commands known to have run
	tail  atomic.Uint64        // commands issued; written under mu
	fail  atomic.Pointer[fail] // the first failure
	mu    sync.Mutex
	marks []*mark // events on their way, in order
	// capturing keeps events of the queue's own out of a graph.
	capturing bool
	closed    bool
	coll      atomic.Uint64 // the end of the last command that communicates
	progress
}

// fail is the failure of a queue: what lies behind seq is not valid.
type fail struct {
	err error
	seq uint64
}

// mark is an event behind the first seq commands.
type mark struct {
	seq   uint64
	event *cuda.Event
	users int  // who wait for it outside the lock
	gone  bool // no longer in the list
}

// These bound how a waiting host spends its time: it spins, since what it waits
// for takes microseconds; only after long does it sleep between looks.
const (
	spinSlice   = 100 * time.Microsecond
	spinAtMost  = 20 * time.Millisecond
	sleepSlice  = 50 * time.Microsecond
	healthEvery = 20 * time.Millisecond // between looks at NCCL's own errors
)

func newGPUQueue(s *Stream, p Priority) (*gpuQueue, error) {
	g := s.w.gpu
	least, greatest := g.dev.Priorities()
	level := (least + greatest) / 2
	switch p {
	case Low:
		level = least
	case High:
		level = greatest
	}
	h, err := g.dev.NewStream(level)
	if err != nil {
		return nil, err
	}
	return &gpuQueue{s: s, g: g, h: h, progress: progress{word: g.takeWord()}}, nil
}

func (q *gpuQueue) end() point { return point{q, q.tail.Load()} }

func (q *gpuQueue) idle() bool { return q.known.Load() >= q.tail.Load() }

// behind returns the first mark behind seq commands or more; nil where there is none.
// The caller holds q.mu.
func (q *gpuQueue) behind(seq uint64) *mark {
	for _, m := range q.marks {
		if m.seq >= seq {
			return m
		}
	}
	return nil
}

// at returns a mark behind seq commands or more, recording one where there is
// none; nil while the stream is being captured. The caller holds q.mu.
func (q *gpuQueue) at(seq uint64) (*mark, error) {
	if m := q.behind(seq); m != nil {
		return m, nil
	}
	if q.capturing {
		return nil, nil
	}
	m, err := q.g.mark()
	if err != nil {
		return nil, err
	}
	if err := m.event.Record(q.h); err != nil {
		q.g.recycle(m)
		return nil, err
	}
	m.seq = q.tail.Load()
	q.marks = append(q.marks, m)
	return m, nil
}

// pass drops the marks up to seq, which have been reached. The caller holds q.mu.
func (q *gpuQueue) pass(seq uint64) {
	if q.known.Load() < seq {
		q.known.Store(seq)
	}
	n := 0
	for n < len(q.marks) && q.marks[n].seq <= seq {
		m := q.marks[n]
		m.gone = true
		q.release(m)
		n++
	}
	q.marks = slices.Delete(q.marks, 0, n)
}

func (q *gpuQueue) reached(seq uint64) bool {
	if q.known.Load() >= seq {
		return true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return true // close waits
	}
	m, err := q.at(seq)
	if err != nil || m == nil {
		q.broken(err)
		return false
	}
	done, err := m.event.Query()
	if err != nil {
		q.broken(err)
	}
	if done {
		q.pass(m.seq)
	}
	return done
}

func (q *gpuQueue) wait(seq uint64) {
	if q.known.Load() >= seq {
		return
	}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return
	}
	if end, ok := q.signFor(seq); ok {
		q.mu.Unlock()
		q.spin(nil, end)
		return
	}
	m, err := q.at(seq)
	if err != nil || m == nil {
		q.mu.Unlock()
		if err == nil {
			err = fmt.Errorf("%s: stream %q is being captured", ccall.At(), q.s.name)
		}
		q.broken(err)
		return
	}
	m.users++
	q.mu.Unlock()
	done := q.spin(m.event, 0)
	q.mu.Lock()
	defer q.mu.Unlock()
	m.users--
	if done && !m.gone {
		q.pass(m.seq)
	} else {
		q.release(m)
	}
}

// release gives back a mark that is neither in the list nor waited for.
func (q *gpuQueue) release(m *mark) {
	if m.gone && m.users == 0 {
		q.g.recycle(m)
	}
}

// spin waits for an event, or without one for the queue's word, and says whether it
// came; if not, the queue has failed. seq, unless 0, is how many commands have then run.
func (q *gpuQueue) spin(e *cuda.Event, seq uint64) bool {
	start := time.Now()
	looked := start
	defer q.waiting.Store(0)
	for {
		done, err := false, error(nil)
		if e != nil {
			done, err = e.Spin(spinSlice)
		} else {
			done, err = q.watch(seq)
		}
		switch now := time.Now(); {
		case err != nil:
			q.broken(err)
			return false
		case done:
			if seq != 0 {
				q.mu.Lock()
				q.pass(seq)
				q.mu.Unlock()
			}
			return true
		case q.fail.Load() != nil && now.Sub(start) > spinAtMost:
			return false // a host function failed, and what waits for it may never end
		case now.Sub(looked) > healthEvery:
			looked = now
			q.waiting.CompareAndSwap(0, start.UnixNano())
			if err := q.g.health(); err != nil {
				q.broken(err)
				return false
			}
			fallthrough
		case now.Sub(start) > spinAtMost:
			nap()
		}
	}
}

var napTime = unix.NsecToTimespec(int64(sleepSlice))

// nap sleeps for sleepSlice. Go's timers may take over a millisecond, by which every
// wait for longer than spinAtMost would end too late.
func nap() { _ = unix.Nanosleep(&napTime, nil) }

// query asks once for an event that lies behind seq commands.
func (q *gpuQueue) query(e *cuda.Event, seq uint64) (bool, error) {
	if err := q.failure(seq); err != nil || e == nil {
		return false, err
	}
	return e.Query()
}

// broken notes a failure that came without a place in the queue.
func (q *gpuQueue) broken(err error) {
	if err != nil {
		q.failed(fmt.Errorf("stream %q: %w", q.s.name, err), 0)
	}
}

func (q *gpuQueue) failed(err error, seq uint64) {
	if q.fail.CompareAndSwap(nil, &fail{err, seq}) {
		q.s.w.fail(err)
	}
}

func (q *gpuQueue) failure(seq uint64) error {
	if f := q.fail.Load(); f != nil && seq >= f.seq {
		return f.err
	}
	return nil
}

// ready says why the queue takes no more commands, or nil. The caller holds q.mu.
func (q *gpuQueue) ready() error {
	if f := q.fail.Load(); f != nil {
		return f.err
	}
	if q.closed {
		return fmt.Errorf("%s: stream %q is closed", ccall.At(), q.s.name)
	}
	return nil
}

// startCapture keeps the queue's own events out of the graph. What was issued before
// gets its mark now: it can be waited for during the capture.
func (q *gpuQueue) startCapture() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	err := q.ready()
	if err == nil && !q.idle() {
		_, err = q.at(q.tail.Load())
	}
	q.capturing = err == nil
	return err
}

func (q *gpuQueue) endCapture() {
	q.mu.Lock()
	q.capturing = false
	q.mu.Unlock()
}

// marked records a mark at the present end.
func (q *gpuQueue) marked() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, err := q.at(q.tail.Load()); err != nil {
		q.broken(err)
	}
}

// record records e behind what has been issued.
func (q *gpuQueue) record(e *Event) (uint64, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.ready(); err != nil {
		return 0, err
	}
	if e.gpu == nil {
		var err error
		if e.gpu, err = q.g.dev.NewEvent(true); err != nil {
			return 0, err
		}
		e.w.mu.Lock()
		e.w.events = append(e.w.events, e)
		e.w.mu.Unlock()
	}
	// It counts as a command, so that no mark before it stands for it.
	if err := e.gpu.Record(q.h); err != nil {
		return 0, err
	}
	return q.tail.Add(1), nil
}

// waitEvent makes the queue wait for an event that was recorded at p.
func (q *gpuQueue) waitEvent(e *cuda.Event, p point) error {
	if err := p.failure(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.ready(); err != nil {
		return err
	}
	q.tail.Add(1)
	return q.h.Wait(e)
}

// waitFor makes the queue wait for a point of another queue.
func (q *gpuQueue) waitFor(p point) error {
	if err := p.failure(); err != nil {
		return err
	}
	other := p.q.(*gpuQueue) // of the same world
	if other.known.Load() >= p.seq {
		return nil
	}
	other.mu.Lock()
	m, err := other.at(p.seq)
	if err == nil && m != nil {
		m.users++ // until the wait is issued the event must not be recorded anew
	}
	other.mu.Unlock()
	if err == nil && m == nil {
		err = fmt.Errorf("%s: stream %q would wait for stream %q, which is being captured", ccall.At(), q.s.name, other.s.name)
	}
	if err != nil {
		return err
	}
	q.mu.Lock()
	err = q.ready()
	if err == nil {
		q.tail.Add(1)
		err = q.h.Wait(m.event)
	}
	q.mu.Unlock()
	other.mu.Lock()
	defer other.mu.Unlock()
	m.users--
	other.release(m)
	return err
}

// submit issues c to the driver; in a capture the driver adds it to the graph.
func (q *gpuQueue) submit(c *command, args []Arg) error {
	if c.kind.communicates() && c.blocks() {
		if done, err := q.atOnce(&c.call); done {
			return err
		}
	}
	if c.kind.communicates() && q.s.w.check != checkOff {
		if err := mpiTurns.enter(mpiTurns.take(1)); err != nil {
			return err
		}
		err := c.checkContract()
		mpiTurns.leave()
		if err != nil {
			return err
		}
	}
	// Before any lock: both may have to wait for this very queue.
	if err := q.g.prepare(q.s.w, c); err != nil {
		return err
	}
	var work unsafe.Pointer
	if n := c.scratchBytes(); n > 0 {
		var err error
		if work, err = q.s.scratch(n); err != nil {
			return err
		}
	}
	collective := c.kind.communicates() || (c.kind == cmdGraph && len(c.graph.comms) > 0)
	if collective {
		// The order of NCCL calls is the order of this lock: one for all streams.
		q.g.issue.Lock()
		defer q.g.issue.Unlock()
		q.g.entered = c.kind == cmdGraph
		if err := q.g.orderAfterOthers(q, c); err != nil {
			return err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.ready(); err != nil {
		return err
	}
	if cap := q.s.cap; cap != nil {
		cap.note(q.s, c, args)
		err := q.issue(c, args, work)
		if err == nil && collective && q.g.entered {
			cap.last = lastOf(q, c)
		}
		return err
	}
	if !collective {
		err := q.issue(c, args, work)
		if err == nil {
			q.tail.Add(1)
		}
		return err
	}
	now := time.Now()
	seq := q.tail.Load() + 1
	q.note(c, seq)
	q.issuing.Store(now.UnixNano())
	err := q.issue(c, args, work)
	q.issuing.Store(0)
	if err != nil {
		return err
	}
	q.tail.Store(seq)
	q.coll.Store(seq)
	if q.g.entered {
		q.g.last = lastOf(q, c)
	}
	return nil
}

// note has the communicators of a command know that it is about to be handed over.
func (q *gpuQueue) note(c *command, seq uint64) {
	c.site.Near()
	if c.kind != cmdGraph {
		c.comm.activity.issue(q, seq, c)
		return
	}
	for _, st := range c.graph.comms {
		st.activity.issue(q, seq, c)
	}
}

// scratchBytes is how much device memory a command needs beside its operands.
func (c *command) scratchBytes() int {
	switch {
	case c.kind == cmdGemm || c.kind == cmdGemv:
		return gemmWorkspace
	case c.kind == cmdGroup:
		n := 0
		for i := range c.group.cmds {
			n += c.group.cmds[i].stagingBytes()
		}
		return n
	case c.kind == cmdAllToAll && c.comm.dev == nil && c.comm.carrier(&c.call) == peerWay:
		return 0
	default:
		return c.stagingBytes()
	}
}

// issue makes the driver's call.
func (q *gpuQueue) issue(c *command, args []Arg, work unsafe.Pointer) error {
	switch c.kind {
	case cmdCopy:
		if c.n == 0 {
			return nil
		}
		return q.h.Copy(c.dst, c.src, c.n)
	case cmdFill:
		return q.fill(c)
	case cmdKernel:
		return q.launch(c.kernel, c.grid, args)
	case cmdGemm:
		return q.g.gemm(q, c, work)
	case cmdGemv:
		return q.g.gemv(q, c, work)
	case cmdFunc:
		return q.hostFunc(c.fn)
	case cmdGraph:
		c.graph.launched(point{q, q.tail.Load() + 1})
		return c.graph.exec.Launch(q.h)
	default:
		return q.communicate(&c.call, work)
	}
}

// fill sets elements of up to 4 bytes by the driver, of 8 bytes by a kernel.
func (q *gpuQueue) fill(c *command) error {
	switch size := c.typ.Size(); {
	case c.n == 0:
		return nil
	case size < 8:
		return q.h.Fill(c.dst, size, c.bits, c.n)
	default:
		args := [...]Arg{{ptr: c.dst, buf: true}, I64(c.n), U64(c.bits)}
		return q.launch(fillKernel, loopGrid(c.n), args[:])
	}
}

// launch starts a kernel. A buffer is its address, a number its bits.
func (q *gpuQueue) launch(k *Kernel, grid Grid, args []Arg) error {
	f := k.on(q.g)
	if int64(grid.Shared) > f.shared.Load() {
		if err := f.raise(grid.Shared); err != nil {
			return err
		}
	}
	var few [24]uint64
	values := few[:0]
	if len(args) > len(few) {
		values = make([]uint64, 0, len(args))
	}
	for i := range args {
		if args[i].buf {
			values = append(values, uint64(uintptr(args[i].ptr)))
		} else {
			values = append(values, args[i].bits)
		}
	}
	if err := q.h.Launch(f.f, grid.Blocks, grid.Threads, grid.Shared, values); err != nil {
		return fmt.Errorf("kernel %s, %v blocks of %v threads: %w", k.name, grid.Blocks, grid.Threads, err)
	}
	return nil
}

// hostFunc enqueues fn. Its failure fails the stream, and what follows it runs.
func (q *gpuQueue) hostFunc(fn func() error) error {
	seq := q.tail.Load() + 1
	site := ccall.At()
	var c *cuda.Callback
	var g *Graph // whose command it is, on whatever stream it is replayed
	if q.s.cap != nil {
		g = q.s.cap.g
	}
	once := g == nil
	c = cuda.NewCallback(func() {
		on := []point{{q, seq}}
		if once {
			defer c.Close()
		} else {
			on = g.replaying()
		}
		if slices.ContainsFunc(on, func(p point) bool { return p.failure() != nil }) {
			return
		}
		if err := guard(fn); err != nil {
			for _, p := range on {
				o := p.q.(*gpuQueue)
				o.failed(fmt.Errorf("stream %q, command enqueued at %s: %w", o.s.name, site, err), p.seq)
			}
		}
	})
	if !once {
		q.s.cap.g.callbacks = append(q.s.cap.g.callbacks, c)
	}
	err := q.h.HostFunc(c)
	if err != nil && once {
		c.Close()
	}
	return err
}

// close waits for the work of the queue and destroys its stream.
func (q *gpuQueue) close() error {
	q.wait(q.tail.Load())
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	q.closed = true
	q.pass(q.tail.Load())
	err := q.h.Close()
	q.giveWord()
	return err
}
