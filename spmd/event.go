package spmd

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/spmd/internal/exec"
)

// Event is a point in a stream, to be waited for by other streams or by the
// host. A second Record moves it, for those who wait from then on.
type Event struct {
	w    *World
	mu   sync.Mutex
	at   exec.Point
	time time.Time   // when a host stream got there; zero before
	gpu  *cuda.Event // the same exec.Point on a GPU; nil before the first Record
	cap  *capture    // the capture it was last recorded in, if any
	node int         // its number there
}

// NewEvent returns a new event that is not recorded yet.
func (w *World) NewEvent() (*Event, error) { return &Event{w: w}, nil }

// Record moves the event to the present end of s. It does not block the host. It
// fails where s has failed or is closed, and the event stays where it was.
func (e *Event) Record(s *Stream) error {
	if s.w != e.w {
		return fmt.Errorf("%s: Record: the event belongs to another world", ccall.At())
	}
	e.mu.Lock() // until the new point is there: the stream may get to it at once
	defer e.mu.Unlock()
	if s.cap != nil {
		node, err := s.cap.record(s)
		if err == nil {
			e.cap, e.node = s.cap, node
		}
		return err
	}
	var seq uint64
	var err error
	if s.dev != nil {
		seq, err = s.dev.record(e)
	} else {
		c := command{kind: cmdRecord, event: e}
		c.site.Near()
		seq, err = s.host.push(&c, nil)
	}
	if err == nil {
		e.at, e.time, e.cap = exec.Point{Q: s.q, Seq: seq}, time.Time{}, nil
	}
	return err
}

// reached notes the time at which a queue got to p.
func (e *Event) reached(p exec.Point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at == p {
		e.time = time.Now()
	}
}

func (e *Event) last() (exec.Point, *capture, int) {
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
	if q, ok := p.Q.(*gpuQueue); ok { // not later than the event itself
		q.spin(e.gpu, p.Seq)
		return p.Failure()
	}
	return p.Wait()
}

// Elapsed returns the time from the point of since to the point of e; both must
// have been reached.
func (e *Event) Elapsed(since *Event) (time.Duration, error) {
	var t [2]time.Time
	for i, x := range [2]*Event{since, e} {
		p, in, _ := x.last()
		var done bool
		var err error
		if q, ok := p.Q.(*gpuQueue); ok {
			done, err = q.query(x.gpu, p.Seq)
		} else {
			done, err = p.Passed()
		}
		if err != nil {
			return 0, err
		}
		if p.Q == nil || in != nil || !done {
			return 0, fmt.Errorf("%s: Elapsed: the event has not been reached: synchronize with it first", ccall.At())
		}
		x.mu.Lock()
		t[i] = x.time
		x.mu.Unlock()
	}
	if e.gpu != nil {
		return e.gpu.Elapsed(since.gpu)
	}
	return t[1].Sub(t[0]), nil
}

// Close gives up the event; the world closes what is left. A second Close does
// nothing.
func (e *Event) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gpu == nil {
		return nil
	}
	g := e.gpu
	e.gpu, e.at = nil, exec.Point{}
	e.w.mu.Lock()
	e.w.events = slices.DeleteFunc(e.w.events, func(o *Event) bool { return o == e })
	e.w.mu.Unlock()
	return g.Close()
}
