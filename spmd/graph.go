package spmd

import (
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/exec"
)

// Graph is a recorded sequence of commands, replayed as a whole by Launch. It
// holds addresses, not handles: every buffer used in the capture must outlive it,
// which Launch checks.
type Graph struct {
	w *World
	c *exec.Capture
}

// Capture records what fn enqueues on s as a graph, without running it. Streams that wait in fn for
// an event of s, or for each other, are captured too; s must wait for all of them before fn
// returns. Every call that takes a stream may be captured; a HostFunc then runs at each replay.
// Calls that block the host may not: Synchronize, a collective without On, Split.
//
// The capture has the same collectives on every rank. If fn fails, nothing is left of the capture
// and the streams are usable again.
func (s *Stream) Capture(fn func() error) (*Graph, error) {
	c, err := s.rank().Capture(s.queue(), fn)
	if err != nil {
		return nil, err
	}
	return &Graph{s.World(), c}, nil
}

// Launch enqueues a replay of g on s. The replay starts when all work before it on s has run, and
// later work on s waits for all of the replay. Streams that were captured beside s in Capture run
// at the same time. Replays of one graph never overlap. If the graph holds collectives every rank
// launches it, in the same order.
//
// It fails when the graph is closed, or a communicator or a call of a library in it. It also fails
// when a buffer it uses has been freed.
//
//go:noinline
func (g *Graph) Launch(s *Stream) error {
	if s.World() != g.w {
		return fmt.Errorf("%s: Launch: the graph belongs to another world than stream %q", ccall.At(), s.queue().Name())
	}
	return g.w.rank().Launch(s.queue(), g.c)
}

// Close ends the use of g, on a GPU when its replays have run. A second Close does
// nothing. The world closes what is left.
func (g *Graph) Close() error { return g.w.rank().CloseCapture(g.c) }
