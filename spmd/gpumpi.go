package spmd

import (
	"errors"
	"fmt"
	"strings"

	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	cudaexec "lockstep/spmd/internal/exec/cuda"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/route"
	"lockstep/spmd/internal/verify"
)

// chooseBackend settles on all ranks alike what carries GPU memory. It comes before the GPU is opened.
//
// Collective over all ranks.
func (w *World) chooseBackend() error {
	if w.Size() == 1 {
		return nil
	}
	s, err := route.Select(w.control.st.host, w.cfg.Collectives)
	if err != nil {
		return err
	}
	if s.Lacking != nil {
		w.agreed = true
		return Usage(fmt.Errorf("--collectives %s: %w", w.cfg.Collectives, s.Lacking))
	}
	w.env.Backend = s.Backend
	if s.Passed != "" {
		w.fellBack, w.why = true, s.Passed
	}
	return nil
}

// openTransports has the world's communicators carry GPU memory, and says why in the way that they do.
//
// Collective over all ranks.
func (w *World) openTransports() error {
	world, asked := &w.all.st.routes, w.cfg.Collectives
	agreed, err := route.OpenWorld(world, &w.near.st.routes)
	switch {
	case err != nil && agreed:
		w.agreed = true
		err = errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
		if !route.ForDevicesOnly(asked) {
			return err
		}
		return Usage(fmt.Errorf("--collectives %s: %w", asked, err))
	case err != nil:
		return err
	}
	why, doubtful, err := world.Why()
	if err != nil || why == "" {
		return err
	}
	w.why += "; "
	if asked == w.env.Backend.Name() {
		w.why += "--collectives " + asked
		if doubtful {
			w.why += ", though "
		} else {
			w.why += ": "
		}
	}
	w.why += why
	w.fellBack = w.fellBack || doubtful
	return nil
}

// Hand implements transport.Queue.
func (q *handing) Hand(j transport.Job) error { return q.q.Hand(j, q.seq, &q.Call, q.site) }

// now makes a call on a stream that its transport makes at once, unless the stream is captured.
func (c *call) now(q *cudaexec.Queue) (done bool, err error) {
	err = q.Ready()
	if q.Lane() != nil {
		return false, nil
	}
	if err == nil {
		err = c.onDeviceNow(q)
	}
	q.Count() // what may still run on the device
	return true, err
}

// beforeDevice does what comes before a call on device memory is enqueued: it is done then where its transport makes it at
// once, and compared with those of the other ranks where --check asks for it.
func (c *call) beforeDevice(q exec.Queue) (done bool, err error) {
	if c.route.Host {
		return false, nil
	}
	if c.route.By.Caps().Blocks {
		if done, err := c.now(onGPU(q)); done {
			return true, err
		}
	}
	if c.comm.w.check != verify.Off {
		return false, c.checkBefore(q)
	}
	return false, nil
}

// checkBefore is verify for a call on a stream of a GPU, in a turn of its own.
func (c *call) checkBefore(q exec.Queue) error {
	order := c.comm.w.order
	if err := order.Enter(order.Take(1)); err != nil {
		return err
	}
	defer order.Leave()
	r := c.comm.recorder
	if q.Lane() == nil {
		c.begun = true
		r.BeginOnDevice(&c.Call, c.group)
	} else if c.Kind == coll.Group || c.Kind.Traits().Message {
		return nil // who captures a message need not have a peer who does
	} else { // what is captured is made, and counts, when it is replayed
		r.Enter(verify.Pack(&c.Call, c.group).Alone())
	}
	defer r.Leave()
	return c.verify()
}

// onDeviceNow makes a call from the goroutine that issues it, on a stream of its, or on that of the calls that block, for
// which it then waits.
func (c *call) onDeviceNow(q *cudaexec.Queue) error {
	st, w := c.comm, c.comm.w
	now := *c
	var turn uint64
	taken := false
	work, err := q.Now(&now, func() { turn, taken = w.order.Take(1), true })
	if !taken {
		return err
	}
	if e := w.order.Enter(turn); e != nil {
		return e
	}
	defer w.order.Leave()
	if err != nil {
		return err
	}
	p := st.recorder.Begin(&c.Call, c.group)
	defer st.recorder.Leave()
	if err := now.verify(); err != nil {
		return err
	}
	st.recorder.Note(p, &c.Call, c.group, c.memory(), nil)
	if err := now.make(transport.Bare{S: q.Stream()}, work); err != nil {
		return err
	}
	if q != w.blocking.q {
		return nil
	}
	return st.host.WaitStream(q.Stream())
}
