package calls

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/trace"
)

// Event is a point in a stream, or in a capture.
type Event struct {
	r    *Rank
	dev  exec.Event
	mu   sync.Mutex
	at   exec.Point
	cap  *exec.Capture // the capture it was last recorded in, if any
	node int           // its number there

	closed atomic.Bool
}

// Open makes e a new event.
func (e *Event) Open(r *Rank) error {
	if err := exec.RefuseInHostFunc("NewEvent"); err != nil {
		return err
	}
	e.r, e.dev = r, r.Dev.NewEvent()
	r.events.Add(1)
	return nil
}

// Record moves the event to the present end of s.
func (e *Event) Record(s *Stream) error {
	if err := exec.RefuseInHostFunc("Record"); err != nil {
		return err
	}
	if s.R != e.r {
		return fmt.Errorf("%s: Record: the event belongs to another world", ccall.At())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := s.Q.Lane(); l != nil {
		node, err := l.Record()
		if err == nil {
			e.cap, e.node = l.C, node
		}
		return err
	}
	p, err := e.dev.Record(s.Q)
	if err == nil {
		e.at, e.cap = p, nil
	}
	return err
}

func (e *Event) last() (exec.Point, *exec.Capture, int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.at, e.cap, e.node
}

// Synchronize blocks the host until the last Record has been reached.
func (e *Event) Synchronize() error {
	if err := exec.RefuseInHostFunc("Synchronize"); err != nil {
		return err
	}
	p, in, _ := e.last()
	if in != nil {
		return fmt.Errorf("%s: Synchronize: the event was recorded in a capture", ccall.At())
	}
	m := e.r.Calls.Begin(trace.Wait)
	err := e.dev.Wait(p)
	e.r.Calls.EndLong(m, "Synchronize")
	return err
}

// Elapsed returns the time from the point of since to the point of e, which have been reached.
func (e *Event) Elapsed(since *Event) (time.Duration, error) {
	if err := exec.RefuseInHostFunc("Elapsed"); err != nil {
		return 0, err
	}
	for _, x := range [2]*Event{since, e} {
		p, in, _ := x.last()
		done, err := x.dev.Passed(p)
		if err != nil {
			return 0, err
		}
		if p.Q == nil || in != nil || !done {
			return 0, fmt.Errorf("%s: Elapsed: the event has not been reached: synchronize with it first", ccall.At())
		}
	}
	return e.dev.Since(since.dev)
}

// Close gives up the event.
func (e *Event) Close() error {
	if err := exec.RefuseInHostFunc("Close"); err != nil {
		return err
	}
	if !e.closed.Swap(true) {
		e.r.events.Add(-1)
	}
	return e.dev.Close()
}
