package calls

import (
	"errors"
	"slices"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/transport/route"
	"lockstep/spmd/internal/verify"
)

// Request is a command's call of a communicator. A blocking collective needs no more, and keeps it
// on its caller's stack. The program sets the coll.Call and its blocks, and Comm.Do the rest.
type Request struct {
	coll.Call
	DstBlock *exec.Block // what Dst lies in
	SrcBlock *exec.Block
	comm     *Comm
	group    *group
	route    route.Route
	begun    bool         // on a GPU: the recorder knows it already, for --check
	captured bool         // on a GPU, by a graph
	site     *ccall.Site  // of a command; a blocking call's is on its stack
	q        exec.Queue   // that it was enqueued on; on a GPU
	plan     *exec.Plan   // for that queue; used again
	rest     func() error // of verify, for verified; nil for nothing
}

// copyFrom makes c a copy of o with slices and a plan of its own, reusing those it has.
func (c *Request) copyFrom(o *Request) {
	counts, received, plan := c.Counts[:0], c.RecvCounts[:0], c.plan
	*c = *o
	c.plan = plan
	if c.Counts, c.RecvCounts = counts, received; o.Counts != nil { // else two calls for nothing
		c.Counts, c.RecvCounts = append(counts, o.Counts...), append(received, o.RecvCounts...)
	}
}

// uses calls fn with the blocks that the call uses. They may be nil.
func (c *Request) uses(fn func(*exec.Block)) {
	fn(c.DstBlock)
	fn(c.SrcBlock)
	if c.group == nil {
		return
	}
	for i := range c.group.cmds {
		fn(c.group.cmds[i].DstBlock)
		fn(c.group.cmds[i].SrcBlock)
	}
}

// Touches implements exec.CollectiveCall.
func (c *Request) Touches(fn func(b *exec.Block, p unsafe.Pointer, bytes int, writes bool)) string {
	if c.group != nil {
		for i := range c.group.cmds {
			c.group.cmds[i].Touches(fn)
		}
		return c.Kind.String()
	}
	dst, src := c.Extents(c.comm.rank, c.comm.size)
	gives := c.Kind == coll.Broadcast && c.comm.rank == int(c.Root)
	fn(c.DstBlock, c.Dst, dst*c.Type.Size(), !gives)
	fn(c.SrcBlock, c.Src, src*c.Type.Size(), false)
	return c.Kind.String()
}

// settle orders a call that blocks behind the work of this rank's streams on its memory. On a GPU
// the stream of such calls waits for that, and on the host the caller does.
func (c *Request) settle() (err error) {
	if c.group == nil && !c.DstBlock.Busy() && !c.SrcBlock.Busy() {
		return nil
	}
	behind := c.comm.r.blocking
	if c.route.Host {
		behind = nil
	}
	c.uses(func(b *exec.Block) {
		if err == nil {
			err = Settle(b, c.Kind.String(), behind)
		}
	})
	return err
}

// checkBlocks refuses freed buffers and buffers of another world.
func (c *Request) checkBlocks() error {
	if err := c.comm.r.CheckBlock(c.DstBlock); err != nil {
		return err
	}
	return c.comm.r.CheckBlock(c.SrcBlock)
}

// memory says what NCCL does differently for the memory of a call.
func (c *Request) memory() verify.Memory {
	if c.comm == nil || c.comm.r.symmetric == nil {
		return 0
	}
	return c.memoryOfNCCL()
}

// memoryOfNCCL is memory if there is symmetric memory.
func (c *Request) memoryOfNCCL() (m verify.Memory) {
	if c.Kind != coll.AllReduce && c.Kind != coll.AllGather && c.Kind != coll.ReduceScatter {
		return 0
	}
	known := &c.comm.r.symmetric.pool
	if c.SrcBlock != nil && c.SrcBlock.Pool == known {
		m |= verify.FromSymmetric
	}
	if c.DstBlock != nil && c.DstBlock.Pool == known {
		m |= verify.IntoSymmetric
	}
	if m != 0 && c.Kind == coll.AllReduce && c.Dst == c.Src {
		m |= verify.InPlace
	}
	return m
}

// verify compares the call over the ranks of its communicator, if --check asks for it. The caller
// has its turn in MPI.
func (c *Request) verify() error {
	if c.comm.checker == nil {
		return nil
	}
	return c.check()
}

// check is verify if there is a checker. The start is not compared: it is one turn in MPI.
func (c *Request) check() error {
	r := c.comm.r
	if r.Check == verify.Off {
		return nil
	}
	rest, err := c.comm.checker.Check(r.Check, &c.Call, c.group, c.memory(), c.captured, c.site)
	c.rest = rest
	return err
}

// verified is the rest of verify, behind the call, whose error is err.
func (c *Request) verified(err error) error {
	if c.rest == nil {
		return err
	}
	rest := c.rest()
	if c.rest = nil; err == nil || errors.Is(rest, verify.ErrMismatch) {
		return rest // which has both places
	}
	return err
}

// place returns the program's place in a call on the host: the place where it enqueued the call, or
// its goroutine's place.
func (c *Comm) place() string {
	r := c.r
	captures := r.capturesOf(c)
	is := func(cmd *exec.Command) bool {
		return cmd.Kind == exec.DoCall && cmd.Call.(*Request).comm == c ||
			slices.ContainsFunc(captures, func(g *exec.Capture) bool { return g.Runs(cmd) })
	}
	for _, q := range r.Queues() {
		if site, ok := q.Running(is); ok {
			return "from " + site
		}
	}
	if at := r.Where(); at != "" {
		return "at " + at
	}
	return ""
}
