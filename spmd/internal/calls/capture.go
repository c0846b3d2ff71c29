package calls

import (
	"errors"
	"fmt"
	"slices"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/trace"
	"lockstep/spmd/internal/verify"
)

// Capture returns a capture of the commands that fn enqueues on q. If fn fails, nothing is left of
// the capture.
func (r *Rank) Capture(q exec.Queue, fn func() error) (*exec.Capture, error) {
	if err := exec.RefuseInHostFunc("Capture"); err != nil {
		return nil, err
	}
	if q.Lane() != nil {
		return nil, fmt.Errorf("%s: Capture: stream %q is being captured already", ccall.At(), q.Name())
	}
	c, err := exec.NewCapture(r.Dev.NewBuilder(), q)
	if err != nil {
		return nil, err
	}
	if err := r.record(c, fn); err != nil {
		return nil, errors.Join(err, c.Drop(r.Dev))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.captures = append(r.captures, c)
	return c, nil
}

// record has c take the commands that fn enqueues, and ends it.
func (r *Rank) record(c *exec.Capture, fn func() error) (err error) {
	r.capturing.Add(1)
	whole := false // fn has returned, and has not ended the goroutine
	defer func() {
		e := c.End(whole && err == nil)
		r.capturing.Add(-1)
		err = errors.Join(err, e)
	}()
	if err = exec.Guard(fn); err == nil {
		err = c.Joined()
	}
	whole = true
	return err
}

// Launch enqueues a replay of c on q.
func (r *Rank) Launch(q exec.Queue, c *exec.Capture) error {
	if err := exec.RefuseInHostFunc("Launch"); err != nil {
		return err
	}
	if c.Closed {
		return fmt.Errorf("%s: Launch: the graph is closed", ccall.At())
	}
	for _, l := range c.Libraries {
		if l.Closed.Load() {
			return fmt.Errorf("%s: Launch: the graph holds calls of %s, which is closed", ccall.At(), l.Name)
		}
	}
	for _, b := range c.Blocks {
		if b.Freed.Load() {
			return fmt.Errorf("%w, and the graph still uses it", freedError(b, "Launch"))
		}
	}
	for _, p := range c.Parties {
		if p.Closed() {
			return fmt.Errorf("%s: Launch: the graph holds collectives of a communicator that is closed", ccall.At())
		}
	}
	if err := RefuseCaptured(q, "Launch"); err != nil {
		return err
	}
	if err := WaitFor(q, c.Last, nil); err != nil { // another queue may be replaying it
		return err
	}
	return c.Launch(q)
}

// CloseCapture ends the use of c, on a GPU when its replays have run. A second call does nothing.
func (r *Rank) CloseCapture(c *exec.Capture) error {
	if err := exec.RefuseInHostFunc("Close"); err != nil {
		return err
	}
	if c.Closed {
		return nil
	}
	c.Closed = true
	r.mu.Lock()
	r.captures = slices.DeleteFunc(r.captures, func(o *exec.Capture) bool { return o == c })
	r.mu.Unlock()
	return c.Drop(r.Dev)
}

// dropCaptures ends the graphs that hold collectives of c: NCCL wants them gone before the
// communicator. The captures remain to be closed.
func (r *Rank) dropCaptures(of *Comm) (err error) {
	for _, c := range r.capturesOf(of) {
		err = errors.Join(err, c.Drop(r.Dev))
	}
	return err
}

// capturesOf returns the captures that hold collectives of a communicator.
func (r *Rank) capturesOf(of *Comm) []*exec.Capture {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.captures), func(c *exec.Capture) bool {
		return !slices.ContainsFunc(c.Parties, func(p exec.Party) bool { return p.(*captured).Comm == of })
	})
}

// CloseCaptures closes the captures that are left.
func (r *Rank) CloseCaptures() (err error) {
	r.mu.Lock()
	left := slices.Clone(r.captures)
	r.mu.Unlock()
	for _, c := range left {
		err = errors.Join(err, r.CloseCapture(c))
	}
	return err
}

// captured is a communicator in a capture, and its calls there.
type captured struct {
	*Comm
	calls []Request
}

var _ exec.Party = (*captured)(nil)

// Captured implements exec.CollectiveCall.
func (c *Request) Captured(parties []exec.Party) []exec.Party {
	i := slices.IndexFunc(parties, func(p exec.Party) bool { return p.(*captured).Comm == c.comm })
	if i < 0 {
		i, parties = len(parties), append(parties, &captured{Comm: c.comm})
	}
	var own Request
	own.copyFrom(c)
	site := *c.site
	own.site = &site
	in := parties[i].(*captured)
	in.calls = append(in.calls, own)
	return parties
}

// Replays has each of the calls count: other ranks' graphs may hold more of them, or fewer.
func (c *captured) Replays(q exec.Queue, seq uint64) {
	for i := range c.calls {
		r := &c.calls[i]
		c.recorder.Issue(q, seq, &r.Call, r.group, r.memory(), r.site, verify.NotBegun)
	}
}

func (c *captured) Traced() *trace.Ledger { return c.trace }
func (c *captured) Closed() bool          { return c.freed }
func (c *Request) Traced() *trace.Ledger  { return c.comm.trace }
