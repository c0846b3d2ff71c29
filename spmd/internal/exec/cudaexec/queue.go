package cudaexec

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/spmd/internal/exec"
)

// Queue is a stream on a GPU. Commands go to the driver when they are enqueued, and the queue
// counts them. It records an event when somebody wants to know how far the GPU has got. So a
// command costs nothing beyond the driver's call, and a point is as cheap here as on the host.
type Queue struct {
	exec.Seat
	d     *CUDA
	g     *GPU
	name  string
	h     *cuda.Stream
	front sync.Mutex // from Begin to Enqueue
	slot  exec.Command
	now   issuing       // slot, while it is issued; under mu
	using []*exec.Block // by slot
	work  exec.Scratch
	known atomic.Uint64           // commands known to have run
	tail  atomic.Uint64           // commands issued; written under mu
	fail  atomic.Pointer[failure] // the first failure
	mu    sync.Mutex
	marks []*Mark // events on their way, in order
	// lane is set while the queue is captured. Then events of the queue's own are kept out of the
	// graph.
	lane   atomic.Pointer[exec.Lane]
	closed bool
	coll   atomic.Uint64 // the end of the last command that communicates
	progress
	timing
}

// failure is a queue's failure: results behind seq are not valid.
type failure struct {
	err error
	seq uint64
}

// Mark is an event behind the first seq commands.
type Mark struct {
	seq   uint64
	event *cuda.Event
	users int  // who wait for it outside the lock
	gone  bool // no longer in the list
}

// These bound how a waiting host spends its time. It spins, since the wait takes microseconds, and
// after each slice lets others run on its core. Only after a long time does it sleep between looks.
// If ranks share cores it lets others run after each look, and soon sleeps.
const (
	spinSlice   = 100 * time.Microsecond
	spinAtMost  = 20 * time.Millisecond
	yieldAtMost = 20 * time.Microsecond
	healthEvery = 20 * time.Millisecond // between looks at failures that no call returns
)

// pile is how many marks a queue collects before it asks which of them were reached. A host that
// waits for the queue drops them. A host that only waits for other queues, which wait for this one,
// does not.
const pile = 32

func (d *CUDA) NewQueue(name string, p exec.Priority) (exec.Queue, error) {
	least, greatest := d.GPU.Dev.Priorities()
	level := (least + greatest) / 2
	switch p {
	case exec.Low:
		level = least
	case exec.High:
		level = greatest
	}
	h, err := d.GPU.Dev.NewStream(level)
	if err != nil {
		return nil, err
	}
	q := &Queue{d: d, g: d.GPU, name: name, h: h, progress: progress{word: d.GPU.takeWord()}}
	if err := q.observe(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	d.Add(q)
	return q, nil
}

var _ exec.Queue = (*Queue)(nil)

func (q *Queue) Name() string { return q.name }

// Stream returns the queue as the driver has it.
func (q *Queue) Stream() *cuda.Stream { return q.h }

func (q *Queue) Lane() *exec.Lane { return q.lane.Load() }

func (q *Queue) End() exec.Point { return exec.Point{Q: q, Seq: q.tail.Load()} }

func (q *Queue) Idle() bool { return q.known.Load() >= q.tail.Load() }

func (q *Queue) State() (exec.State, bool) {
	passed, tail := q.Passed(), q.tail.Load()
	return exec.State{Waiting: tail - min(passed, tail), Device: true}, tail > passed
}

// Running implements exec.Queue: the host runs none.
func (q *Queue) Running(func(*exec.Command) bool) (string, bool) { return "", false }

func (q *Queue) Uses(a, b *exec.Block) {
	if l := q.Lane(); l != nil {
		l.Uses(a, b)
		return
	}
	q.uses(a)
	q.uses(b)
}

func (q *Queue) UsesArgs(c *exec.Command) {
	for i := range c.Args {
		q.Uses(c.Args[i].Block, nil)
	}
}

func (q *Queue) uses(b *exec.Block) {
	if b != nil {
		q.using = append(q.using, b)
	}
}

func (q *Queue) Using(b *exec.Block) (p exec.Point, pending bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	seq := min(b.LastUse(&q.Seat), q.tail.Load()) // another queue may have had the seat
	if q.known.Load() >= seq || q.closed {
		b.Unused(&q.Seat)
		return p, false
	}
	return exec.Point{Q: q, Seq: seq}, true
}

// Written notes that what used a block has written it.
func (q *Queue) Written(b *exec.Block) {
	q.mu.Lock()
	defer q.mu.Unlock()
	b.Unused(&q.Seat)
}

// Tail returns how many commands have been enqueued.
func (q *Queue) Tail() uint64 { return q.tail.Load() }

// Pass notes that the first seq commands have run.
func (q *Queue) Pass(seq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pass(seq)
}

func (q *Queue) Scratch(n int) (*exec.Block, error) {
	if l := q.lane.Load(); l != nil {
		return l.Scratch(q.d.pools.Device, n)
	}
	return q.work.Get(q.d.pools.Device, n, func(b *exec.Block) { b.Pool.Release(b, q.d.Marks()) })
}

// behind returns the first mark behind seq commands or more; nil if there is none. The caller holds
// q.mu.
func (q *Queue) behind(seq uint64) *Mark {
	for _, m := range q.marks {
		if m.seq >= seq {
			return m
		}
	}
	return nil
}

// at returns a mark behind seq commands or more, recording one if there is none; nil while the
// stream is being captured. The caller holds q.mu.
func (q *Queue) at(seq uint64) (*Mark, error) {
	if m := q.behind(seq); m != nil {
		return m, nil
	}
	if q.lane.Load() != nil {
		return nil, nil
	}
	if n := len(q.marks); n > 0 && n%pile == 0 {
		half := q.marks[n/2-1]
		done, err := half.event.Query()
		if err != nil {
			return nil, err
		}
		if done {
			q.pass(half.seq)
		}
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

// keepUp learns how far the GPU has got, and leaves a mark for the next time. Nothing else does if
// no host waits for the queue. The caller holds q.mu.
func (q *Queue) keepUp() error {
	for len(q.marks) > 0 {
		first := q.marks[0]
		done, err := first.event.Query()
		if err != nil {
			return err
		}
		if !done {
			break
		}
		q.pass(first.seq)
	}
	_, err := q.at(q.tail.Load())
	return err
}

// pass drops the marks up to seq, which have been reached. The caller holds q.mu.
func (q *Queue) pass(seq uint64) {
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

var _ exec.Order = (*Queue)(nil)

func (q *Queue) Reached(seq uint64) bool {
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

func (q *Queue) Wait(seq uint64) {
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
			err = fmt.Errorf("%s: stream %q is being captured", ccall.At(), q.name)
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
		q.read()
	} else {
		q.release(m)
	}
}

// release gives back a mark that is neither in the list nor waited for.
func (q *Queue) release(m *Mark) {
	if m.gone && m.users == 0 {
		q.g.recycle(m)
	}
}

// spin waits for an event, or without one for the queue's word, and says whether it
// came; if not, the queue has failed. seq, unless 0, is how many commands have then run.
func (q *Queue) spin(e *cuda.Event, seq uint64) bool {
	slice, patience := spinSlice, spinAtMost
	if q.d.Crowded {
		slice, patience = 0, yieldAtMost
	}
	start := time.Now()
	looked := start
	defer q.waiting.Store(0)
	for {
		done, err := false, error(nil)
		if e != nil {
			done, err = e.Spin(slice)
		} else {
			done, err = q.watch(seq, slice)
		}
		switch now := time.Now(); {
		case err != nil:
			q.broken(err)
			return false
		case done:
			if seq != 0 {
				q.mu.Lock()
				q.pass(seq)
				q.read()
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
		case now.Sub(start) > patience:
			exec.Nap()
		default:
			exec.Yield()
		}
	}
}

// broken notes a failure that came without a place in the queue.
func (q *Queue) broken(err error) {
	if err != nil {
		q.failed(fmt.Errorf("stream %q: %w", q.name, err), 0)
	}
}

func (q *Queue) failed(err error, seq uint64) {
	err = q.d.Found.Of(err)
	if q.fail.CompareAndSwap(nil, &failure{err, seq}) {
		q.d.fail(err)
	}
}

func (q *Queue) Failure(seq uint64) error {
	if f := q.fail.Load(); f != nil && seq >= f.seq {
		return f.err
	}
	return nil
}

// ready says why the queue takes no more commands, or nil. The caller holds q.mu.
func (q *Queue) ready() error {
	if f := q.fail.Load(); f != nil {
		return f.err
	}
	if q.closed {
		return fmt.Errorf("%s: stream %q is closed", ccall.At(), q.name)
	}
	return nil
}

// marked records a mark at the present end.
func (q *Queue) marked() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, err := q.at(q.tail.Load()); err != nil {
		q.broken(err)
	}
}

// After implements exec.Queue. If there is an e, it was recorded at p: the wait is for it, and
// needs no event of its own.
func (q *Queue) After(p exec.Point, e exec.Timer) error {
	if err := p.Failure(); err != nil {
		return err
	}
	if e != nil {
		return q.afterEvent(e.(*timer).at())
	}
	other := p.Q.(*Queue) // of the same world
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
		err = fmt.Errorf("%s: stream %q would wait for stream %q, which is being captured",
			ccall.At(), q.name, other.name)
	}
	if err != nil {
		return err
	}
	err = q.afterEvent(m.event)
	other.mu.Lock()
	defer other.mu.Unlock()
	m.users--
	other.release(m)
	return err
}

// afterEvent makes the queue wait for an event, unless that is nil.
func (q *Queue) afterEvent(e *cuda.Event) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.ready(); err != nil || e == nil {
		return err
	}
	q.tail.Add(1)
	return q.h.Wait(e)
}

// Close implements exec.Queue: it waits for the work of the queue and destroys its stream.
func (q *Queue) Close() error {
	q.Wait(q.tail.Load())
	q.d.Remove(q)
	q.mu.Lock()
	defer q.mu.Unlock()
	if b := q.work.Take(); b != nil {
		b.Pool.Release(b, nil)
	}
	if q.closed {
		return nil
	}
	q.closed = true
	q.pass(q.tail.Load())
	err := errors.Join(q.drop(), q.h.Close())
	q.giveWord()
	return err
}
