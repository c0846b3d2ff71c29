package calls

import (
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/exec/cudaexec"
	"lockstep/spmd/internal/trace"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/route"
)

// onGPU is a queue of a GPU.
func onGPU(q exec.Queue) *cudaexec.Queue { return q.(*cudaexec.Queue) }

// StreamOf is the CUDA stream of a queue of a GPU.
func StreamOf(q exec.Queue) *cuda.Stream {
	if _, ok := q.(*cudaexec.Queue); !ok {
		return nil // where kernels are emulated
	}
	return onGPU(q).Stream()
}

// LaunchAtOnce enqueues a kernel within a command of a queue of a GPU.
func LaunchAtOnce(q exec.Queue, k *exec.Kernel, g exec.Grid, args []exec.Arg) error {
	return q.(interface {
		Launch(*exec.Kernel, exec.Grid, []exec.Arg) error
	}).Launch(k, g, args)
}

// CUDA is the GPU that the rank's buffers and streams are on; nil where that is the host.
func (r *Rank) CUDA() *cuda.Device {
	if r.GPU == nil {
		return nil
	}
	return r.GPU.GPU.Dev
}

// Order implements cuda.Call. No other rank takes part where the communicator has none.
func (c *Call) Order() (by any, others bool) {
	if c.route.By.Caps().Alone {
		return nil, false
	}
	if t := c.route.Order(); t != nil {
		by = t
	}
	return by, true
}

// Needs implements cuda.Call.
func (c *Call) Needs() (fills bool, bytes int) {
	return c.route.Fills, route.Bytes(c.route.List + c.route.Work)
}

// Issued implements exec.Notes.
func (c *Call) Issued(q exec.Queue, seq uint64, site *ccall.Site) {
	c.comm.recorder.Issue(q, seq, &c.Call, c.group, c.memory(), site, c.begun)
}

// Party implements exec.Call.
func (c *Call) Party() exec.Party { return c.comm }

// Comm implements exec.Notes.
func (c *Call) Comm() *trace.Comm { return c.comm.trace }

// Begins implements cuda.Call.
func (c *Call) Begins(to *trace.Call, on *trace.Thread) trace.Mark {
	return c.comm.trace.Issue(to, on, &c.Call, c.group)
}

// Holds implements cuda.Call.
func (c *Call) Holds(in *trace.Content) { in.AddCall(&c.Call, c.group, c.comm.size) }

// Issue implements cuda.Call: it enqueues the call, as its route says.
func (c *Call) Issue(on *cudaexec.Queue, seq uint64, work unsafe.Pointer) error {
	c.q, c.seq = on, seq
	q, to, p := (*handing)(c), &c.route, &c.comm.r.parts
	if to.Whole {
		return to.By.Do(q, c.Call)
	}
	p.together, p.short = p.together[:0], p.short[:0]
	staging := unsafe.Add(work, route.Bytes(to.List))
	if c.Kind != coll.Group {
		if err := q.divide(c, to, &staging); err != nil {
			return err
		}
		return q.exchange(to, work)
	}
	merges := to.By.Caps().Merges
	for i := range c.group.cmds {
		m := &c.group.cmds[i]
		var err error
		if merges || m.Kind.Traits().Message {
			err = q.divide(m, to, &staging)
		} else if m.route.Whole {
			err = m.route.By.Do(q, m.Call)
		} else {
			err = q.divide(m, &m.route, &staging)
		}
		if err != nil {
			return err
		}
	}
	if err := q.exchange(to, work); err != nil {
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

// handing is a call that is being enqueued, and its queue as transports see it.
type handing Call

// Hand implements transport.Queue.
func (q *handing) Hand(j transport.Job) error { return q.q.Hand(j, q.seq, &q.Call, q.site) }

// Stream implements transport.Queue.
func (q *handing) Stream() *cuda.Stream { return q.q.Stream() }

// divide lists the steps of a call: short messages, and the others. work is the memory that is left
// for copies of operands.
func (q *handing) divide(c *Call, to *route.Route, work *unsafe.Pointer) (err error) {
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

// Messages between two ranks go by a kernel between peers where they are short, be they Send, Recv, or parts of a
// collective that is made of them, alone or in a group: it depends on nothing but their length, which both ends know.

// exchange enqueues what divide has listed: the short messages by peers. work is device memory for the list of the short messages.
func (q *handing) exchange(to *route.Route, work unsafe.Pointer) error {
	r := q.comm.r
	p, peers := &r.parts, q.comm.routes.Peers()
	switch {
	case len(p.short) == 0:
		return to.By.Group(q, p.together, nil)
	case len(p.together) == 0:
		return peers.Group(q, p.short, work)
	}
	// What the one waits for may come only after another rank has got the other: they run at the same time. The others are
	// issued first, since NCCL connects ranks at their first message, and for that may wait for all that runs on the device.
	return r.GPU.GPU.OnBoth(q.Stream(), func() error { return to.By.Group(q, p.together, nil) },
		func(beside *cuda.Stream) error { return peers.Group(transport.Bare{S: beside}, p.short, work) })
}

// onStream enqueues a step that concerns this rank alone.
func (r *Rank) onStream(h *cuda.Stream, s *coll.Call) error {
	if s.Kind == coll.Fill {
		return r.GPU.Fill(h, s.Type, s.Dst, s.N, coll.Identity(s.Op, s.Type), false)
	}
	return h.Copy(s.Dst, s.Src, s.N*s.Type.Size())
}
