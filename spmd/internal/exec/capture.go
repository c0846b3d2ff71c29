package exec

import (
	"fmt"
	"slices"

	"lockstep/internal/ccall"
)

// Capture is a graph under construction. Queues that wait for a point in it join it.
type Capture struct {
	For   any // whom the capture is for
	b     Builder
	lanes []*Lane // one for each queue that is captured; the first is the origin
	nodes []node
	owned []*Block // memory that commands of the graph use
	ended bool
}

// Lane is the part of a capture that comes from one queue.
type Lane struct {
	C     *Capture
	Q     Queue
	Index int   // among the lanes of C
	Track any   // of the Builder
	n     int   // commands
	seen  []int // for each lane: how many of its commands are known to be finished here
	work  Scratch
}

// node is a point in a capture.
type node struct {
	seen []int // for each lane: how many of its commands were finished then
	at   any   // of the Builder
}

// Builder makes a graph of what is captured, on one kind of device.
type Builder interface {
	// Start has a queue give its commands to the graph from now on. The first that starts is the origin.
	Start(l *Lane) error
	// Record returns the present end of a lane as a node, which is number n.
	Record(l *Lane, n int) (any, error)
	// Wait makes a lane wait for a node.
	Wait(l *Lane, n int, at any) error
	// End makes the queues usable again and returns the graph; without keep there is none.
	End(lanes []*Lane, nodes []any, keep bool) (Graph, error)
}

// NewCapture starts a capture with q as the origin.
func NewCapture(b Builder, q Queue, of any) (*Capture, error) {
	c := &Capture{For: of, b: b}
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

// Count counts a command of the lane.
func (l *Lane) Count() { l.n++ }

// Scratch is Queue.Scratch for the lane.
func (l *Lane) Scratch(p *Pool, n int) (*Block, error) {
	return l.work.Get(p, n, func(b *Block) { l.C.owned = append(l.C.owned, b) })
}

// Memory returns the scratch memory of all lanes, which the graph has from now on.
func (c *Capture) Memory() []*Block {
	for _, l := range c.lanes {
		if b := l.work.Take(); b != nil {
			c.owned = append(c.owned, b)
		}
	}
	return c.owned
}

// Record makes the present end of the lane a node of the graph, and returns its number.
func (l *Lane) Record() (int, error) {
	c := l.C
	at, err := c.b.Record(l, len(c.nodes))
	if err != nil {
		return 0, err
	}
	l.n++
	seen := slices.Clone(l.seen)
	for len(seen) <= l.Index {
		seen = append(seen, 0)
	}
	seen[l.Index] = l.n
	c.nodes = append(c.nodes, node{seen, at})
	return len(c.nodes) - 1, nil
}

// Wait makes q wait for a node, joining q to the capture where it is not in it.
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
	for i, n := range c.nodes[n].seen {
		if i == len(l.seen) {
			l.seen = append(l.seen, 0)
		}
		l.seen[i] = max(l.seen[i], n)
	}
	l.n++
	return c.b.Wait(l, n, c.nodes[n].at)
}

// Joined refuses a capture in which a queue was not waited for again.
func (c *Capture) Joined() error {
	origin := c.lanes[0]
	for _, l := range c.lanes[1:] {
		if len(origin.seen) <= l.Index || origin.seen[l.Index] < l.n {
			return fmt.Errorf("%s: Capture: stream %q was joined to the capture of %q and not waited for again: end with %s.After(%s)",
				ccall.At(), l.Q.Name(), origin.Q.Name(), origin.Q.Name(), l.Q.Name())
		}
	}
	return nil
}

// End makes the queues usable again and returns the graph of what was captured; without keep there is none.
func (c *Capture) End(keep bool) (Graph, error) {
	c.ended = true
	nodes := make([]any, len(c.nodes))
	for i := range nodes {
		nodes[i] = c.nodes[i].at
	}
	return c.b.End(c.lanes, nodes, keep)
}
