package calls

import (
	"errors"
	"fmt"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/trace"
)

// NewQueue returns a new queue of the rank's device, for a stream of that name.
func (r *Rank) NewQueue(name string, p exec.Priority) (exec.Queue, error) {
	if err := exec.RefuseInHostFunc("NewStream"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, fmt.Errorf("%s: NewStream: the world is closed", ccall.At())
	}
	return r.Dev.NewQueue(name, p)
}

// RefuseCaptured refuses op, which is nothing for a graph, while q is being captured.
func RefuseCaptured(q exec.Queue, op string) error {
	if q.Lane() != nil {
		return fmt.Errorf("%s: %s: stream %q is being captured", ccall.At(), op, q.Name())
	}
	return nil
}

// Synchronize blocks the host until everything enqueued on q has run, and returns the first error
// of the queue.
func (r *Rank) Synchronize(q exec.Queue) error {
	if err := RefuseCaptured(q, "Synchronize"); err != nil {
		return err
	}
	if err := exec.RefuseInHostFunc("Synchronize"); err != nil {
		return err
	}
	m := r.Calls.Begin(trace.Wait)
	end := q.End()
	err := end.Wait()
	end.Seen()
	r.Calls.EndLong(m, "Synchronize")
	return err
}

// CloseQueue waits for the work of q and ends it.
func (r *Rank) CloseQueue(q exec.Queue) error {
	if err := exec.RefuseInHostFunc("Close"); err != nil {
		return err
	}
	if err := RefuseCaptured(q, "Close"); err != nil {
		return err
	}
	err := r.Synchronize(q)
	return errors.Join(err, q.Close())
}

// After makes what is enqueued on q from now on wait for everything enqueued on other so far. Both
// are of one device.
func After(q, other exec.Queue) error {
	if l := other.Lane(); l != nil {
		node, err := l.Record()
		if err != nil {
			return err
		}
		return l.C.Wait(q, node)
	}
	return WaitFor(q, other.End(), nil)
}

// WaitFor enqueues on q the waiting for a point of another queue. t was recorded there, or is nil.
func WaitFor(q exec.Queue, p exec.Point, t exec.Timer) error {
	switch {
	case p.Q == nil || p.Q == q:
		return nil
	case q.Lane() != nil:
		return fmt.Errorf("%s: Wait: stream %q is being captured, and would wait for what is outside the capture",
			ccall.At(), q.Name())
	}
	exec.Waits(q, p)
	return q.After(p, t)
}

// Begin returns the queue's own slot for its next command, which uses two blocks. It refuses blocks
// that are freed or another world's.
func (r *Rank) Begin(q exec.Queue, k exec.CommandKind, a, b *exec.Block) (*exec.Command, error) {
	if err := exec.RefuseInHostFunc(k.String()); err != nil {
		return nil, err
	}
	if err := r.CheckBlock(a); err != nil {
		return nil, err
	}
	if err := r.CheckBlock(b); err != nil {
		return nil, err
	}
	c, err := q.Begin(k)
	if err == nil {
		c.Blocks = [2]*exec.Block{a, b}
		q.Uses(a, b)
	}
	return c, err
}

// BeginArgs is Begin for a command with arguments.
func (r *Rank) BeginArgs(q exec.Queue, k exec.CommandKind, args []exec.Arg) (*exec.Command, error) {
	if err := exec.RefuseInHostFunc(k.String()); err != nil {
		return nil, err
	}
	for i := range args {
		if b := args[i].Block; b != nil && !r.has(b) {
			return nil, r.blockError(b)
		}
		if err := args[i].Check(); err != nil {
			return nil, fmt.Errorf("%s: argument %d is %w", ccall.At(), i, err)
		}
	}
	c, err := q.Begin(k)
	if err == nil {
		c.SetArgs(args)
		q.UsesArgs(c)
	}
	return c, err
}

// CallLibrary enqueues a call of a library, with so many bytes of workspace.
func (r *Rank) CallLibrary(q exec.Queue, l *exec.Library, workspace int, args []exec.Arg) error {
	switch host := r.OnHost(); {
	case workspace < 0:
		return fmt.Errorf("%s: Call of %s: workspace of %d bytes", ccall.At(), l.Name, workspace)
	case l.Closed.Load():
		return fmt.Errorf("%s: Call of %s: it is closed", ccall.At(), l.Name)
	case !host && l.Device == nil:
		return fmt.Errorf("%s: Call of %s: it runs on the host only", ccall.At(), l.Name)
	case host && l.Host == nil:
		return fmt.Errorf("%s: Call of %s: it runs on GPUs only", ccall.At(), l.Name)
	}
	c, err := r.BeginArgs(q, exec.DoLibrary, args)
	if err != nil {
		return err
	}
	c.Library, c.N = l, workspace
	return q.Enqueue(c)
}

// Awaited returns what looks at the bytes at p, memory of a block, while q writes them in elements
// of some size.
func (r *Rank) Awaited(q exec.Queue, b *exec.Block, p unsafe.Pointer, bytes, size int) (a exec.Await, err error) {
	if err := RefuseCaptured(q, "Await"); err != nil {
		return a, err
	}
	if err := exec.RefuseInHostFunc("Await"); err != nil {
		return a, err
	}
	if err := r.CheckBlock(b); err != nil {
		return a, err
	}
	// MPI may keep in the memory of a result what is not the result yet.
	w, ok := q.(exec.Written)
	if ok && !r.All.routes.Handed() && bytes > 0 && b.Pool == r.Dev.Pools().Pinned && size >= 4 {
		a.Q, a.Block, a.Words = w, b, unsafe.Slice((*uint32)(p), bytes/4)
	}
	return a, nil
}
