package exec

import (
	"fmt"
	"slices"

	"lockstep/internal/ccall"
)

// Capture has the captured commands of queues, before End and after it. Queues that wait for a
// point in it join it. It knows the memory that its commands use.
type Capture struct {
	Blocks    []*Block
	Libraries []*Library
	Parties   []Party
	Replay    Replay // what the device made of it; nil before End, and where that failed
	Last      Point  // the end of the queue that it was last launched on
	Closed    bool   // it is launched no more
	b         Builder
	lanes     []*Lane // one for each queue that is captured; the first is the origin
	nodes     []node
	owned     []*Block            // scratch memory of its commands
	touched   map[*Block]*history // of its commands, with --check
	ended     bool
}

// Lane is the part of a capture that comes from one queue.
type Lane struct {
	C     *Capture
	Q     Queue
	Index int    // among the lanes of C
	Track any    // of the Builder
	n     uint64 // commands
	seen  clock  // of lanes
	work  Scratch
}

// node is a point in a capture.
type node struct {
	seen clock // of lanes
	at   any   // of the Builder
}

// Builder makes a graph of captured commands, on one kind of device.
type Builder interface {
	// Start has a queue give its commands to the graph from now on. The first that starts is the
	// origin.
	Start(l *Lane) error
	// Record returns the present end of a lane as a node, which is number n.
	Record(l *Lane, n int) (any, error)
	// Wait makes a lane wait for a node.
	Wait(l *Lane, n int, at any) error
	// End makes the queues usable again and returns the graph; without keep there is none.
	End(lanes []*Lane, nodes []any, keep bool) (Replay, error)
}

// NewCapture starts a capture with q as the origin.
func NewCapture(b Builder, q Queue) (*Capture, error) {
	c := &Capture{b: b, touched: map[*Block]*history{}}
	return c, c.adopt(q)
}

// adopt takes q into the capture.
func (c *Capture) adopt(q Queue) error {
	l := &Lane{C: c, Q: q, Index: len(c.lanes)}
	if err := c.b.Start(l); err != nil {
		return err
	}
	c.lanes = append(c.lanes, l)
	return nil
}

// Takes notes a command of the lane, but for its blocks.
func (l *Lane) Takes(c *Command) {
	l.n++
	switch c.Kind {
	case DoLibrary:
		if !slices.Contains(l.C.Libraries, c.Library) {
			l.C.Libraries = append(l.C.Libraries, c.Library)
		}
	case DoCall:
		l.C.Parties = c.Call.Captured(l.C.Parties)
	}
}

// Uses notes that a command of the lane uses two blocks, which may be nil.
func (l *Lane) Uses(a, b *Block) {
	for _, x := range [2]*Block{a, b} {
		if x != nil && !slices.Contains(l.C.Blocks, x) {
			l.C.Blocks = append(l.C.Blocks, x)
			x.Capture(1)
		}
	}
}

// Scratch is Queue.Scratch for the lane.
func (l *Lane) Scratch(p *Pool, n int) (*Block, error) {
	return l.work.Get(p, n, func(b *Block) { l.C.owned = append(l.C.owned, b) })
}

// Record makes the present end of the lane a node of the graph, and returns its number.
func (l *Lane) Record() (int, error) {
	c := l.C
	at, err := c.b.Record(l, len(c.nodes))
	if err != nil {
		return 0, err
	}
	l.n++
	c.nodes = append(c.nodes, node{l.seen.and(l.Index, l.n), at})
	return len(c.nodes) - 1, nil
}

// Wait makes q wait for a node, joining q to the capture if it is not in it.
func (c *Capture) Wait(q Queue, n int) error {
	l := q.Lane()
	switch {
	case c.ended:
		return fmt.Errorf("%s: Wait: the event was recorded in a capture that has ended: record it again", ccall.At())
	case l != nil && l.C != c:
		return fmt.Errorf("%s: Wait: stream %q is in another capture than the event", ccall.At(), q.Name())
	}
	if l == nil {
		if err := c.adopt(q); err != nil {
			return err
		}
		l = q.Lane()
	}
	l.seen, _ = l.seen.with(c.nodes[n].seen)
	l.n++
	return c.b.Wait(l, n, c.nodes[n].at)
}

// Joined refuses a capture in which a queue was not waited for again.
func (c *Capture) Joined() error {
	origin := c.lanes[0]
	for _, l := range c.lanes[1:] {
		if !origin.seen.has(l.Index, l.n) {
			return fmt.Errorf("%s: Capture: stream %q was joined to the capture of %q and not waited for again: "+
				"end with %s.After(%s)",
				ccall.At(), l.Q.Name(), origin.Q.Name(), origin.Q.Name(), l.Q.Name())
		}
	}
	return nil
}

// End makes the queues usable again. Without keep nothing can be launched.
func (c *Capture) End(keep bool) (err error) {
	c.ended = true
	nodes := make([]any, len(c.nodes))
	for i := range nodes {
		nodes[i] = c.nodes[i].at
	}
	c.Replay, err = c.b.End(c.lanes, nodes, keep)
	for _, b := range c.Blocks {
		b.Capture(-1)
	}
	for _, l := range c.lanes {
		if b := l.work.Take(); b != nil {
			c.owned = append(c.owned, b)
		}
	}
	return err
}

// Launch enqueues a replay on q. The caller has found that it can be launched.
func (c *Capture) Launch(q Queue) error {
	cmd, err := q.Begin(DoGraph)
	if err != nil {
		return err
	}
	cmd.Capture = c
	for _, b := range c.Blocks {
		q.Uses(b, nil)
	}
	if err = q.Enqueue(cmd); err == nil {
		c.Last = q.End()
	}
	return err
}

// Runs reports whether a command replays the capture.
func (c *Capture) Runs(cmd *Command) bool { return cmd.Kind == DoGraph && cmd.Capture == c }

// Drop gives up the capture's resources of d, when its replays have run.
func (c *Capture) Drop(d Device) (err error) {
	if c.Replay != nil {
		err = c.Replay.Close(c.Last)
	}
	for _, b := range c.owned {
		b.Pool.Release(b, d.Marks())
	}
	c.owned = nil
	return err
}

// Replays says that a replay is about to be handed to a GPU, as number seq of q.
func (c *Capture) Replays(q Queue, seq uint64) {
	for _, p := range c.Parties {
		p.Replays(q, seq)
	}
}
