package spmd

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
)

// Graph is a recorded sequence of commands, replayed as a whole by Launch. It
// holds addresses, not handles: every buffer used in the capture must outlive it,
// which Launch checks.
type Graph struct {
	w      *World
	lanes  []lane // one for each captured stream; the first is the origin
	turns  uint64 // commands that enter MPI
	blocks []*block
	comms  []*commState
	libs   []*Library
	last   exec.Point // the end of the stream that Launch was last called on
	closed bool
	owned  []*block // scratch of its commands

	// On a GPU:
	exec      *cuda.Exec
	callbacks []*cuda.Callback
	replays   []exec.Point // launches that may not have run yet; under mu

	mu   sync.Mutex
	cond sync.Cond
	done []bool // which nodes this replay has passed
	err  error  // why this replay ends early
}

// lane is the part of a graph that was captured from one stream.
type lane struct {
	s    *Stream
	cmds []command // on the host; on a GPU the driver has them
	n    int       // commands
	seen []int     // for each lane: how many of its commands are known to be finished here
	work *block    // scratch
}

// capture is a graph under construction.
type capture struct {
	g     *Graph
	ended bool
	nodes []node
	last  lastIssue // in the order of NCCL calls, as gpu.last
}

// node is an event recorded in a capture.
type node struct {
	seen []int // for each lane: how many of its commands were finished then
	gpu  *mark // nil on the host
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
	if s.cap != nil {
		return nil, fmt.Errorf("%s: Capture: stream %q is being captured already", ccall.At(), s.name)
	}
	g := &Graph{w: s.w}
	g.cond.L = &g.mu
	c := &capture{g: g}
	if err := c.adopt(s); err != nil {
		return nil, err
	}
	if s.dev != nil {
		// Relaxed: goroutines move between threads, and other streams go on working.
		if err := s.dev.h.BeginCapture(cuda.Relaxed); err != nil {
			s.cap = nil
			s.dev.endCapture()
			return nil, err
		}
	}
	s.w.capturing.Add(1)
	err := guard(fn)
	if err == nil {
		err = c.joined()
	}
	err = errors.Join(err, c.end(s, err == nil))
	s.w.capturing.Add(-1)
	if err != nil {
		return nil, errors.Join(err, g.drop())
	}
	g.done = make([]bool, len(c.nodes))
	g.collect()
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.graphs = append(s.w.graphs, g)
	return g, nil
}

// joined refuses a capture in which a stream was not waited for again.
func (c *capture) joined() error {
	g := c.g
	for i, l := range g.lanes[1:] {
		if known := g.lanes[0].seen; len(known) <= i+1 || known[i+1] < l.n {
			return fmt.Errorf("%s: Capture: stream %q was joined to the capture of %q and not waited for again: end with %s.After(%s)",
				ccall.At(), l.s.name, g.lanes[0].s.name, g.lanes[0].s.name, l.s.name)
		}
	}
	return nil
}

// end makes the streams usable again and, on a GPU, the graph of what was captured.
func (c *capture) end(s *Stream, keep bool) error {
	c.ended = true
	var err error
	if s.dev != nil {
		var graph *cuda.Graph
		graph, err = s.dev.h.EndCapture()
		switch {
		case !keep:
			err = nil // there is a better one already
			if graph != nil {
				err = graph.Close()
			}
		case err == nil:
			c.g.exec, err = graph.Instantiate()
			err = errors.Join(err, graph.Close())
		}
		for _, n := range c.nodes {
			s.dev.g.recycle(n.gpu)
		}
	}
	for _, l := range c.g.lanes {
		l.s.cap = nil
		if l.s.dev != nil {
			l.s.dev.endCapture()
		}
	}
	return err
}

// adopt takes s into the capture.
func (c *capture) adopt(s *Stream) error {
	if s.dev != nil {
		if err := s.dev.startCapture(); err != nil {
			return err
		}
	}
	s.cap = c
	c.g.lanes = append(c.g.lanes, lane{s: s})
	return nil
}

// lane returns the number of the lane of s, which is in the capture.
func (c *capture) lane(s *Stream) int {
	return slices.IndexFunc(c.g.lanes, func(l lane) bool { return l.s == s })
}

// add records a command of s.
func (c *capture) add(s *Stream, cmd *command, args []Arg) error {
	l := &c.g.lanes[c.lane(s)]
	l.n++
	l.cmds = append(l.cmds, command{})
	at := &l.cmds[len(l.cmds)-1]
	at.copyFrom(cmd, args)
	if cmd.kind == cmdCall {
		at.ticket = c.g.turns // relative to the first of a replay
		c.g.turns++
	}
	return nil
}

// note keeps account of a command that the driver records.
func (c *capture) note(s *Stream, cmd *command, args []Arg) {
	c.g.lanes[c.lane(s)].n++
	c.g.refer(cmd, args)
}

// record makes the present end of s a node of the graph, and returns its number.
func (c *capture) record(s *Stream) (int, error) {
	var m *mark
	i := c.lane(s)
	if s.dev != nil {
		var err error
		if m, err = s.dev.g.mark(); err != nil {
			return 0, err
		}
		if err = m.event.Record(s.dev.h); err != nil {
			s.dev.g.recycle(m)
			return 0, err
		}
		c.g.lanes[i].n++
	} else {
		cmd := command{kind: cmdRecord, node: len(c.nodes)}
		if err := c.add(s, &cmd, nil); err != nil {
			return 0, err
		}
	}
	seen := slices.Clone(c.g.lanes[i].seen)
	for len(seen) <= i {
		seen = append(seen, 0)
	}
	seen[i] = c.g.lanes[i].n
	c.nodes = append(c.nodes, node{seen, m})
	return len(c.nodes) - 1, nil
}

// wait makes s wait for a node, joining s to the capture where it is not in it.
func (c *capture) wait(s *Stream, n int) error {
	switch {
	case c.ended:
		return fmt.Errorf("%s: Wait: the event was recorded in a capture that has ended: record it again", ccall.At())
	case s.cap != nil && s.cap != c:
		return fmt.Errorf("%s: Wait: stream %q is in another capture than the event", ccall.At(), s.name)
	}
	if s.cap == nil {
		if err := c.adopt(s); err != nil {
			return err
		}
	}
	l := &c.g.lanes[c.lane(s)]
	for i, n := range c.nodes[n].seen {
		if i == len(l.seen) {
			l.seen = append(l.seen, 0)
		}
		l.seen[i] = max(l.seen[i], n)
	}
	if s.dev != nil {
		l.n++
		return s.dev.h.Wait(c.nodes[n].gpu.event)
	}
	cmd := command{kind: cmdWait, node: n}
	return c.add(s, &cmd, nil)
}

// collect lists what the graph's commands point into, and their communicators.
func (g *Graph) collect() {
	for i := range g.lanes {
		for j := range g.lanes[i].cmds {
			c := &g.lanes[i].cmds[j]
			g.refer(c, c.args)
		}
	}
}

// refer notes what a command points into.
func (g *Graph) refer(c *command, args []Arg) {
	add := func(b *block) {
		if b != nil && !slices.Contains(g.blocks, b) {
			g.blocks = append(g.blocks, b)
		}
	}
	add(c.dblk)
	add(c.sblk)
	for i := range args {
		add(args[i].blk)
	}
	if c.group != nil {
		for i := range c.group.cmds {
			add(c.group.cmds[i].dblk)
			add(c.group.cmds[i].sblk)
		}
	}
	if c.lib != nil && !slices.Contains(g.libs, c.lib) {
		g.libs = append(g.libs, c.lib)
	}
	if c.comm != nil && !slices.Contains(g.comms, c.comm) {
		g.comms = append(g.comms, c.comm)
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
		if l.closed.Load() {
			return fmt.Errorf("%s: Launch: the graph holds calls of %s, which is closed", ccall.At(), l.name)
		}
	}
	for _, b := range g.blocks {
		if b.Freed.Load() {
			return fmt.Errorf("%w, and the graph still uses it", b.freedError("Launch"))
		}
	}
	for _, st := range g.comms {
		if st.freed {
			return fmt.Errorf("%s: Launch: the graph holds collectives of a communicator that is closed", ccall.At())
		}
	}
	if s.cap != nil {
		return fmt.Errorf("%s: Launch: stream %q is being captured", ccall.At(), s.name)
	}
	if err := s.waitFor(g.last); err != nil { // another stream may be replaying it
		return err
	}
	c := command{kind: cmdGraph, call: call{Call: coll.Call{Kind: coll.Graph}}, graph: g}
	err := s.submit(&c, nil)
	if err == nil {
		g.last = s.q.end()
	}
	return err
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
func (g *Graph) drop() error {
	var err error
	if g.exec != nil {
		err = errors.Join(g.last.Wait(), g.exec.Close())
		g.exec = nil
	}
	for _, c := range g.callbacks {
		c.Close()
	}
	for i := range g.lanes {
		if b := g.lanes[i].work; b != nil {
			g.owned = append(g.owned, b)
		}
		g.lanes[i].work = nil
	}
	for _, b := range g.owned {
		b.Pool.Release(&b.Block, g.w.marks())
	}
	g.callbacks, g.owned = nil, nil
	return err
}

// launched notes a replay, which ends at p.
func (g *Graph) launched(p exec.Point) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.replays = append(slices.DeleteFunc(g.replays, func(o exec.Point) bool { return o.Q.(*gpuQueue).known.Load() >= o.Seq }), p)
}

// replaying returns the replays of which one is running.
func (g *Graph) replaying() []exec.Point {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.replays)
}

// dropGraphs destroys the graphs that hold collectives of st, which NCCL wants gone
// before the communicator. They remain to be closed.
func (w *World) dropGraphs(st *commState) error {
	w.mu.Lock()
	var graphs []*Graph
	for _, g := range w.graphs {
		if g.exec != nil && slices.Contains(g.comms, st) {
			graphs = append(graphs, g)
		}
	}
	w.mu.Unlock()
	var err error
	for _, g := range graphs {
		err = errors.Join(err, g.drop())
	}
	return err
}

// replay runs the lanes: the origin's on the calling goroutine, the others on
// one each. ticket is the turn of the graph's first command in MPI.
func (g *Graph) replay(ticket uint64) error {
	clear(g.done)
	g.err = nil
	var wg sync.WaitGroup
	for i := 1; i < len(g.lanes); i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			g.runLane(&g.lanes[i], ticket)
		}()
	}
	g.runLane(&g.lanes[0], ticket)
	wg.Wait()
	return g.err
}

func (g *Graph) runLane(l *lane, ticket uint64) {
	for i := range l.cmds {
		c := &l.cmds[i]
		var err error
		switch {
		case c.kind == cmdRecord:
			g.mu.Lock()
			g.done[c.node] = true
			g.mu.Unlock()
			g.cond.Broadcast()
		case c.kind == cmdWait:
			err = g.await(c.node)
		case c.kind == cmdCall:
			err = c.communicate(ticket + c.ticket)
		default:
			err = c.run()
		}
		if err != nil {
			g.stop(l, c, err)
			return
		}
	}
}

var errStopped = errors.New("another part of the graph failed")

func (g *Graph) await(node int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.done[node] {
		if g.err != nil {
			return errStopped
		}
		g.cond.Wait()
	}
	return nil
}

func (g *Graph) stop(l *lane, c *command, err error) {
	g.mu.Lock()
	if g.err == nil && err != errStopped {
		g.err = l.s.asyncError(c, err)
	}
	g.mu.Unlock()
	g.cond.Broadcast()
	g.w.fail(g.err)
}
