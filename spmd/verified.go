package spmd

import (
	"slices"

	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/transport/route"
	"lockstep/spmd/internal/verify"
)

// ErrContract is what a collective returns on every rank when the ranks called
// different ones, and with --check what a Recv returns when the message is another than
// it expects.
var ErrContract = verify.ErrMismatch

// memory says what NCCL does differently for the memory of a call.
func (c *call) memory() verify.Memory {
	if c.comm == nil || c.comm.w.symmetric == nil {
		return 0
	}
	return c.memoryOfNCCL()
}

// memoryOfNCCL is memory where there is symmetric memory.
func (c *call) memoryOfNCCL() (m verify.Memory) {
	if c.Kind != coll.AllReduce && c.Kind != coll.AllGather && c.Kind != coll.ReduceScatter {
		return 0
	}
	known := &c.comm.w.symmetric.pool
	if c.sblk != nil && c.sblk.Pool == known {
		m |= verify.FromSymmetric
	}
	switch {
	case c.dblk == nil:
	case c.dblk.Pool == known:
		m |= verify.IntoSymmetric
	case c.dblk.Pool == c.comm.w.dev.Pools().Pinned && m != 0:
		m |= verify.IntoPinned
	}
	if m != 0 && c.Kind == coll.AllReduce && c.Dst == c.Src {
		m |= verify.InPlace
	}
	return m
}

// verify compares the call over the ranks of its communicator, where --check asks for it. The caller is in its turn in MPI.
func (c *call) verify() error {
	if c.comm.checker == nil {
		return nil
	}
	return c.check()
}

// check is verify where there is a checker. The start is not compared: it is one turn in MPI.
func (c *call) check() error {
	st := c.comm
	if st.w.check == verify.Off {
		return nil
	}
	return st.checker.Check(st.w.check, &c.Call, c.group, c.memory(), c.site)
}

// Len and Call implement verify.Group.
func (g *group) Len() int { return len(g.cmds) }

// Part implements trace.Group.
func (g *group) Part(i int) *coll.Call { return &g.cmds[i].Call }

// Member implements route.Group.
func (g *group) Member(i int) (*coll.Call, *route.Route) { return &g.cmds[i].Call, &g.cmds[i].route }

// Call returns a call of the group, and what it does with its memory.
func (g *group) Call(i int) (*coll.Call, verify.Memory) { return &g.cmds[i].Call, g.cmds[i].memory() }

// recorders are those of all communicators of this rank.
func (w *World) recorders() []*verify.Recorder {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]*verify.Recorder, len(w.comms))
	for i, st := range w.comms {
		list[i] = st.recorder
	}
	return list
}

// place is where the program is that is in a call on the host: where it enqueued the call, or where its goroutine is.
func (st *commState) place() string {
	w := st.w
	w.mu.Lock()
	graphs := slices.DeleteFunc(slices.Clone(w.graphs), func(g *Graph) bool { return !slices.Contains(g.comms, st) })
	w.mu.Unlock()
	is := func(c *exec.Command) bool {
		return c.Kind == exec.DoCall && c.Call.(*call).comm == st ||
			c.Kind == exec.DoGraph && slices.ContainsFunc(graphs, func(g *Graph) bool { return g.dev == c.Graph })
	}
	for _, q := range w.queues() {
		if site, ok := q.Running(is); ok {
			return "from " + site
		}
	}
	if run, _ := st.w.job.Goroutines(); run.At != "" {
		return "at " + run.At
	}
	return ""
}
