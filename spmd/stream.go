package spmd

import (
	"errors"
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/trace"
)

// Stream is an ordered queue of work on the rank's device: what is enqueued on
// one stream runs in that order, what is enqueued on two may run at the same
// time. Enqueueing returns at once. On a GPU it is a CUDA stream, on the host a
// queue with one goroutine.
//
// A command that fails stops its stream: the error comes back from Synchronize and
// from every later call on the stream, and spmd.Main ends the job with it. On the
// host the commands behind it are not run; on a GPU those that were enqueued
// before the failure showed may still run.
//
// The methods, Capture excepted, are safe for use by several goroutines; but
// collectives must be enqueued in the same order on every rank, so one goroutine
// should drive them, and library calls, such as blas.Gemm, and ddp.ClipNorm share scratch
// memory of the stream, so on one stream they come from one goroutine. The queue has no
// bound: a program that enqueues for ever synchronizes now and then.
type Stream struct {
	w    *World
	name string
	q    exec.Queue
}

// Priority orders streams on a GPU: where kernels of several are ready, those of
// the stream with the higher priority start first. The host ignores it.
type Priority int

// The priorities.
const (
	Low    = Priority(exec.Low)
	Normal = Priority(exec.Normal)
	High   = Priority(exec.High)
)

// NewStream returns a new stream. The name appears in errors and reports.
func (w *World) NewStream(name string) (*Stream, error) { return w.NewStreamPriority(name, Normal) }

// NewStreamPriority is NewStream with a priority.
// Source: cuda.h, cuStreamCreateWithPriority.
func (w *World) NewStreamPriority(name string, p Priority) (*Stream, error) {
	if p < Low || p > High {
		return nil, fmt.Errorf("%s: NewStreamPriority: no such priority: %d", ccall.At(), p)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, fmt.Errorf("%s: NewStream: the world is closed", ccall.At())
	}
	q, err := w.dev.NewQueue(name, exec.Priority(p))
	if err != nil {
		return nil, err
	}
	return &Stream{w: w, name: name, q: q}, nil
}

// World returns the world that the stream belongs to.
func (s *Stream) World() *World { return s.w }

// Name returns the name given to NewStream.
func (s *Stream) Name() string { return s.name }

// Synchronize blocks the host until everything enqueued on s has run, and returns
// the first error of the stream.
func (s *Stream) Synchronize() error {
	if s.q.Lane() != nil {
		return fmt.Errorf("%s: Synchronize: stream %q is being captured", ccall.At(), s.name)
	}
	m := s.w.calls.Begin(trace.Wait)
	err := s.q.End().Wait()
	s.w.calls.EndLong(m, "Synchronize")
	return err
}

// Close waits for the work of s and ends it. The world closes what is left. A second Close only returns the error of
// the stream again, if it has one.
func (s *Stream) Close() error {
	if s.q.Lane() != nil {
		return fmt.Errorf("%s: Close: stream %q is being captured", ccall.At(), s.name)
	}
	err := s.Synchronize()
	return errors.Join(err, s.q.Close())
}

// After makes what is enqueued on s from now on wait for everything enqueued on
// other so far. It does not block the host. It fails where other has failed.
func (s *Stream) After(other *Stream) error {
	switch l := other.q.Lane(); {
	case s == other:
		return nil
	case s.w != other.w:
		return fmt.Errorf("%s: After: stream %q belongs to another world than %q", ccall.At(), other.name, s.name)
	case l != nil:
		node, err := l.Record()
		if err != nil {
			return err
		}
		return l.C.Wait(s.q, node)
	}
	return s.waitFor(other.q.End(), nil)
}

// Wait makes what is enqueued on s from now on wait for the point of the last
// Record of e; a later Record does not change it. An event that was never recorded
// is not waited for. It does not block the host.
func (s *Stream) Wait(e *Event) error {
	if s.w != e.w {
		return fmt.Errorf("%s: Wait: the event belongs to another world", ccall.At())
	}
	p, in, node := e.last()
	if in != nil {
		return in.Wait(s.q, node)
	}
	return s.waitFor(p, e.dev)
}

// waitFor enqueues the waiting for a point of another stream, where e was recorded, if that is not nil.
func (s *Stream) waitFor(p exec.Point, e exec.Event) error {
	switch {
	case p.Q == nil || p.Q == s.q:
		return nil
	case s.q.Lane() != nil:
		return fmt.Errorf("%s: Wait: stream %q is being captured, and would wait for what is outside the capture", ccall.At(), s.name)
	}
	return s.q.After(p, e)
}

// HostFunc enqueues fn on s: it runs on the host when what was enqueued before it
// has finished, and what comes after waits for it. It must not call into the
// stream or into collectives, nor wait for another one: on a GPU those of all streams
// may run one after the other. An error or a panic fails the stream.
//
//go:noinline
func (s *Stream) HostFunc(fn func() error) error {
	c, err := s.begin(exec.DoFunc, nil, nil)
	if err != nil {
		return err
	}
	c.Func = fn
	return s.q.Enqueue(c)
}

// begin returns the stream's own slot for its next command, which uses the two blocks, once they have been found to be
// the world's and not freed.
func (s *Stream) begin(k exec.Kind, a, b *block) (*exec.Command, error) {
	if err := s.w.checkBlock(a); err != nil {
		return nil, err
	}
	if err := s.w.checkBlock(b); err != nil {
		return nil, err
	}
	c, err := s.q.Begin(k)
	if err == nil && s.q.Lane() != nil {
		s.captured().refer(a, b)
	}
	return c, err
}

// beginArgs is begin for a command with arguments.
func (s *Stream) beginArgs(k exec.Kind, args []exec.Arg) (*exec.Command, error) {
	for i := range args {
		if err := s.w.checkBlock(args[i].Block); err != nil {
			return nil, err
		}
	}
	c, err := s.q.Begin(k)
	if err != nil {
		return nil, err
	}
	c.SetArgs(args)
	if s.q.Lane() != nil {
		g := s.captured()
		for i := range args {
			g.refer(args[i].Block)
		}
	}
	return c, nil
}

// captured is the graph that s is being captured for.
func (s *Stream) captured() *Graph { return s.q.Lane().C.For.(*Graph) }

// submit enqueues a call, which --check both makes twice.
func (s *Stream) submit(asked *call) error {
	if err := s.w.checkBlocks(asked); err != nil {
		return err // before anything that other ranks take part in
	}
	if s.w.cross != nil {
		return s.w.cross.submit(s, asked)
	}
	return s.enqueue(asked)
}

// enqueue enqueues a call whose blocks have been checked. The slot's own is used again.
func (s *Stream) enqueue(asked *call) error {
	if done, err := asked.beforeDevice(s.q); done || err != nil {
		return err
	}
	c, err := s.q.Begin(exec.DoCall)
	if err != nil {
		return err
	}
	own, _ := c.Call.(*call)
	if own == nil {
		own = new(call)
		c.Call = own
	}
	own.copyFrom(asked)
	own.site = &c.Site
	c.Notes = own
	if s.q.Lane() != nil {
		s.captured().referCall(own)
	}
	return s.q.Enqueue(c)
}
