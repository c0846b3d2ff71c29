package spmd

import (
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	cudaexec "lockstep/spmd/internal/exec/cuda"
	"lockstep/spmd/internal/transport/route"
)

// onGPU has the communicator work on the GPU that its world has.
func (st *commState) onGPU() {
	st.recorder.OnDevice()
	st.routes.UseDevice()
}

// choose decides what carries the call, which is not in a group.
func (c *call) choose(enqueued bool) {
	c.comm.routes.Choose(&c.route, &c.Call, c.group, c.memory(), enqueued)
}

// knowSymmetric has a new communicator know the symmetric memory that there is. Collective over it, in a turn.
func (w *World) knowSymmetric(st *commState) error {
	if w.symmetric == nil || !st.routes.OwnsSymmetric() {
		return nil
	}
	return w.symmetric.enter(st)
}

// onGPU is a queue of a GPU.
func onGPU(q exec.Queue) *cudaexec.Queue { return q.(*cudaexec.Queue) }

// Order implements cuda.Call. No other rank takes part where the communicator has none.
func (c *call) Order() (by any, others bool) {
	if c.route.By.Caps().Alone {
		return nil, false
	}
	if t := c.route.Order(); t != nil {
		by = t
	}
	return by, true
}

// Needs implements cuda.Call.
func (c *call) Needs() (fills bool, bytes int) {
	return c.route.Fills, route.Bytes(c.route.List + c.route.Work)
}

// Issued implements exec.Notes.
func (c *call) Issued(q exec.Queue, seq uint64, site *ccall.Site) {
	c.comm.recorder.Issue(q, seq, &c.Call, c.group, c.memory(), site, c.begun)
}

// Issue implements cuda.Call: it enqueues the call, as its route says.
func (c *call) Issue(on *cudaexec.Queue, seq uint64, work unsafe.Pointer) error {
	c.q, c.seq = on, seq
	q, to, p := (*handing)(c), &c.route, &c.comm.w.parts
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
type handing call

// Stream implements transport.Queue.
func (q *handing) Stream() *cuda.Stream { return q.q.Stream() }

// divide lists the steps of a call: short messages, and the others. work is the memory that is left
// for copies of operands.
func (q *handing) divide(c *call, to *route.Route, work *unsafe.Pointer) (err error) {
	w, lib := c.comm.w, &to.By.Caps().Library
	rank, size := c.comm.rank, c.comm.size
	c.Steps(rank, size, lib, *work, func(s coll.Call) bool {
		switch t := s.Kind.Traits(); {
		case t.Local:
			err = w.local(q, s)
		case to.Short && t.Message && c.comm.routes.Short(&s):
			w.parts.short = append(w.parts.short, s)
		case !t.Message && !to.By.Caps().Merges:
			err = to.By.Do(q, s)
		default:
			w.parts.together = append(w.parts.together, s)
		}
		return err == nil
	})
	*work = unsafe.Add(*work, route.Bytes(route.Units(c.Scratch(rank, size, lib))))
	return err
}
