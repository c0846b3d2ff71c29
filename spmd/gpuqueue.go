package spmd

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/spmd/internal/exec"
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
	args  []Arg   // of the Library being called
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

func (q *gpuQueue) end() exec.Point { return exec.Point{Q: q, Seq: q.tail.Load()} }

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

func (q *gpuQueue) Reached(seq uint64) bool {
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

func (q *gpuQueue) Wait(seq uint64) {
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
				q.broken(fmt.Errorf("waiting at %s: %w", ccall.At(), err))
				return false
			}
			fallthrough
		case now.Sub(start) > spinAtMost:
			exec.Nap()
		}
	}
}

// query asks once for an event that lies behind seq commands.
func (q *gpuQueue) query(e *cuda.Event, seq uint64) (bool, error) {
	if err := q.Failure(seq); err != nil || e == nil {
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

func (q *gpuQueue) Failure(seq uint64) error {
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
func (q *gpuQueue) waitEvent(e *cuda.Event, p exec.Point) error {
	if err := p.Failure(); err != nil {
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
func (q *gpuQueue) waitFor(p exec.Point) error {
	if err := p.Failure(); err != nil {
		return err
	}
	other := p.Q.(*gpuQueue) // of the same world
	if other.known.Load() >= p.Seq {
		return nil
	}
	other.mu.Lock()
	m, err := other.at(p.Seq)
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

// close waits for the work of the queue and destroys its stream.
func (q *gpuQueue) close() error {
	q.Wait(q.tail.Load())
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
