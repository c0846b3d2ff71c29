package calls

import (
	"fmt"
	"runtime"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/exec/hostexec"
	"lockstep/spmd/internal/trace"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/route"
	"lockstep/spmd/internal/verify"
)

// Do refuses calls that cannot be made, and runs, enqueues or groups the others. cmd has the
// program's part, but for the root. Its memory has dst and src bytes. q is nil for a call that
// blocks.
func (c *Comm) Do(q exec.Queue, cmd *Request, root, dst, src int) error {
	if c == nil || c.freed || uint(root) >= uint(c.size) {
		return c.Refused(cmd.Kind, c.Refuse(cmd.Kind.String(), "rank", root))
	}
	if !cmd.Op.On(cmd.Type) {
		if cmd.Op < elem.Ops {
			return c.Refusef(cmd.Kind, "%v has no order, and no %v", cmd.Type, cmd.Op)
		}
		return c.Refusef(cmd.Kind, "no such operation of buffers: %v", cmd.Op)
	}
	if exec.Overlap(cmd.Dst, dst, cmd.Src, src) && !cmd.InPlace(c.rank) {
		n := cmd.Type.Size()
		return c.Refusef(cmd.Kind, "dst of %d elements and src of %d overlap", dst/n, src/n)
	}
	cmd.comm, cmd.Root = c, int32(root)
	r := c.r
	if err := exec.RefuseInHostFunc(cmd.Kind.String()); err != nil {
		return c.Refused(cmd.Kind, err)
	}
	if c.open != nil {
		return c.open.join(q, cmd)
	}
	if c.whole.Has(cmd.Kind) { // as nearly every call on the host
		cmd.route.Host, cmd.route.Whole = true, true
		if q != nil {
			cmd.route.By = c.byHost
		}
	} else {
		cmd.choose(q != nil)
	}
	if q != nil {
		return cmd.submit(q)
	}
	if err := cmd.checkBlocks(); err != nil {
		return c.Refused(cmd.Kind, err)
	}
	if r.capturing.Load() != 0 {
		return c.Refused(cmd.Kind, fmt.Errorf("%s: a collective that blocks in the middle of a capture: use "+
			"comm.On(stream)", ccall.At()))
	}
	if err := cmd.settle(); err != nil {
		return c.Refused(cmd.Kind, err)
	}
	cmd.uses((*exec.Block).Seen)
	if !cmd.route.Host {
		if cmd.route.By.Caps().Now {
			return cmd.onDeviceNow(r.blocking.(exec.Direct))
		}
		if err := cmd.submit(r.blocking); err != nil {
			return err
		}
		return r.Synchronize(r.blocking)
	}
	turn := r.Order.Take(1)
	if err := r.Order.Enter(turn); err != nil {
		return err
	}
	err := cmd.Run(r.Calls)
	r.Order.Leave()
	// A program that does nothing but call computes in C without a pause. Not with a GPU: its core
	// is idle most of the time, and the other ranks would wait for the pause.
	if !c.routes.OnDevice() && turn%32 == 0 && r.pause.TryLock() {
		r.yielder.Yield()
		r.pause.Unlock()
	}
	return err
}

// choose decides which transport carries the call, which is not in a group.
func (c *Request) choose(enqueued bool) {
	c.comm.routes.Choose(&c.route, &c.Call, c.group, c.memory(), enqueued)
}

// submit checks the blocks of a call, and enqueues it on q.
func (c *Request) submit(q exec.Queue) error {
	if err := c.checkBlocks(); err != nil {
		return c.comm.Refused(c.Kind, err) // before anything that other ranks take part in
	}
	err := c.enqueue(q)
	if c.rest != nil && err == nil {
		err = c.checkAfter()
	}
	return err
}

// enqueue enqueues a call whose blocks have been checked. It uses the slot's own call again.
func (c *Request) enqueue(q exec.Queue) error {
	if !c.route.Host {
		if done, err := c.beforeDevice(q); done || err != nil {
			return err
		}
	}
	cmd, err := q.Begin(exec.DoCall)
	if err != nil {
		return c.comm.Refused(c.Kind, err)
	}
	own, _ := cmd.Call.(*Request)
	if own == nil {
		own = new(Request)
		cmd.Call = own
	}
	own.copyFrom(c)
	own.site = &cmd.Site
	if !own.route.Host {
		own.q, cmd.Plan = q, own.planned()
	}
	if q != c.comm.r.blocking { // whose caller waits for it
		own.uses(func(b *exec.Block) { q.Uses(b, nil) })
	}
	return q.Enqueue(cmd)
}

// beforeDevice prepares a call on device memory, before it is enqueued. The call is done then if
// its transport makes it at once. With --check it is compared with the other ranks' calls.
func (c *Request) beforeDevice(q exec.Queue) (done bool, err error) {
	if c.route.By.Caps().Blocks {
		if done, err := c.now(q.(exec.Direct)); done {
			return true, err
		}
	}
	if c.comm.r.Check != verify.Off {
		return false, c.checkBefore(q)
	}
	return false, nil
}

// planned returns the plan of the call, which the queue of a GPU has to know before it issues the
// call.
func (c *Request) planned() *exec.Plan {
	if c.plan == nil {
		c.plan = new(exec.Plan)
	}
	p := c.plan
	*p = exec.Plan{Alone: c.route.By.Caps().Alone, Fills: c.route.Fills,
		Bytes: route.Bytes(c.route.List + c.route.Work), What: &c.Call, Size: c.comm.size}
	if t := c.route.Order(); t != nil {
		p.By = t
	}
	if c.group != nil {
		p.Group = c.group
	}
	return p
}

// Run implements exec.CollectiveCall. The caller has the turn.
func (c *Request) Run(on *trace.Thread) error {
	r := c.comm.recorder
	p := r.Begin(&c.Call, c.group)
	t := c.comm.trace
	if t != nil {
		t.Begin(on, &c.Call, c.group)
	}
	err := c.verify()
	if err == nil {
		r.Note(p, &c.Call, c.group, c.memory(), c.site)
		if c.route.Whole {
			err = c.comm.host.Make(c.Call.Hidden()) // it keeps nothing of the call
			runtime.KeepAlive(c)
		} else {
			err = c.make(nil, c.comm.hostWork(route.Bytes(c.route.Work)))
		}
		err = c.verified(err)
	}
	if t != nil {
		t.End(err)
	}
	r.Leave()
	return err
}

// Issue implements exec.CollectiveCall: it hands the call to the transport of its route.
func (c *Request) Issue(q exec.Issuer, seq uint64, work unsafe.Pointer) error {
	if seq != 0 { // else it counts when the graph is replayed
		c.comm.recorder.Issue(c.q, seq, &c.Call, c.group, c.memory(), c.site, c.begun)
	}
	if c.route.Whole {
		return c.route.By.Do(q, c.Call)
	}
	return c.issueParts(q, work)
}

// make has the transports of the route make the call on the host, if q is nil, or enqueue it on a
// bare queue. On the host the result is then valid. Of a group it makes the collectives, one after
// the other, and then the messages together. work is memory of the route's bytes.
func (c *Request) make(q transport.Issuer, work unsafe.Pointer) error {
	if c.route.Whole {
		return c.route.By.Do(q, c.Call)
	}
	if c.Kind != coll.Group {
		return transport.Make(c.route.By, q, &c.Call, c.comm.rank, c.comm.size, work, c.comm.r.local)
	}
	g, used := c.group, 0
	g.list = g.list[:0]
	for i := range g.cmds {
		m := &g.cmds[i]
		if m.Kind.Traits().Message {
			g.list = append(g.list, m.Call)
			continue
		}
		its := route.Bytes(m.route.Work)
		if err := m.make(q, elem.At(work, used, its, elem.Uint8)); err != nil {
			return err
		}
		used += its
	}
	if err := c.route.By.Group(q, g.list, nil); err != nil {
		return err // messages may still be on their way
	}
	c.comm.recycle(g)
	return nil
}

// local does a step that concerns this rank alone, on the host or on a stream of the GPU.
func (r *Rank) local(q transport.Issuer, s coll.Call) error {
	if q != nil {
		return r.onStream(q.Stream(), &s)
	}
	if s.Kind == coll.Fill {
		hostexec.FillAs(s.Type, s.Dst, s.N, coll.Identity(s.Op, s.Type))
		return nil
	}
	n := s.N * s.Type.Size()
	copy(unsafe.Slice((*byte)(s.Dst), n), unsafe.Slice((*byte)(s.Src), n))
	return nil
}
