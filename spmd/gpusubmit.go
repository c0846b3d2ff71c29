package spmd

import (
	"fmt"
	"slices"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/verify"
)

// submit issues c to the driver; in a capture the driver adds it to the graph.
func (q *gpuQueue) submit(c *command, args []Arg) error {
	if c.kind == cmdCall && c.route.by.Caps().Blocks {
		if done, err := q.atOnce(&c.call); done {
			return err
		}
	}
	if c.kind == cmdCall && q.s.w.check != verify.Off {
		if err := c.checkBefore(q); err != nil {
			return err
		}
	}
	// Before any lock: both may have to wait for this very queue.
	if err := q.g.prepare(q.s.w, c); err != nil {
		return err
	}
	work, err := q.s.workFor(c)
	if err != nil {
		return err
	}
	var as lastIssue
	collective := c.kind == cmdCall || (c.kind == cmdGraph && len(c.graph.comms) > 0)
	if collective {
		// The order of NCCL calls is the order of this lock: one for all streams.
		q.g.issue.Lock()
		defer q.g.issue.Unlock()
		q.g.entered = c.kind == cmdGraph
		as = lastOf(q, c) // before it is enqueued, which empties a group
		if err := q.g.orderAfterOthers(q, as); err != nil {
			return err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.ready(); err != nil {
		return err
	}
	if cap := q.s.cap; cap != nil {
		cap.note(q.s, c, args)
		err := q.issue(c, args, work)
		if err == nil && collective && q.g.entered {
			cap.last = as
		}
		return err
	}
	if !collective {
		err := q.issue(c, args, work)
		if err == nil {
			q.tail.Add(1)
		}
		return err
	}
	now := time.Now()
	seq := q.tail.Load() + 1
	q.note(c, seq)
	q.g.site = c.site
	q.issuing.Store(now.UnixNano())
	err = q.issue(c, args, work)
	q.issuing.Store(0)
	if err != nil {
		return err
	}
	q.tail.Store(seq)
	q.coll.Store(seq)
	if q.g.entered {
		q.g.last = as
	}
	return nil
}

// checkBefore is verify for a call on a stream, in a turn of its own.
func (c *command) checkBefore(q *gpuQueue) error {
	order := q.s.w.order
	if err := order.Enter(order.Take(1)); err != nil {
		return err
	}
	defer order.Leave()
	r := c.comm.recorder
	if q.s.cap == nil {
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

// note has the communicators of a command know that it is about to be handed over.
func (q *gpuQueue) note(c *command, seq uint64) {
	c.site.Near()
	if c.kind != cmdGraph {
		c.comm.recorder.Issue(q, seq, &c.Call, c.group, c.memory(), &c.site, c.begun)
		return
	}
	for _, st := range c.graph.comms {
		st.recorder.Issue(q, seq, &c.Call, nil, 0, &c.site, false)
	}
}

// workFor returns the scratch memory of a command; nil where it needs none.
func (s *Stream) workFor(c *command) (unsafe.Pointer, error) {
	if n := c.scratchBytes(); n > 0 {
		return s.scratch(n)
	}
	return nil, nil
}

// scratchBytes is how much device memory a command needs beside its operands.
func (c *command) scratchBytes() int {
	switch {
	case c.kind == cmdLibrary:
		return c.N
	case c.kind == cmdCall:
		return inBytes(c.route.list + c.route.work)
	}
	return 0
}

// issue makes the driver's call.
func (q *gpuQueue) issue(c *command, args []Arg, work unsafe.Pointer) error {
	switch c.kind {
	case cmdCopy:
		if c.N == 0 {
			return nil
		}
		return q.h.Copy(c.Dst, c.Src, c.N)
	case cmdFill:
		return q.g.fill(q.h, &c.Call, c.bits)
	case cmdKernel:
		return q.launch(c.kernel, c.grid, args)
	case cmdLibrary:
		return q.libraryCall(c, args, work)
	case cmdFunc:
		return q.hostFunc(c.fn)
	case cmdGraph:
		c.graph.launched(exec.Point{Q: q, Seq: q.tail.Load() + 1})
		return c.graph.exec.Launch(q.h)
	default:
		return q.communicate(&c.call, work)
	}
}

// fill sets elements of up to 4 bytes by the driver, of 8 bytes by a kernel.
func (g *gpu) fill(h *cuda.Stream, c *coll.Call, bits uint64) error {
	switch size := c.Type.Size(); {
	case c.N == 0:
		return nil
	case size < 8:
		return h.Fill(c.Dst, size, bits, c.N)
	default:
		args := [...]Arg{{ptr: c.Dst, kind: bufferArg}, I64(c.N), U64(bits)}
		return g.launch(h, fillKernel, loopGrid(c.N), args[:])
	}
}

// launch starts a kernel.
func (q *gpuQueue) launch(k *Kernel, grid Grid, args []Arg) error {
	return q.g.launch(q.h, k, grid, args)
}

// launch starts a kernel. A buffer is its address, a number its bits.
func (g *gpu) launch(h *cuda.Stream, k *Kernel, grid Grid, args []Arg) error {
	f := k.on(g)
	if err := f.fits(k, args); err != nil {
		return err
	}
	if int64(grid.Shared) > f.shared.Load() {
		if err := f.raise(grid.Shared); err != nil {
			return err
		}
	}
	var few [24]uint64
	var fewAt [24]uint32
	words, at := few[:0], fewAt[:0]
	if len(args) > len(few) {
		words, at = make([]uint64, 0, len(args)), make([]uint32, 0, len(args))
	}
	for i := range args {
		at = append(at, uint32(len(words)))
		switch args[i].kind {
		case bufferArg:
			words = append(words, uint64(uintptr(args[i].ptr)))
		case structArg:
			words = append(words, args[i].words()...)
		default:
			words = append(words, args[i].bits)
		}
	}
	shape := cuda.Shape{Blocks: grid.Blocks, Threads: grid.Threads, Shared: grid.Shared, Cluster: grid.Cluster, Early: grid.Programmatic}
	if err := h.LaunchShape(f.f, &shape, words, at); err != nil {
		return fmt.Errorf("kernel %s, %v blocks of %v threads: %w", k.name, grid.Blocks, grid.Threads, err)
	}
	return nil
}

// hostFunc enqueues fn. Its failure fails the stream, and what follows it runs.
func (q *gpuQueue) hostFunc(fn func() error) error {
	seq := q.tail.Load() + 1
	site := ccall.At()
	var c *cuda.Callback
	var g *Graph // whose command it is, on whatever stream it is replayed
	if q.s.cap != nil {
		g = q.s.cap.g
	}
	once := g == nil
	c = cuda.NewCallback(func() {
		on := []exec.Point{{Q: q, Seq: seq}}
		if once {
			defer c.Close()
		} else {
			on = g.replaying()
		}
		if slices.ContainsFunc(on, func(p exec.Point) bool { return p.Failure() != nil }) {
			return
		}
		if err := guard(fn); err != nil {
			for _, p := range on {
				o := p.Q.(*gpuQueue)
				o.failed(fmt.Errorf("stream %q, command enqueued at %s: %w", o.s.name, site, err), p.Seq)
			}
		}
	})
	if !once {
		q.s.cap.g.callbacks = append(q.s.cap.g.callbacks, c)
	}
	err := q.h.HostFunc(c)
	if err != nil && once {
		c.Close()
	}
	return err
}
