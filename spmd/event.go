package spmd

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/trace"
)

// Event is a point in a stream for which other streams or the host can wait. A second Record moves
// it for later waits.
type Event struct {
	w      *World
	timer  exec.Timer
	closed atomic.Bool

	mu   sync.Mutex
	at   exec.Point    // of the last Record in a stream
	in   *exec.Capture // of the last Record, if it was in a capture
	node int           // its number there
}

// NewEvent returns a new event that is not recorded yet.
func (w *World) NewEvent() (*Event, error) {
	if err := exec.RefuseInHostFunc("NewEvent"); err != nil {
		return nil, err
	}
	w.rank().CountEvents(1)
	return &Event{w: w, timer: w.rank().Dev.NewTimer()}, nil
}

// Record moves the event to the present end of s. It does not block the host. It fails if s has
// failed or is closed, and the event then stays where it was.
//
//go:noinline
func (e *Event) Record(s *Stream) error {
	if err := exec.RefuseInHostFunc("Record"); err != nil {
		return err
	}
	if s.World() != e.w {
		return fmt.Errorf("%s: Record: the event belongs to another world", ccall.At())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := s.queue().Lane(); l != nil {
		node, err := l.Record()
		if err == nil {
			e.in, e.node = l.C, node
		}
		return err
	}
	p, err := e.timer.Record(s.queue())
	if err == nil {
		e.at, e.in = p, nil
	}
	return err
}

// last returns where the event was recorded last: in a stream, or at a node of a capture.
func (e *Event) last() (exec.Point, *exec.Capture, int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.at, e.in, e.node
}

// Synchronize blocks the host until the last Record has been reached. It returns the error of the
// stream if that failed before. It refuses an event that was recorded in a capture, which is a
// point of the graph, not of a stream.
func (e *Event) Synchronize() error {
	if err := exec.RefuseInHostFunc("Synchronize"); err != nil {
		return err
	}
	p, in, _ := e.last()
	if in != nil {
		return fmt.Errorf("%s: Synchronize: the event was recorded in a capture", ccall.At())
	}
	m := e.w.rank().Calls.Begin(trace.Wait)
	err := e.timer.Wait(p)
	p.Seen()
	e.w.rank().Calls.EndLong(m, "Synchronize")
	return err
}

// Elapsed returns the time from the point of since to the point of e; both must
// have been reached.
func (e *Event) Elapsed(since *Event) (time.Duration, error) {
	if err := exec.RefuseInHostFunc("Elapsed"); err != nil {
		return 0, err
	}
	for _, x := range [2]*Event{since, e} {
		p, in, _ := x.last()
		done, err := x.timer.Passed(p)
		if err != nil {
			return 0, err
		}
		if p.Q == nil || in != nil || !done {
			return 0, fmt.Errorf("%s: Elapsed: the event has not been reached: synchronize with it first", ccall.At())
		}
		p.Seen()
	}
	return e.timer.Since(since.timer)
}

// Close gives up the event; the world closes what is left. A second Close does
// nothing.
func (e *Event) Close() error {
	if err := exec.RefuseInHostFunc("Close"); err != nil {
		return err
	}
	if !e.closed.Swap(true) {
		e.w.rank().CountEvents(-1)
	}
	return e.timer.Close()
}
