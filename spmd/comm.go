package spmd

import (
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/world"
)

// Comm is a communicator: a group of ranks and the channel between them. It is a small value. A
// collective or message on it comes behind all that streams of this rank were given that uses its
// buffers, and is finished when the call returns. On the Comm that On returns it is only enqueued.
// A call that takes a Comm and a Stream is on that Stream.
type Comm world.Comm

// in returns what all values of the communicator share; nil for the zero Comm.
func (c Comm) in() *calls.Comm { return world.Comm(c).Comm() }

// queue returns the queue of the stream that calls are enqueued on; nil if they block.
func (c Comm) queue() exec.Queue { return world.Comm(c).Queue() }

func commOf(c *calls.Comm, q exec.Queue) Comm { return Comm(world.NewComm(c, q)) }

// Rank returns this rank's number in the communicator, from 0; -1 if it is not a member.
func (c Comm) Rank() int { return c.in().Rank() }

// Size returns the number of ranks in the communicator; 0 if this rank is not a member.
func (c Comm) Size() int { return c.in().Size() }

// On returns the same communicator for use in stream order: collectives on it are enqueued on s and
// return at once. Their input must be valid in s. Their result is valid for later work in s, and
// for the host after s.Synchronize.
func (c Comm) On(s *Stream) Comm {
	if s == nil {
		return commOf(c.in(), nil)
	}
	return commOf(c.in(), s.queue())
}

// Capturable returns nil if a Graph can hold collectives of c, else why it cannot. MPI carries the
// memory of GPUs that do not reach each other, and a replay has no host to call MPI.
func (c Comm) Capturable() error {
	if c.in() == nil {
		return nil
	}
	return c.in().Routes().NoGraph()
}

// Split divides the communicator: ranks that give the same color are in one new
// communicator, ordered by key, then by their present rank. Both are any int. A negative color
// takes part in the call and gets a Comm without ranks (Size 0).
//
// Collective, blocking.
//
//go:noinline
func (c Comm) Split(color, key int) (Comm, error) {
	part, err := c.in().Split(color, key)
	return commOf(part, nil), err
}

// Close gives up a communicator that Split made; the world closes what is left.
// Work enqueued on it must have finished. A second Close does nothing.
//
// Collective over its ranks, blocking.
//
//go:noinline
func (c Comm) Close() error { return c.in().Close() }

// Group runs fn, which issues collectives and point to point on this same c, and starts them
// together when fn returns: sends and receives between the same ranks in any order do not block
// each other. Two calls whose operands overlap, of which one is written, are refused. On a Comm
// with a stream the group is one unit of work of that stream; else it is finished when Group
// returns. Calls in fn on another communicator are not part of the group.
//
// Every rank that a call in the group concerns must issue the matching call in a
// group too. If fn fails, nothing of the group is done and its error returned.
//
//go:noinline
func (c Comm) Group(fn func() error) error { return c.in().Group(c.queue(), fn) }
