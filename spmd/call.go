package spmd

import (
	"lockstep/internal/ccall"
	"lockstep/spmd/internal/coll"
	cudaexec "lockstep/spmd/internal/exec/cuda"
	"lockstep/spmd/internal/trace"
	"lockstep/spmd/internal/transport/route"
)

// call is what a command asks of a communicator, or of memory. A blocking
// collective needs no more than this, and keeps it on its caller's stack.
type call struct {
	coll.Call
	route route.Route
	begun bool // on a GPU: activity knows it already, for --check
	comm  *commState
	group *group
	dblk  *block // what Dst lies in
	sblk  *block
	site  *ccall.Site     // of a command; a blocking call's is on its stack
	q     *cudaexec.Queue // that it is being enqueued on, as command number seq
	seq   uint64
}

// Run implements exec.Call.
func (c *call) Run(on *trace.Thread, turn uint64) error { return c.communicate(on, turn) }

// copyFrom makes c a copy of o with slices of its own, reusing those it has.
func (c *call) copyFrom(o *call) {
	counts, received := c.Counts[:0], c.RecvCounts[:0]
	*c = *o
	c.Counts = append(counts, o.Counts...)
	c.RecvCounts = append(received, o.RecvCounts...)
}
