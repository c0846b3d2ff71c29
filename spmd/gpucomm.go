package spmd

import (
	"context"
	"errors"
	"os"
	"slices"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/peer"
	"lockstep/nccl"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/transport"
	ncclt "lockstep/spmd/internal/transport/nccl"
)

// lastIssue is the command that entered NCCL last in this process.
type lastIssue struct {
	q  *gpuQueue
	by transport.Transport // that orders its calls itself; nil where none carries all of it that does
}

// orderAfterOthers keeps collectives of different communicators from running at
// the same time, in another order on every rank: each would hold what the other
// needs. NCCL orders those of one communicator itself, and what is handed to the host has
// its order; graphs and kernels between peers have none. now is what the command on q will be the last of. The caller holds g.issue.
func (g *gpu) orderAfterOthers(q *gpuQueue, now lastIssue) error {
	cap, last := q.s.cap, g.last
	if cap != nil { // what is captured runs with the graph, not now
		last = cap.last
	}
	switch {
	case now.by != nil && last.by == now.by || now.q == nil || last.q == nil || last.q.s.w != q.s.w || last.q == q:
		return nil
	case cap != nil:
		node, err := cap.record(last.q.s)
		if err != nil {
			return err
		}
		return cap.wait(q.s, node)
	}
	return q.waitFor(last.q.end())
}

// lastOf is what c will be the last of; zero where no other rank takes part.
func lastOf(q *gpuQueue, c *command) lastIssue {
	switch {
	case c.kind == cmdGraph:
		return lastIssue{q: q}
	case c.route.by.Caps().Alone:
		return lastIssue{}
	}
	return lastIssue{q, c.route.order()}
}

// openNCCL makes the communicator's NCCL twin: from the world's by a split, which
// shares its resources, or the first by an id that travels by MPI. One rank needs
// none, and one with the same ranks as the world has the world's.
//
// Collective over parent, or over st where that is nil. color < 0 makes none.
func (w *World) openNCCL(st *commState, parent *commState, color, key int) error {
	ctx, cancel := context.WithTimeout(context.Background(), exec.Patience)
	defer cancel()
	var err error
	if parent != nil {
		if st.size == 1 {
			color = -1 // it has nobody to talk to
		}
		var c *nccl.Comm
		if c, err = parent.nccl.Comm.Split(ctx, color, key, nccl.Config{}); err != nil {
			return err
		}
		if c != nil {
			st.useNCCL(c)
			if w.Comm.st.atOnce > 0 {
				return st.openPeers()
			}
		}
		return nil
	}
	linked, err := w.linked(st)
	if err != nil {
		return err
	}
	var id nccl.ID
	done := w.startup.Begin("id")
	if st.rank == 0 {
		if id, err = nccl.NewID(); err != nil {
			id = nccl.ID{} // the others must not wait: they see that there is none
		}
	}
	if e := st.host.BroadcastID((*[128]byte)(&id), 0); e != nil {
		return e
	}
	done()
	if err != nil {
		return err
	}
	if id == (nccl.ID{}) {
		return errors.New("rank 0 got no id from NCCL")
	}
	done = w.startup.Begin("nccl")
	// What Split makes of it is to share its memory: a communicator takes about a GB.
	c, err := nccl.Init(ctx, w.gpu.dev, id, st.rank, st.size, nccl.Config{SplitShare: true, UnmixedGraphs: linked})
	if err != nil {
		return err
	}
	st.useNCCL(c)
	done()
	if linked && w.cfg.Symmetric == "auto" {
		defer w.startup.Begin("peers")()
		return st.openPeers()
	}
	return nil
}

// linked says whether NVLink joins all GPUs. Then kernels between peers are faster than NCCL, and orderAfterOthers is all
// that keeps the collectives of a graph apart from others: NCCL need not do it too, for which an all-reduce in a graph
// took 1 us more on 4 H200s. NCCL must where a network carries them, since its network threads follow no stream: between
// nodes, and within one where GPUs are nearer to network cards than to each other. Nothing is nearer than NVLink.
// Source: NCCL 2.28.3, strongstream.cc; enqueue.cc, ncclLaunchPrepare; topo.cc, ncclTopoCheckNet; transport/p2p.cc and
// shm.cc, proxyProgress.
//
// Collective over the world, which st is of.
func (w *World) linked(st *commState) (bool, error) {
	failure := errors.New("there are several nodes")
	if w.nodes == 1 {
		uuids, err := peer.UUIDs(st.host, w.gpu.dev)
		if err != nil {
			return false, err
		}
		failure = w.gpu.reachesOverNVLink(uuids)
	}
	first, err := control.First(st.host, failure)
	if err == nil && first != nil {
		w.Log.Debug().Int("of_rank", first.Rank).Str("why", first.Text).Msg("NCCL carries all but symmetric memory, and keeps the collectives of graphs apart by events around each")
	}
	return first == nil, err
}

// reachesOverNVLink says which of the GPUs with these UUIDs may not be reached over NVLink, or why NCCL may take another way.
func (g *gpu) reachesOverNVLink(uuids []string) error {
	for _, name := range []string{"NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_P2P_USE_CUDA_MEMCPY", "NCCL_SHM_USE_CUDA_MEMCPY"} {
		if os.Getenv(name) != "" {
			return errors.New(name + " is set")
		}
	}
	for _, id := range uuids {
		ok, why, err := g.dev.NativeAtomics(id)
		if err != nil {
			return err
		}
		if !ok {
			return errors.New(why)
		}
	}
	return nil
}

// splitNCCL is Split for NCCL, where the communicator is in it. Collective over parent.
func (w *World) splitNCCL(st, parent *commState, color, key int) error {
	if parent.nccl == nil {
		return nil
	}
	if err := w.quiet(); err != nil { // NCCL allocates
		return err
	}
	if err := w.openNCCL(st, parent, color, key); err != nil || w.symmetric == nil || !st.ownsNCCL {
		return err
	}
	return w.symmetric.enter(st)
}

// useNCCL has NCCL carry the communicator's calls by c.
func (st *commState) useNCCL(c *nccl.Comm) {
	st.nccl = ncclt.New(c, st.w.gpu.word)
	st.device, st.ownsNCCL = st.nccl, true
	st.w.gpu.addNCCL(c)
}

func (g *gpu) addNCCL(c *nccl.Comm) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.comms = append(g.comms, c)
}

// closeNCCL takes the communicator out of NCCL. No graph may hold it any more.
func (st *commState) closeNCCL() error {
	c := st.nccl
	if c == nil {
		return nil
	}
	if !st.ownsNCCL {
		st.nccl, st.sym, st.peers = nil, nil, nil
		st.useDevice()
		return nil
	}
	err := errors.Join(st.closeSym(), st.closePeers())
	for i := range st.known {
		err = errors.Join(err, st.known[i].reg.Close())
	}
	st.nccl, st.known = nil, nil
	st.useDevice()
	st.w.gpu.forget(c)
	return errors.Join(err, st.w.gpu.endNCCL(c.Comm))
}

// endNCCL closes a communicator of NCCL.
func (g *gpu) endNCCL(c *nccl.Comm) error {
	g.mu.Lock()
	g.comms = slices.DeleteFunc(g.comms, func(o *nccl.Comm) bool { return o == c })
	g.mu.Unlock()
	return c.Close()
}

// forget has nothing wait for what carries collectives and is about to go.
func (g *gpu) forget(by transport.Transport) {
	g.issue.Lock()
	defer g.issue.Unlock()
	if g.last.by == by {
		g.last = lastIssue{}
	}
}

// Stream implements transport.Queue.
func (q *gpuQueue) Stream() *cuda.Stream { return q.h }

// communicate enqueues a call of a communicator, as its route says. The caller holds g.issue and q.mu.
func (q *gpuQueue) communicate(c *call, work unsafe.Pointer) error {
	g, to := q.g, &c.route
	g.entered = !to.by.Caps().Alone
	if to.by.Caps().Hands {
		g.handed = c.Call
	}
	if to.whole {
		return to.by.Do(q, c.Call)
	}
	g.together, g.short = g.together[:0], g.short[:0]
	staging := unsafe.Add(work, inBytes(to.list))
	if c.Kind != coll.Group {
		if err := q.divide(c, to, &staging); err != nil {
			return err
		}
		return q.exchange(c.comm.peers, to, work)
	}
	merges := to.by.Caps().Merges
	for i := range c.group.cmds {
		m := &c.group.cmds[i]
		var err error
		if merges || m.Kind.Traits().Message {
			err = q.divide(m, to, &staging)
		} else if m.route.whole {
			err = m.route.by.Do(q, m.Call)
		} else {
			err = q.divide(m, &m.route, &staging)
		}
		if err != nil {
			return err
		}
	}
	if err := q.exchange(c.comm.peers, to, work); err != nil {
		return err
	}
	c.comm.recycle(c.group)
	return nil
}

// divide lists the steps of a call: short messages in g.short, the others in g.together. work is the memory that is left
// for copies of operands.
func (q *gpuQueue) divide(c *call, to *route, work *unsafe.Pointer) (err error) {
	g, lib := q.g, &to.by.Caps().Library
	rank, size := c.comm.rank, c.comm.size
	c.Steps(rank, size, lib, *work, func(s coll.Call) bool {
		switch t := s.Kind.Traits(); {
		case t.Local:
			err = g.local(q.h, &s)
		case to.short && t.Message && c.comm.peers.Short(&s):
			g.short = append(g.short, s)
		case !t.Message && !to.by.Caps().Merges:
			err = to.by.Do(q, s)
		default:
			g.together = append(g.together, s)
		}
		return err == nil
	})
	*work = unsafe.Add(*work, inBytes(units(c.Scratch(rank, size, lib))))
	return err
}

// local enqueues a step that concerns this rank alone.
func (g *gpu) local(h *cuda.Stream, s *coll.Call) error {
	if s.Kind == coll.Fill {
		return g.fill(h, s, coll.Identity(s.Op, s.Type))
	}
	return h.Copy(s.Dst, s.Src, s.N*s.Type.Size())
}
