package calls

import (
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/verify"
)

// now makes a call on a stream that its transport makes at once, unless the stream is captured.
func (c *Request) now(q exec.Direct) (done bool, err error) {
	err = q.Ready()
	if q.Lane() != nil {
		return false, nil
	}
	if err == nil {
		err = c.onDeviceNow(q)
	}
	q.Count() // what may still run on the device
	c.uses(q.Used)
	return true, err
}

// checkBefore is verify for a call on a stream of a GPU, in a turn of its own.
func (c *Request) checkBefore(q exec.Queue) error {
	order := c.comm.r.Order
	if err := order.Enter(order.Take(1)); err != nil {
		return err
	}
	defer order.Leave()
	rec := c.comm.recorder
	if q.Lane() == nil {
		c.begun = true
		rec.BeginOnDevice(&c.Call, c.group)
	} else if p := verify.Pack(&c.Call, c.group); p.Everyone() { // it is made, and counts, when it is replayed
		c.captured = true
		rec.Enter(p.Alone())
	} else {
		return nil
	}
	defer rec.Leave()
	return c.verify()
}

// checkAfter is verified for a call that was enqueued on a stream of a GPU, in a turn of its own.
func (c *Request) checkAfter() error {
	order := c.comm.r.Order
	if err := order.Enter(order.Take(1)); err != nil {
		return err
	}
	defer order.Leave()
	return c.verified(nil)
}

// onDeviceNow makes a call from the goroutine that issues it. It waits for a blocking call, which
// is on the stream of blocking calls.
func (c *Request) onDeviceNow(q exec.Direct) (err error) {
	on, r := c.comm, c.comm.r
	if q.Place().Checks() {
		cmd := exec.Command{Kind: exec.DoCall, Call: &Request{Call: c.Call, DstBlock: c.DstBlock, SrcBlock: c.SrcBlock,
			comm: on, group: c.group}}
		if err := q.Place().Check(&cmd, nil, q.End().Seq+1); err != nil {
			return err
		}
	}
	now := *c
	var turn uint64
	taken := false
	work, err := q.Now(now.planned(), func() { turn, taken = r.Order.Take(1), true })
	if !taken {
		return err
	}
	if e := r.Order.Enter(turn); e != nil {
		return e
	}
	defer r.Order.Leave()
	if err != nil {
		return err
	}
	p := on.recorder.Begin(&c.Call, c.group)
	defer on.recorder.Leave()
	on.trace.Begin(on.r.Calls, &c.Call, c.group)
	defer func() { on.trace.End(err) }()
	if err := now.verify(); err != nil {
		return err
	}
	on.recorder.Note(p, &c.Call, c.group, c.memory(), nil)
	if err := now.verified(now.make(transport.Bare{S: q.Stream()}, work)); err != nil {
		return err
	}
	if exec.Queue(q) != r.blocking {
		return nil
	}
	return transport.Wait(on.host, q.Stream().Query)
}
