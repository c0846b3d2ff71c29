package calls

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/transport/route"
	"lockstep/spmd/internal/verify"
)

// group is the calls between the start and the end of Comm.Group.
type group struct {
	q    exec.Queue // that all of it is enqueued on; nil for a blocking group
	cmds []Request
	list []coll.Call // those of them that start together
	used []operand
	keep bool // a graph owns it
}

// Group runs fn, and starts its calls of c together, on q. q is nil for a group that blocks.
func (c *Comm) Group(q exec.Queue, fn func() error) error {
	if err := c.Usable("Group"); err != nil {
		return err
	}
	if err := exec.RefuseInHostFunc("Group"); err != nil {
		return c.Refused(coll.Group, err)
	}
	if c.open != nil {
		return fn() // inner groups belong to the outermost
	}
	g := c.newGroup()
	g.q = q
	err := c.collect(g, fn)
	if err == nil {
		err = g.apart()
	}
	if err != nil || len(g.cmds) == 0 {
		c.recycle(g)
		if err != nil {
			c.Refused(coll.Group, err)
		}
		return err
	}
	g.keep = q != nil && q.Lane() != nil
	return c.Do(q, &Request{Call: coll.Call{Kind: coll.Group}, group: g}, 0, 0, 0)
}

// collect has g take the calls of c that fn makes.
func (c *Comm) collect(g *group, fn func() error) error {
	c.open = g
	defer func() { c.open = nil }() // also where fn ends the goroutine
	return exec.Guard(fn)
}

// operand is memory of a call of a group.
type operand struct {
	lo, hi uintptr
	call   int
	writes bool
}

// apart refuses calls whose operands overlap, of which one is written: nobody knows which of them
// comes first. Do has compared those of each call.
func (g *group) apart() error {
	if len(g.cmds) < 2 {
		return nil
	}
	g.used = g.used[:0]
	for i := range g.cmds {
		g.cmds[i].Touches(func(_ *exec.Block, p unsafe.Pointer, bytes int, writes bool) {
			if lo := ccall.Address(p); bytes > 0 {
				g.used = append(g.used, operand{lo, lo + uintptr(bytes), i, writes})
			}
		})
	}
	slices.SortFunc(g.used, func(a, b operand) int { return cmp.Compare(a.lo, b.lo) })
	var written, end uintptr // where the operands so far end that are written, and all
	for i := range g.used {
		o := &g.used[i]
		if o.lo < written || o.writes && o.lo < end {
			for j := range i {
				if p := &g.used[j]; o.lo < p.hi && o.call != p.call && (o.writes || p.writes) {
					first, second := &g.cmds[min(o.call, p.call)].Call, &g.cmds[max(o.call, p.call)].Call
					return fmt.Errorf("%s: Group: operands of %v and of %v overlap, and one is written",
						ccall.At(), first, second)
				}
			}
		}
		if end = max(end, o.hi); o.writes {
			written = max(written, o.hi)
		}
	}
	return nil
}

func (c *Comm) newGroup() *group {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.spare); n > 0 {
		g := c.spare[n-1]
		c.spare = c.spare[:n-1]
		return g
	}
	return &group{}
}

func (c *Comm) recycle(g *group) {
	if g.keep {
		return
	}
	c.recorder.Forget(g)
	c.mu.Lock()
	defer c.mu.Unlock()
	g.cmds = g.cmds[:0]
	c.spare = append(c.spare, g)
}

// join takes a call into the group; q is the queue that it was asked for on.
func (g *group) join(q exec.Queue, c *Request) error {
	if q != g.q {
		return fmt.Errorf("%s: a call in a Group on another stream than the group's", ccall.At())
	}
	if err := c.checkBlocks(); err != nil {
		return err
	}
	c.comm.routes.ChooseMember(&c.route, &c.Call, c.memory())
	g.add(c)
	return nil
}

// add copies a call into the group, reusing the slices of earlier ones.
func (g *group) add(c *Request) {
	if len(g.cmds) < cap(g.cmds) {
		g.cmds = g.cmds[:len(g.cmds)+1]
	} else {
		g.cmds = append(g.cmds, Request{})
	}
	g.cmds[len(g.cmds)-1].copyFrom(c)
}

// Len and Call implement verify.Group.
func (g *group) Len() int { return len(g.cmds) }

func (g *group) Part(i int) *coll.Call { return &g.cmds[i].Call }

var _ route.Group = (*group)(nil)

func (g *group) Member(i int) (*coll.Call, *route.Route) { return &g.cmds[i].Call, &g.cmds[i].route }

// Call returns a call of the group, and what it does with its memory.
func (g *group) Call(i int) (*coll.Call, verify.Memory) { return &g.cmds[i].Call, g.cmds[i].memory() }

// Plain reports whether a message between this rank and peer is only a blocking call in host
// memory, with nothing to refuse. Such a message costs little more than a call from Go to C, so it
// does not take the long way through Do.
func (c *Comm) Plain(q exec.Queue, b *exec.Block, peer int) bool {
	return q == nil && c != nil && c.checker == nil && c.open == nil && !c.freed &&
		uint(peer) < uint(c.size) && b != nil && c.r.has(b) && !c.routes.OnDevice() &&
		c.r.capturing.Load() == 0 && !b.Busy() && !exec.HostFuncRuns()
}

// Message makes a Plain message, a Send from p or a Recv to it.
func (c *Comm) Message(k coll.Kind, p unsafe.Pointer, n int, t elem.Type, peer int) error {
	order := c.r.Order
	if err := order.Enter(order.Take(1)); err != nil {
		return err
	}
	m := coll.Call{Kind: k, Type: t, Root: int32(peer), N: n}
	if k == coll.Send {
		m.Src = p
	} else {
		m.Dst = p
	}
	c.recorder.BeginMessage(k, t, peer, n)
	c.trace.Begin(c.r.Calls, &m, nil)
	err := c.host.Make(m.Hidden())
	runtime.KeepAlive(&m)
	c.trace.End(err)
	c.recorder.Leave()
	order.Leave()
	return err
}

// LeaveOut checks a message that has no other end. It refuses what Send and Recv refuse.
func (c *Comm) LeaveOut(q exec.Queue, op string, a, b *exec.Block) error {
	if err := cmp.Or(c.Usable(op), exec.RefuseInHostFunc(op)); err != nil {
		return err
	}
	for _, blk := range [...]*exec.Block{a, b} {
		if err := c.r.CheckBlock(blk); err != nil {
			return err
		}
	}
	switch {
	case c.open != nil && q != c.open.q:
		return fmt.Errorf("%s: a call in a Group on another stream than the group's", ccall.At())
	case c.open == nil && q == nil && c.r.Capturing():
		return fmt.Errorf("%s: a message that blocks in the middle of a capture: use comm.On(stream)", ccall.At())
	}
	return nil
}
