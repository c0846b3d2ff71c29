package cudaexec

import (
	"slices"
	"sync"
	"time"

	"lockstep/cuda"
	"lockstep/spmd/internal/exec"
)

// timer is an event with timing.
type timer struct {
	d   *CUDA
	mu  sync.Mutex
	gpu *cuda.Event // nil before the first Record
}

func (d *CUDA) NewTimer() exec.Timer { return &timer{d: d} }

func (e *timer) at() *cuda.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gpu
}

var _ exec.Timer = (*timer)(nil)

func (e *timer) Record(on exec.Queue) (exec.Point, error) {
	q := on.(*Queue)
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.ready(); err != nil {
		return exec.Point{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gpu == nil {
		var err error
		if e.gpu, err = e.d.GPU.Dev.NewTimedEvent(); err != nil {
			return exec.Point{}, err
		}
		e.d.mu.Lock()
		e.d.timers = append(e.d.timers, e)
		e.d.mu.Unlock()
	}
	// It counts as a command, so that no mark before it stands for it.
	if err := e.gpu.Record(q.h); err != nil {
		return exec.Point{}, err
	}
	return exec.Point{Q: q, Seq: q.tail.Add(1)}, nil
}

// Wait implements exec.Timer: not later than the event itself.
func (e *timer) Wait(p exec.Point) error {
	at := e.at()
	if at == nil {
		return p.Wait()
	}
	p.Q.(*Queue).spin(at, p.Seq)
	return p.Failure()
}

// Passed implements exec.Timer: it asks once. A timer that is closed, or was never recorded, has no
// time.
func (e *timer) Passed(p exec.Point) (bool, error) {
	at := e.at()
	if err := p.Failure(); err != nil || at == nil {
		return false, err
	}
	done, err := at.Query()
	if done {
		p.Q.(*Queue).Pass(p.Seq) // who reads then what the queue has written need not ask again
	}
	return done, err
}

func (e *timer) Since(o exec.Timer) (time.Duration, error) {
	return e.at().Elapsed(o.(*timer).at())
}

func (e *timer) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gpu == nil {
		return nil
	}
	at := e.gpu
	e.gpu = nil
	e.d.mu.Lock()
	e.d.timers = slices.DeleteFunc(e.d.timers, func(o *timer) bool { return o == e })
	e.d.mu.Unlock()
	return at.Close()
}
