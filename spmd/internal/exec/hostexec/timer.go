package hostexec

import (
	"sync"
	"time"

	"lockstep/spmd/internal/exec"
)

// timer notes the time at which a queue got to a point.
type timer struct {
	mu   sync.Mutex
	at   exec.Point
	time time.Time // zero before
}

var _ exec.Timer = (*timer)(nil)

func (e *timer) Record(on exec.Queue) (exec.Point, error) {
	q := on.(*queue)
	e.mu.Lock() // until the new point is there: the queue may get to it at once
	defer e.mu.Unlock()
	s, err := q.begin(exec.DoRecord)
	if err != nil {
		return exec.Point{}, err
	}
	s.timer = e
	e.at, e.time = exec.Point{Q: q, Seq: q.enqueue(s)}, time.Time{}
	return e.at, nil
}

// reached notes the time at which a queue got to p.
func (e *timer) reached(p exec.Point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at == p {
		e.time = time.Now()
	}
}

func (e *timer) Wait(p exec.Point) error { return p.Wait() }

func (e *timer) Passed(p exec.Point) (bool, error) { return p.Passed() }

func (e *timer) Since(o exec.Timer) (time.Duration, error) {
	return e.when().Sub(o.(*timer).when()), nil
}

func (e *timer) when() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.time
}

func (e *timer) Close() error { return nil }
