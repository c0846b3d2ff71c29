package calls

import (
	"unsafe"

	"lockstep/cuda"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/exec/cudaexec"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/route"
)

// LaunchAtOnce enqueues a kernel within a command of a queue of a GPU.
func LaunchAtOnce(q exec.Queue, k *exec.Kernel, g exec.Grid, args []exec.Arg) error {
	return q.(interface {
		Launch(*exec.Kernel, exec.Grid, []exec.Arg) error
	}).Launch(k, g, args)
}

// issueParts is Issue of a call that is made of several.
func (c *Request) issueParts(q exec.Issuer, work unsafe.Pointer) error {
	to, p := &c.route, &c.comm.r.parts
	p.together, p.short = p.together[:0], p.short[:0]
	staging := unsafe.Add(work, route.Bytes(to.List))
	if c.Kind != coll.Group {
		if err := c.divide(q, to, &staging); err != nil {
			return err
		}
		return c.exchange(q, work)
	}
	merges := to.By.Caps().Merges
	for i := range c.group.cmds {
		m := &c.group.cmds[i]
		var err error
		if merges || m.Kind.Traits().Message {
			err = m.divide(q, to, &staging)
		} else if m.route.Whole {
			err = m.route.By.Do(q, m.Call)
		} else {
			err = m.divide(q, &m.route, &staging)
		}
		if err != nil {
			return err
		}
	}
	if err := c.exchange(q, work); err != nil {
		return err
	}
	c.comm.recycle(c.group)
	return nil
}

// parts are those of the call that is being enqueued, one at a time.
type parts struct {
	together []coll.Call // what starts together
	short    []coll.Call // and short messages, which peers carry
}

// divide lists the steps of a call: short messages, and the others. work is the memory that is left
// for copies of operands.
func (c *Request) divide(q exec.Issuer, to *route.Route, work *unsafe.Pointer) (err error) {
	r, lib := c.comm.r, &to.By.Caps().Library
	rank, size := c.comm.rank, c.comm.size
	c.Steps(rank, size, lib, *work, func(s coll.Call) bool {
		switch t := s.Kind.Traits(); {
		case t.Local:
			err = r.local(q, s)
		case to.Short && t.Message && c.comm.routes.Short(&s):
			r.parts.short = append(r.parts.short, s)
		case !t.Message && !to.By.Caps().Merges:
			err = to.By.Do(q, s)
		default:
			r.parts.together = append(r.parts.together, s)
		}
		return err == nil
	})
	*work = unsafe.Add(*work, route.Bytes(route.Units(c.Scratch(rank, size, lib))))
	return err
}

// A kernel between peers carries short messages between two ranks: Send, Recv, and parts of a
// collective that is made of them, alone or in a group. This depends on nothing but their length,
// which both ends know.

// exchange enqueues what divide has listed: the short messages by peers. work is device memory for
// the list of the short messages.
func (c *Request) exchange(q exec.Issuer, work unsafe.Pointer) error {
	r, to := c.comm.r, &c.route
	p, peers := &r.parts, c.comm.routes.Peers()
	switch {
	case len(p.short) == 0:
		return to.By.Group(q, p.together, nil)
	case len(p.together) == 0:
		return peers.Group(q, p.short, work)
	}
	// What the one waits for may come only after another rank has got the other: they run at the
	// same time. The others are issued first: NCCL connects ranks at their first message, and may
	// wait for all that runs on the device.
	return r.GPU.GPU.OnBoth(q.Stream(), func() error { return to.By.Group(q, p.together, nil) },
		func(beside *cuda.Stream) error { return peers.Group(transport.Bare{S: beside}, p.short, work) })
}

// onStream enqueues a step that concerns this rank alone.
func (r *Rank) onStream(h *cuda.Stream, s *coll.Call) error {
	if s.Kind == coll.Fill {
		return r.GPU.Fill(h, s.Type, s.Dst, s.N, coll.Identity(s.Op, s.Type), cudaexec.NotHosted)
	}
	return h.Copy(s.Dst, s.Src, s.N*s.Type.Size())
}
