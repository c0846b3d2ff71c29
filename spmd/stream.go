package spmd

import (
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/world"
)

// Stream is an ordered queue of work on the rank's device. Work on one stream runs in the order in
// which it was enqueued; work on two streams may run at the same time. Enqueueing returns at once.
// On a GPU it is a CUDA stream, on the host a queue with one goroutine.
//
// A command that fails stops its stream: the error comes back from Synchronize and from every later
// call on the stream, and spmd.Main ends the job with it. On the host the commands behind it do not
// run. On a GPU commands that were enqueued before the failure showed may still run.
//
// All methods but Capture are safe for use by several goroutines. But collectives must be enqueued
// in the same order on every rank, so one goroutine should issue them. Calls of libraries, such as
// blas.Gemm, and parallel.ClipNorm share scratch memory of the stream, so on one stream they come
// from one goroutine. The queue has no bound: a program that enqueues for ever synchronizes now and
// then.
type Stream world.Stream

func (s *Stream) rank() *calls.Rank { return (*world.Stream)(s).Rank() }

func (s *Stream) queue() exec.Queue { return (*world.Stream)(s).Queue() }

// Priority orders streams on a GPU: if kernels of several streams are ready, the kernels of the
// stream with the higher priority start first. The host ignores it.
type Priority = exec.Priority

// The priorities of streams that are not as others. One without is between the two.
const (
	Low  Priority = exec.Low
	High Priority = exec.High
)

// NewStream returns a new stream, of a priority if one is given. The name appears in errors and
// reports.
// Source: cuda.h, cuStreamCreateWithPriority.
func (w *World) NewStream(name string, priority ...Priority) (*Stream, error) {
	p := exec.Normal
	for _, p = range priority {
		if p < Low || p > High {
			return nil, fmt.Errorf("%s: NewStream: no such priority: %d", ccall.At(), p)
		}
	}
	s, err := w.in().NewStream(name, p)
	return (*Stream)(s), err
}

// World returns the world that the stream belongs to.
func (s *Stream) World() *World { return (*World)((*world.Stream)(s).World()) }

// Synchronize blocks the host until everything enqueued on s has run, and returns
// the first error of the stream.
func (s *Stream) Synchronize() error { return s.rank().Synchronize(s.queue()) }

// Close waits for the work of s and ends it. The world closes what is left. A second Close only
// returns the error of the stream again, if it has one.
func (s *Stream) Close() error { return s.rank().CloseQueue(s.queue()) }

// After makes later work on s wait for everything enqueued on other so far. It does not block the
// host. It fails if other has failed.
//
//go:noinline
func (s *Stream) After(other *Stream) error {
	if err := exec.RefuseInHostFunc("After"); err != nil {
		return err
	}
	switch {
	case s == other:
		return nil
	case s.World() != other.World():
		return fmt.Errorf("%s: After: stream %q belongs to another world than %q", ccall.At(), other.queue().Name(),
			s.queue().Name())
	}
	return calls.After(s.queue(), other.queue())
}

// Wait makes later work on s wait for the point of the last Record of e; a later Record does not
// change it. It does not wait for an event that was never recorded. It does not block the host.
//
//go:noinline
func (s *Stream) Wait(e *Event) error {
	if err := exec.RefuseInHostFunc("Wait"); err != nil {
		return err
	}
	if s.World() != e.w {
		return fmt.Errorf("%s: Wait: the event belongs to another world", ccall.At())
	}
	p, in, node := e.last()
	if in != nil {
		return in.Wait(s.queue(), node)
	}
	return calls.WaitFor(s.queue(), p, e.timer)
}

// HostFunc enqueues fn on s. fn runs on the host when all work before it on s has finished, and
// later work waits for it. It must not wait for another function of HostFunc: on a GPU the
// functions of all streams may run one after the other. An error, a panic or runtime.Goexit fails
// the stream.
//
// On the host and on GPUs fn may not call streams, events, graphs, communicators, Alloc and Free,
// nor copy from and to memory of Alloc.
//
//go:noinline
func (s *Stream) HostFunc(fn func() error) error {
	c, err := s.rank().Begin(s.queue(), exec.DoFunc, nil, nil)
	if err != nil {
		return err
	}
	c.Func = fn
	return s.queue().Enqueue(c)
}
