package world

import (
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/exec"
)

// A World, a Comm and a Stream of package spmd are those of this package, with the methods that
// programs call. Parts of the module convert them, as World(w), and reach what they need.

// Comm is a communicator, and a queue if calls are enqueued. It is a small value.
type Comm struct {
	c *calls.Comm
	q exec.Queue // of a stream; nil if calls block
}

// NewComm returns the value for c; q may be nil.
func NewComm(c *calls.Comm, q exec.Queue) Comm { return Comm{c, q} }

// Comm returns what all values of the communicator share; nil for the zero Comm.
func (c Comm) Comm() *calls.Comm { return c.c }

// Queue returns the queue that calls are enqueued on; nil if they block.
func (c Comm) Queue() exec.Queue { return c.q }

// Stream is a queue of a world's device.
type Stream struct {
	w *World
	q exec.Queue
}

// NewStream returns a new stream.
func (w *World) NewStream(name string, p exec.Priority) (*Stream, error) {
	q, err := w.rank.NewQueue(name, p)
	if err != nil {
		return nil, err
	}
	return &Stream{w, q}, nil
}

// World returns the stream's world.
func (s *Stream) World() *World { return s.w }

// Rank returns what the stream's calls go through.
func (s *Stream) Rank() *calls.Rank { return &s.w.rank }

// Queue returns the stream's queue.
func (s *Stream) Queue() exec.Queue { return s.q }
