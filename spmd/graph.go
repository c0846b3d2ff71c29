package spmd

import (
	"errors"
	"fmt"
	"slices"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
)

// Graph is a recorded sequence of commands, replayed as a whole by Launch. It
// holds addresses, not handles: every buffer used in the capture must outlive it,
// which Launch checks.
type Graph struct {
	w      *World
	dev    exec.Graph
	blocks []*block
	comms  []*commState
	libs   []*Library
	last   exec.Point // the end of the stream that Launch was last called on
	closed bool
	owned  []*block // scratch of its commands
}

// Capture records what fn enqueues on s as a graph, without running it. Streams
// that wait in fn for an event of s, or for each other, are captured too; s must
// wait for all of them before fn returns. Everything that takes a stream may be
// captured; a HostFunc then runs at each replay. What blocks the host may not: no
// Synchronize, no collective without On, no Split.
//
// Collectives in the capture must be the same on every rank. If fn fails, nothing
// is left of the capture and the streams are usable again.
func (s *Stream) Capture(fn func() error) (*Graph, error) {
	if s.q.Lane() != nil {
		return nil, fmt.Errorf("%s: Capture: stream %q is being captured already", ccall.At(), s.name)
	}
	g := &Graph{w: s.w}
	c, err := exec.NewCapture(s.w.dev.NewBuilder(), s.q, g)
	if err != nil {
		return nil, err
	}
	s.w.capturing.Add(1)
	if err = exec.Guard(fn); err == nil {
		err = c.Joined()
	}
	dev, e := c.End(err == nil)
	s.w.capturing.Add(-1)
	g.dev, g.owned = dev, c.Memory()
	if err = errors.Join(err, e); err != nil {
		return nil, errors.Join(err, g.drop())
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.graphs = append(s.w.graphs, g)
	return g, nil
}

// refer notes blocks that a command uses.
func (g *Graph) refer(blocks ...*block) {
	for _, b := range blocks {
		if b != nil && !slices.Contains(g.blocks, b) {
			g.blocks = append(g.blocks, b)
		}
	}
}

// referLibrary notes a library that a command calls.
func (g *Graph) referLibrary(l *Library) {
	if !slices.Contains(g.libs, l) {
		g.libs = append(g.libs, l)
	}
}

// referCall notes what a call uses.
func (g *Graph) referCall(c *call) {
	g.refer(c.dblk, c.sblk)
	if !slices.Contains(g.comms, c.comm) {
		g.comms = append(g.comms, c.comm)
	}
	if c.group == nil {
		return
	}
	for i := range c.group.cmds {
		g.refer(c.group.cmds[i].dblk, c.group.cmds[i].sblk)
	}
}

// Launch enqueues a replay of g on s: it starts when what s holds has run, and
// what comes later waits for all of it. Streams captured beside the origin run at
// the same time as it does. Replays of one graph never overlap. Where the graph
// holds collectives every rank launches it, in the same order.
//
// It fails when the graph, or a communicator or a Library in it, is closed, or a buffer
// it uses has been freed.
func (g *Graph) Launch(s *Stream) error {
	if s.w != g.w {
		return fmt.Errorf("%s: Launch: the graph belongs to another world than stream %q", ccall.At(), s.name)
	}
	if g.closed {
		return fmt.Errorf("%s: Launch: the graph is closed", ccall.At())
	}
	for _, l := range g.libs {
		if l.lib.Closed.Load() {
			return fmt.Errorf("%s: Launch: the graph holds calls of %s, which is closed", ccall.At(), l.lib.Name)
		}
	}
	for _, b := range g.blocks {
		if b.Freed.Load() {
			return fmt.Errorf("%w, and the graph still uses it", freedError(b, "Launch"))
		}
	}
	for _, st := range g.comms {
		if st.freed {
			return fmt.Errorf("%s: Launch: the graph holds collectives of a communicator that is closed", ccall.At())
		}
	}
	if s.q.Lane() != nil {
		return fmt.Errorf("%s: Launch: stream %q is being captured", ccall.At(), s.name)
	}
	if err := s.waitFor(g.last, nil); err != nil { // another stream may be replaying it
		return err
	}
	c, err := s.q.Begin(exec.DoGraph)
	if err != nil {
		return err
	}
	c.Graph = g.dev
	if len(g.comms) > 0 {
		c.Notes = g
	}
	if err = s.q.Enqueue(c); err == nil {
		g.last = s.q.End()
	}
	return err
}

// Issued implements exec.Notes.
func (g *Graph) Issued(q exec.Queue, seq uint64, site *ccall.Site) {
	c := coll.Call{Kind: coll.Graph}
	for _, st := range g.comms {
		st.recorder.Issue(q, seq, &c, nil, 0, site, false)
	}
}

// Close ends the use of g, on a GPU when its replays have run. A second Close does
// nothing. The world closes what is left.
func (g *Graph) Close() error {
	if g.closed {
		return nil
	}
	g.closed = true
	g.w.mu.Lock()
	g.w.graphs = slices.DeleteFunc(g.w.graphs, func(o *Graph) bool { return o == g })
	g.w.mu.Unlock()
	return g.drop()
}

// drop gives up what the graph holds.
func (g *Graph) drop() (err error) {
	if g.dev != nil {
		err = g.dev.Close(g.last)
	}
	for _, b := range g.owned {
		b.Pool.Release(b, g.w.dev.Marks())
	}
	g.owned = nil
	return err
}

// dropGraphs ends the graphs that hold collectives of st, which NCCL wants gone
// before the communicator. They remain to be closed.
func (w *World) dropGraphs(st *commState) (err error) {
	w.mu.Lock()
	graphs := slices.Clone(w.graphs)
	w.mu.Unlock()
	for _, g := range graphs {
		if slices.Contains(g.comms, st) {
			err = errors.Join(err, g.drop())
		}
	}
	return err
}
