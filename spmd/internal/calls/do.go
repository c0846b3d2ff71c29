package calls

import (
	"cmp"
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
)

// Do refuses what cannot be called, and runs, enqueues or groups the rest. cmd has the program's part, but for the
// root; its memory has dst and src bytes. q is nil for a call that blocks.
func (c *Comm) Do(q exec.Queue, cmd *Call, root, dst, src int) error {
	if c == nil || c.freed || uint(root) >= uint(c.size) {
		return c.Refuse(cmd.Kind.String(), "rank", root)
	}
	if !cmd.Op.On(cmd.Type) {
		if cmd.Op < elem.Ops {
			return fmt.Errorf("%s: %s: %v has no order, and no %v", ccall.At(), cmd.Kind, cmd.Type, cmd.Op)
		}
		return fmt.Errorf("%s: %s: no such operation of buffers: %v", ccall.At(), cmd.Kind, cmd.Op)
	}
	if Overlap(cmd.Dst, dst, cmd.Src, src) && !cmd.InPlace(c.rank) {
		n := cmd.Type.Size()
		return fmt.Errorf("%s: %s: dst of %d elements and src of %d overlap", ccall.At(), cmd.Kind, dst/n, src/n)
	}
	cmd.comm, cmd.Root = c, int32(root)
	r := c.r
	if err := exec.RefuseInHostFunc(cmd.Kind.String()); err != nil {
		return err
	}
	if c.open != nil {
		return c.open.join(q, cmd)
	}
	if c.routes.WholeOnHost(cmd.Kind) { // as nearly every call on the host
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
		return err
	}
	if r.capturing.Load() != 0 {
		return fmt.Errorf("%s: a collective that blocks in the middle of a capture: use comm.On(stream)", ccall.At())
	}
	if !cmd.route.Host {
		if cmd.route.By.Caps().Now {
			return cmd.onDeviceNow(onGPU(r.blocking))
		}
		if err := cmd.submit(r.blocking); err != nil {
			return err
		}
		return r.Synchronize(r.blocking)
	}
	turn := r.Order.Take(1)
	err := cmd.communicate(r.Calls, turn)
	// A program that does nothing but call is one that computes in C without a pause. Not with a GPU: its core is idle most
	// of the time, and the other ranks would wait for the pause.
	if !c.routes.OnDevice() && turn%32 == 0 && r.pause.TryLock() {
		r.yielder.Yield()
		r.pause.Unlock()
	}
	return err
}

// Overlap says whether [a, a+n) and [b, b+m) share a byte.
func Overlap(a unsafe.Pointer, n int, b unsafe.Pointer, m int) bool {
	x, y := uintptr(a), uintptr(b)
	return n > 0 && m > 0 && x < y+uintptr(m) && y < x+uintptr(n)
}

// choose decides what carries the call, which is not in a group.
func (c *Call) choose(enqueued bool) {
	c.comm.routes.Choose(&c.route, &c.Call, c.group, c.memory(), enqueued)
}

// Run implements exec.Call.
func (c *Call) Run(on *trace.Thread, turn uint64) error { return c.communicate(on, turn) }

// communicate makes a call on host memory, in its turn in MPI, and notes it among the events of on.
func (c *Call) communicate(on *trace.Thread, turn uint64) error {
	order := c.comm.r.Order
	if err := order.Enter(turn); err != nil {
		return err
	}
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
	}
	if t != nil {
		t.End(err)
	}
	r.Leave()
	order.Leave()
	return err
}

// make has the transports of its route make the call, whose result is then valid, or enqueue it on q, which is a bare
// queue, or nil on the host. A group is its collectives, one after the other, and then its messages together. work is
// memory of the route's bytes.
func (c *Call) make(q transport.Queue, work unsafe.Pointer) error {
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
func (r *Rank) local(q transport.Queue, s coll.Call) error {
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

// hostWork returns memory of n bytes for a call on the host, in its turn in MPI.
func (c *Comm) hostWork(n int) unsafe.Pointer {
	if n == 0 {
		return nil
	}
	const keep = 16 << 20 // what is larger goes after the call
	if n > keep {
		return unsafe.Pointer(unsafe.SliceData(make([]uint64, n/8+1)))
	}
	if len(c.work) < n/8 {
		c.work = make([]uint64, n/8)
	}
	return unsafe.Pointer(unsafe.SliceData(c.work))
}

// Plain says whether a message between this rank and peer is nothing but a blocking call in host memory with nothing to
// refuse. A message costs little more than a call from Go to C: for it the way through Do is long.
func (c *Comm) Plain(q exec.Queue, b *exec.Block, peer int) bool {
	return q == nil && c != nil && c.checker == nil && c.open == nil && !c.freed && uint(peer) < uint(c.size) && b != nil &&
		c.r.has(b) && !c.routes.OnDevice() && c.r.capturing.Load() == 0 && !exec.HostFuncRuns()
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

// LeaveOut is a message that has no other end: it refuses what any message refuses.
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

// EnterHost refuses what a call on host memory cannot be made with, and takes its turn in MPI. It returns memory of n bytes
// or more that is the caller's until LeaveHost, which follows where there is no error.
func (c *Comm) EnterHost(op string, root int, t elem.Type, o elem.Op, n int) (unsafe.Pointer, error) {
	switch {
	case c == nil || c.freed || root < 0 || root >= c.size:
		return nil, c.Refuse(op, "rank", root)
	case !o.Has(t):
		return nil, fmt.Errorf("%s: %s: no such operation: %v of %v", ccall.At(), op, o, t)
	case c.r.Capturing():
		return nil, fmt.Errorf("%s: %s blocks, and stands in the middle of a capture", ccall.At(), op)
	}
	if err := exec.RefuseInHostFunc(op); err != nil {
		return nil, err
	}
	order := c.r.Order
	if err := order.Enter(order.Take(1)); err != nil {
		return nil, err
	}
	return c.hostWork((n + 7) / 8 * 8), nil
}

// MakeHost makes a call on host memory between EnterHost and LeaveHost, seen by the watchdog, by --check, and by --summary
// and --trace.
func (c *Comm) MakeHost(made coll.Call) error {
	cmd := Call{Call: made, comm: c}
	p := c.recorder.Begin(&cmd.Call, nil)
	c.trace.Begin(c.r.Calls, &cmd.Call, nil)
	err := cmd.verify()
	if err == nil {
		c.recorder.Note(p, &cmd.Call, nil, 0, nil)
		err = c.host.Make(cmd.Call.Hidden())
		runtime.KeepAlive(&cmd)
	}
	c.trace.End(err)
	c.recorder.Leave()
	return err
}

// LeaveHost ends the turn that EnterHost took.
func (c *Comm) LeaveHost() { c.r.Order.Leave() }
