package calls

import (
	"errors"
	"fmt"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/trace"
)

// Stream is a queue of the rank's device.
type Stream struct {
	R    *Rank
	Name string
	Q    exec.Queue
}

// NewStream returns a new stream.
func (r *Rank) NewStream(name string, p exec.Priority) (*Stream, error) {
	s := &Stream{}
	return s, s.Open(r, name, p)
}

// Open makes s a new stream.
func (s *Stream) Open(r *Rank, name string, p exec.Priority) (err error) {
	if err := exec.RefuseInHostFunc("NewStream"); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fmt.Errorf("%s: NewStream: the world is closed", ccall.At())
	}
	s.R, s.Name = r, name
	s.Q, err = r.Dev.NewQueue(name, p)
	return err
}

// Captured refuses op, which is nothing for a graph, while s is being captured.
func (s *Stream) Captured(op string) error {
	if s.Q.Lane() != nil {
		return fmt.Errorf("%s: %s: stream %q is being captured", ccall.At(), op, s.Name)
	}
	return nil
}

// Synchronize blocks the host until everything enqueued on s has run, and returns the first error of the stream.
func (s *Stream) Synchronize() error {
	if err := s.Captured("Synchronize"); err != nil {
		return err
	}
	if err := exec.RefuseInHostFunc("Synchronize"); err != nil {
		return err
	}
	m := s.R.Calls.Begin(trace.Wait)
	err := s.Q.End().Wait()
	s.R.Calls.EndLong(m, "Synchronize")
	return err
}

// Close waits for the work of s and ends it.
func (s *Stream) Close() error {
	if err := exec.RefuseInHostFunc("Close"); err != nil {
		return err
	}
	if err := s.Captured("Close"); err != nil {
		return err
	}
	err := s.Synchronize()
	return errors.Join(err, s.Q.Close())
}

// After makes what is enqueued on s from now on wait for everything enqueued on other so far.
func (s *Stream) After(other *Stream) error {
	if err := exec.RefuseInHostFunc("After"); err != nil {
		return err
	}
	switch l := other.Q.Lane(); {
	case s == other:
		return nil
	case s.R != other.R:
		return fmt.Errorf("%s: After: stream %q belongs to another world than %q", ccall.At(), other.Name, s.Name)
	case l != nil:
		node, err := l.Record()
		if err != nil {
			return err
		}
		return l.C.Wait(s.Q, node)
	}
	return s.waitFor(other.Q.End(), nil)
}

// Wait makes what is enqueued on s from now on wait for the point of the last Record of e.
func (s *Stream) Wait(e *Event) error {
	if err := exec.RefuseInHostFunc("Wait"); err != nil {
		return err
	}
	if s.R != e.r {
		return fmt.Errorf("%s: Wait: the event belongs to another world", ccall.At())
	}
	p, in, node := e.last()
	if in != nil {
		return in.Wait(s.Q, node)
	}
	return s.waitFor(p, e.dev)
}

// waitFor enqueues the waiting for a point of another stream, where e was recorded, if that is not nil.
func (s *Stream) waitFor(p exec.Point, e exec.Event) error {
	switch {
	case p.Q == nil || p.Q == s.Q:
		return nil
	case s.Q.Lane() != nil:
		return fmt.Errorf("%s: Wait: stream %q is being captured, and would wait for what is outside the capture", ccall.At(), s.Name)
	}
	return s.Q.After(p, e)
}

// Begin returns the stream's own slot for its next command, which uses the two blocks, once they have been found to be
// the world's and not freed.
func (s *Stream) Begin(k exec.Kind, a, b *exec.Block) (*exec.Command, error) {
	if err := exec.RefuseInHostFunc(k.String()); err != nil {
		return nil, err
	}
	if err := s.R.CheckBlock(a); err != nil {
		return nil, err
	}
	if err := s.R.CheckBlock(b); err != nil {
		return nil, err
	}
	c, err := s.Q.Begin(k)
	if err != nil {
		return nil, err
	}
	if l := s.Q.Uses(a, b); l != nil {
		graphOf(l).refer(a, b)
	}
	return c, nil
}

// BeginArgs is Begin for a command with arguments.
func (s *Stream) BeginArgs(k exec.Kind, args []exec.Arg) (*exec.Command, error) {
	if err := exec.RefuseInHostFunc(k.String()); err != nil {
		return nil, err
	}
	for i := range args {
		if err := s.R.CheckBlock(args[i].Block); err != nil {
			return nil, err
		}
		if err := args[i].Check(); err != nil {
			return nil, fmt.Errorf("%s: argument %d is %w", ccall.At(), i, err)
		}
	}
	c, err := s.Q.Begin(k)
	if err != nil {
		return nil, err
	}
	c.SetArgs(args)
	if l := s.Q.UsesArgs(c); l != nil {
		g := graphOf(l)
		for i := range args {
			g.refer(args[i].Block)
		}
	}
	return c, nil
}

// CallLibrary enqueues a call of a library, with so many bytes of workspace.
func (s *Stream) CallLibrary(l *exec.Library, workspace int, args []exec.Arg) error {
	switch host := s.R.OnHost(); {
	case workspace < 0:
		return fmt.Errorf("%s: Call of %s: workspace of %d bytes", ccall.At(), l.Name, workspace)
	case l.Closed.Load():
		return fmt.Errorf("%s: Call of %s: it is closed", ccall.At(), l.Name)
	case !host && l.Device == nil:
		return fmt.Errorf("%s: Call of %s: it runs on the host only", ccall.At(), l.Name)
	case host && l.Host == nil:
		return fmt.Errorf("%s: Call of %s: it runs on GPUs only", ccall.At(), l.Name)
	}
	c, err := s.BeginArgs(exec.DoLibrary, args)
	if err != nil {
		return err
	}
	c.Library, c.N = l, workspace
	if lane := s.Q.Lane(); lane != nil {
		graphOf(lane).referLibrary(l)
	}
	return s.Q.Enqueue(c)
}

// graphOf is what a stream is being captured for.
func graphOf(l *exec.Lane) *Graph { return l.C.For.(*Graph) }

// submit enqueues a call, which --check both makes twice.
func (s *Stream) submit(asked *Call) error {
	if err := asked.checkBlocks(); err != nil {
		return err // before anything that other ranks take part in
	}
	if s.R.cross != nil {
		return s.R.cross.submit(s, asked)
	}
	return s.enqueue(asked)
}

// enqueue enqueues a call whose blocks have been checked. The slot's own is used again.
func (s *Stream) enqueue(asked *Call) error {
	if !asked.route.Host {
		if done, err := asked.beforeDevice(s.Q); done || err != nil {
			return err
		}
	}
	c, err := s.Q.Begin(exec.DoCall)
	if err != nil {
		return err
	}
	own, _ := c.Call.(*Call)
	if own == nil {
		own = new(Call)
		c.Call = own
	}
	own.copyFrom(asked)
	own.site = &c.Site
	c.Notes = own
	if l := s.Q.Uses(own.DstBlock, own.SrcBlock); l != nil {
		graphOf(l).referCall(own)
	} else if own.group != nil {
		for i := range own.group.cmds {
			s.Q.Uses(own.group.cmds[i].DstBlock, own.group.cmds[i].SrcBlock)
		}
	}
	return s.Q.Enqueue(c)
}

// Awaited returns what looks at the bytes at p, memory of a block, while s writes them in elements of some size.
func (s *Stream) Awaited(b *exec.Block, p unsafe.Pointer, bytes, size int) (a exec.Await, err error) {
	if err := s.Captured("Await"); err != nil {
		return a, err
	}
	if err := exec.RefuseInHostFunc("Await"); err != nil {
		return a, err
	}
	if err := s.R.CheckBlock(b); err != nil {
		return a, err
	}
	// MPI may keep in the memory of a result what is not the result yet.
	if q, ok := s.Q.(exec.Written); ok && !s.R.All.routes.Handed() && bytes > 0 && b.Pool == s.R.Dev.Pools().Pinned && size >= 4 {
		a.Q, a.Block, a.Words = q, b, unsafe.Slice((*uint32)(p), bytes/4)
	}
	return a, nil
}
