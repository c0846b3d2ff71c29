package calls

import (
	"errors"
	"fmt"
	"slices"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/trace"
)

// Graph is a recorded sequence of commands. It holds addresses, not handles: what was used in the capture must outlive it,
// which Launch checks.
type Graph struct {
	r      *Rank
	dev    exec.Graph
	blocks []*exec.Block
	comms  []*Comm
	libs   []*exec.Library
	last   exec.Point // the end of the stream that Launch was last called on
	closed bool
	owned  []*exec.Block // scratch of its commands
}

// Capture makes g the graph of what fn enqueues on s. If it fails, nothing is left of the capture.
func (s *Stream) Capture(g *Graph, fn func() error) error {
	if err := exec.RefuseInHostFunc("Capture"); err != nil {
		return err
	}
	if s.Q.Lane() != nil {
		return fmt.Errorf("%s: Capture: stream %q is being captured already", ccall.At(), s.Name)
	}
	r := s.R
	g.r = r
	c, err := exec.NewCapture(r.Dev.NewBuilder(), s.Q, g)
	if err != nil {
		return err
	}
	if err := g.record(c, fn); err != nil {
		return errors.Join(err, g.drop())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.graphs = append(r.graphs, g)
	return nil
}

// record has c get what fn enqueues, and ends it.
func (g *Graph) record(c *exec.Capture, fn func() error) (err error) {
	g.r.capturing.Add(1)
	whole := false // fn has returned, and has not ended the goroutine
	defer func() {
		dev, e := c.End(whole && err == nil)
		g.r.capturing.Add(-1)
		for _, b := range g.blocks {
			b.Capture(-1)
		}
		g.dev, g.owned = dev, c.Memory()
		err = errors.Join(err, e)
	}()
	if err = exec.Guard(fn); err == nil {
		err = c.Joined()
	}
	whole = true
	return err
}

// refer notes blocks that a command uses.
func (g *Graph) refer(blocks ...*exec.Block) {
	for _, b := range blocks {
		if b != nil && !slices.Contains(g.blocks, b) {
			g.blocks = append(g.blocks, b)
			b.Capture(1)
		}
	}
}

// referLibrary notes a library that a command calls.
func (g *Graph) referLibrary(l *exec.Library) {
	if !slices.Contains(g.libs, l) {
		g.libs = append(g.libs, l)
	}
}

// referCall notes what a call uses.
func (g *Graph) referCall(c *Call) {
	g.refer(c.DstBlock, c.SrcBlock)
	if !slices.Contains(g.comms, c.comm) {
		g.comms = append(g.comms, c.comm)
	}
	if c.group == nil {
		return
	}
	for i := range c.group.cmds {
		g.refer(c.group.cmds[i].DstBlock, c.group.cmds[i].SrcBlock)
	}
}

// Launch enqueues a replay of g on s.
func (g *Graph) Launch(s *Stream) error {
	if err := exec.RefuseInHostFunc("Launch"); err != nil {
		return err
	}
	if s.R != g.r {
		return fmt.Errorf("%s: Launch: the graph belongs to another world than stream %q", ccall.At(), s.Name)
	}
	if g.closed {
		return fmt.Errorf("%s: Launch: the graph is closed", ccall.At())
	}
	for _, l := range g.libs {
		if l.Closed.Load() {
			return fmt.Errorf("%s: Launch: the graph holds calls of %s, which is closed", ccall.At(), l.Name)
		}
	}
	for _, b := range g.blocks {
		if b.Freed.Load() {
			return fmt.Errorf("%w, and the graph still uses it", freedError(b, "Launch"))
		}
	}
	for _, c := range g.comms {
		if c.freed {
			return fmt.Errorf("%s: Launch: the graph holds collectives of a communicator that is closed", ccall.At())
		}
	}
	if err := s.Captured("Launch"); err != nil {
		return err
	}
	if err := s.waitFor(g.last, nil); err != nil { // another stream may be replaying it
		return err
	}
	c, err := s.Q.Begin(exec.DoGraph)
	if err != nil {
		return err
	}
	c.Graph = g.dev
	for _, b := range g.blocks {
		s.Q.Uses(b, nil)
	}
	if len(g.comms) > 0 {
		c.Notes = g
	}
	if err = s.Q.Enqueue(c); err == nil {
		g.last = s.Q.End()
	}
	return err
}

// Issued implements exec.Notes.
func (g *Graph) Issued(q exec.Queue, seq uint64, site *ccall.Site) {
	c := coll.Call{Kind: coll.Graph}
	for _, comm := range g.comms {
		comm.recorder.Issue(q, seq, &c, nil, 0, site, false)
	}
}

// Comm implements exec.Notes.
func (g *Graph) Comm() *trace.Comm { return g.comms[0].trace }

// Close ends the use of g, on a GPU when its replays have run. A second Close does nothing.
func (g *Graph) Close() error {
	if err := exec.RefuseInHostFunc("Close"); err != nil {
		return err
	}
	if g.closed {
		return nil
	}
	g.closed = true
	r := g.r
	r.mu.Lock()
	r.graphs = slices.DeleteFunc(r.graphs, func(o *Graph) bool { return o == g })
	r.mu.Unlock()
	return g.drop()
}

// drop gives up what the graph holds.
func (g *Graph) drop() (err error) {
	if g.dev != nil {
		err = g.dev.Close(g.last)
	}
	for _, b := range g.owned {
		b.Pool.Release(b, g.r.Dev.Marks())
	}
	g.owned = nil
	return err
}

// dropGraphs ends the graphs that hold collectives of c, which NCCL wants gone before the communicator. They remain to be
// closed.
func (r *Rank) dropGraphs(c *Comm) (err error) {
	r.mu.Lock()
	graphs := slices.Clone(r.graphs)
	r.mu.Unlock()
	for _, g := range graphs {
		if slices.Contains(g.comms, c) {
			err = errors.Join(err, g.drop())
		}
	}
	return err
}
