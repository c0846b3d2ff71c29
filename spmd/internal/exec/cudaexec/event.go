package cudaexec

import (
	"slices"
	"sync"
	"time"

	"lockstep/cuda"
	"lockstep/spmd/internal/exec"
)

// event is an event with timing.
type event struct {
	d   *Device
	mu  sync.Mutex
	gpu *cuda.Event // nil before the first Record
}

// NewEvent implements exec.Device.
func (d *Device) NewEvent() exec.Event { return &event{d: d} }

func (e *event) at() *cuda.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gpu
}

// Record implements exec.Event.
func (e *event) Record(on exec.Queue) (exec.Point, error) {
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
		if e.gpu, err = e.d.GPU.Dev.NewEvent(true); err != nil {
			return exec.Point{}, err
		}
		e.d.mu.Lock()
		e.d.events = append(e.d.events, e)
		e.d.mu.Unlock()
	}
	// It counts as a command, so that no mark before it stands for it.
	if err := e.gpu.Record(q.h); err != nil {
		return exec.Point{}, err
	}
	return exec.Point{Q: q, Seq: q.tail.Add(1)}, nil
}

// Wait implements exec.Event: not later than the event itself.
func (e *event) Wait(p exec.Point) error {
	at := e.at()
	if at == nil {
		return p.Wait()
	}
	p.Q.(*Queue).spin(at, p.Seq)
	return p.Failure()
}

// Passed implements exec.Event: it asks once. What is closed, or was never recorded, has no time.
func (e *event) Passed(p exec.Point) (bool, error) {
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

// Since implements exec.Event.
func (e *event) Since(o exec.Event) (time.Duration, error) {
	return e.at().Elapsed(o.(*event).at())
}

// Close implements exec.Event.
func (e *event) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gpu == nil {
		return nil
	}
	at := e.gpu
	e.gpu = nil
	e.d.mu.Lock()
	e.d.events = slices.DeleteFunc(e.d.events, func(o *event) bool { return o == e })
	e.d.mu.Unlock()
	return at.Close()
}
