package spmd

import (
	"time"

	"lockstep/spmd/internal/calls"
)

// Event is a point in a stream, to be waited for by other streams or by the
// host. A second Record moves it, for those who wait from then on.
type Event struct{ e calls.Event }

// NewEvent returns a new event that is not recorded yet.
func (w *World) NewEvent() (*Event, error) {
	e := &Event{}
	if err := e.e.Open(&w.in.Rank); err != nil {
		return nil, err
	}
	return e, nil
}

// Record moves the event to the present end of s. It does not block the host. It
// fails where s has failed or is closed, and the event stays where it was.
//
//go:noinline
func (e *Event) Record(s *Stream) error { return e.e.Record(&s.s) }

// Synchronize blocks the host until the last Record has been reached, and returns
// the error of the stream where that failed before it. An event recorded in a
// capture is a point of the graph, not of a stream: it cannot be synchronized with.
func (e *Event) Synchronize() error { return e.e.Synchronize() }

// Elapsed returns the time from the point of since to the point of e; both must
// have been reached.
func (e *Event) Elapsed(since *Event) (time.Duration, error) { return e.e.Elapsed(&since.e) }

// Close gives up the event; the world closes what is left. A second Close does
// nothing.
func (e *Event) Close() error { return e.e.Close() }
