package spmd

import (
	"fmt"
	"sync"
	"time"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/trace"
)

// Event is a point in a stream, to be waited for by other streams or by the
// host. A second Record moves it, for those who wait from then on.
type Event struct {
	w    *World
	dev  exec.Event
	mu   sync.Mutex
	at   exec.Point
	cap  *exec.Capture // the capture it was last recorded in, if any
	node int           // its number there
}

// NewEvent returns a new event that is not recorded yet.
func (w *World) NewEvent() (*Event, error) { return &Event{w: w, dev: w.dev.NewEvent()}, nil }

// Record moves the event to the present end of s. It does not block the host. It
// fails where s has failed or is closed, and the event stays where it was.
func (e *Event) Record(s *Stream) error {
	if s.w != e.w {
		return fmt.Errorf("%s: Record: the event belongs to another world", ccall.At())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := s.q.Lane(); l != nil {
		node, err := l.Record()
		if err == nil {
			e.cap, e.node = l.C, node
		}
		return err
	}
	p, err := e.dev.Record(s.q)
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

// Synchronize blocks the host until the last Record has been reached, and returns
// the error of the stream where that failed before it. An event recorded in a
// capture is a point of the graph, not of a stream: it cannot be synchronized with.
func (e *Event) Synchronize() error {
	p, in, _ := e.last()
	if in != nil {
		return fmt.Errorf("%s: Synchronize: the event was recorded in a capture", ccall.At())
	}
	m := e.w.calls.Begin(trace.Wait)
	err := e.dev.Wait(p)
	e.w.calls.EndLong(m, "Synchronize")
	return err
}

// Elapsed returns the time from the point of since to the point of e; both must
// have been reached.
func (e *Event) Elapsed(since *Event) (time.Duration, error) {
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

// Close gives up the event; the world closes what is left. A second Close does
// nothing.
func (e *Event) Close() error { return e.dev.Close() }
