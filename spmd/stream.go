package spmd

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/exec"
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
	q    queue      // host or dev
	host *hostQueue // nil where the device is a GPU
	dev  *gpuQueue  // nil where it is the host
	cap  *capture   // not nil between the start and the end of Capture
	work *block     // scratch of the framework's own kernels and of library calls
}

// Priority orders streams on a GPU: where kernels of several are ready, those of
// the stream with the higher priority start first. The host ignores it.
type Priority int

// The priorities.
const (
	Low    Priority = -1
	Normal Priority = 0
	High   Priority = 1
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
	s := &Stream{w: w, name: name}
	if w.gpu != nil {
		var err error
		if s.dev, err = newGPUQueue(s, p); err != nil {
			return nil, err
		}
		s.q = s.dev
	} else {
		s.host = newHostQueue(s)
		s.q = s.host
		go s.host.work()
	}
	w.streams = append(w.streams, s)
	return s, nil
}

// World returns the world that the stream belongs to.
func (s *Stream) World() *World { return s.w }

// Name returns the name given to NewStream.
func (s *Stream) Name() string { return s.name }

// Synchronize blocks the host until everything enqueued on s has run, and returns
// the first error of the stream.
func (s *Stream) Synchronize() error {
	if s.cap != nil {
		return fmt.Errorf("%s: Synchronize: stream %q is being captured", ccall.At(), s.name)
	}
	return s.q.end().Wait()
}

// Close waits for the work of s and ends it. The world closes what is left. A second Close only returns the error of
// the stream again, if it has one.
func (s *Stream) Close() error {
	if s.cap != nil {
		return fmt.Errorf("%s: Close: stream %q is being captured", ccall.At(), s.name)
	}
	err := s.Synchronize()
	s.w.mu.Lock()
	s.w.streams = slices.DeleteFunc(s.w.streams, func(o *Stream) bool { return o == s })
	s.w.mu.Unlock()
	if s.work != nil {
		s.work.Pool.Release(&s.work.Block, nil)
		s.work = nil
	}
	return errors.Join(err, s.q.close())
}

// After makes what is enqueued on s from now on wait for everything enqueued on
// other so far. It does not block the host. It fails where other has failed.
func (s *Stream) After(other *Stream) error {
	switch {
	case s == other:
		return nil
	case s.w != other.w:
		return fmt.Errorf("%s: After: stream %q belongs to another world than %q", ccall.At(), other.name, s.name)
	case other.cap != nil:
		node, err := other.cap.record(other)
		if err != nil {
			return err
		}
		return other.cap.wait(s, node)
	}
	return s.waitFor(other.q.end())
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
		return in.wait(s, node)
	}
	if _, ok := p.Q.(*gpuQueue); ok && p.Q != s.q && s.cap == nil && s.dev != nil {
		return s.dev.waitEvent(e.gpu, p)
	}
	return s.waitFor(p)
}

// waitFor enqueues the waiting for a point of another stream.
func (s *Stream) waitFor(p exec.Point) error {
	switch {
	case p.Q == nil || p.Q == s.q:
		return nil
	case s.cap != nil:
		return fmt.Errorf("%s: Wait: stream %q is being captured, and would wait for what is outside the capture", ccall.At(), s.name)
	}
	if s.dev != nil {
		return s.dev.waitFor(p)
	}
	if done, err := p.Passed(); done {
		return err
	}
	c := command{kind: cmdWait, at: p}
	return s.submit(&c, nil)
}

// HostFunc enqueues fn on s: it runs on the host when what was enqueued before it
// has finished, and what comes after waits for it. It must not call into the
// stream or into collectives, nor wait for another one: on a GPU those of all streams
// may run one after the other. An error or a panic fails the stream.
//
//go:noinline
func (s *Stream) HostFunc(fn func() error) error {
	c := command{kind: cmdFunc, fn: fn}
	return s.submit(&c, nil)
}

// submitCall is submit for a call, out of line: what a queue needs is not cleared
// for a blocking call.
//
//go:noinline
func (s *Stream) submitCall(asked *call) error {
	c := command{kind: cmdCall, call: *asked}
	return s.submit(&c, nil)
}

// submit enqueues c, or records it where s is being captured. The arguments of a
// kernel come beside c, and are copied element by element, so that those of a
// launch stay on its caller's stack.
func (s *Stream) submit(c *command, args []Arg) error {
	if err := s.w.checkBlocks(&c.call); err != nil {
		return err
	}
	for i := range args {
		if err := s.w.checkBlock(args[i].blk); err != nil {
			return err
		}
	}
	if s.w.cross != nil && c.kind == cmdCall {
		return s.w.cross.submit(s.dev, c)
	}
	if s.dev != nil { // errors come at once: no need to remember the place
		return s.dev.submit(c, args)
	}
	c.site.Near()
	if s.cap != nil {
		return s.cap.add(s, c, args)
	}
	_, err := s.host.push(c, args)
	return err
}

// scratch returns device memory of at least n bytes for the library's own use in
// the next command of s: what follows in stream order may use it again. A graph
// has its own, since it may be replayed on another stream.
func (s *Stream) scratch(n int) (unsafe.Pointer, error) {
	at := &s.work
	if s.cap != nil {
		at = &s.cap.g.lanes[s.cap.lane(s)].work
	}
	if *at != nil && (*at).Size >= n {
		return (*at).Ptr, nil
	}
	b, err := s.w.block(&s.w.pool, n)
	if err != nil {
		return nil, err
	}
	if *at != nil {
		if s.cap != nil {
			s.cap.g.owned = append(s.cap.g.owned, *at) // commands of the graph use it
		} else {
			s.w.pool.Release(&(*at).Block, s.w.marks())
		}
	}
	*at = b
	return b.Ptr, nil
}
