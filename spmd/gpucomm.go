package spmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/internal/peer"
	"lockstep/nccl"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
)

// lastIssue is the command that entered NCCL last in this process.
type lastIssue struct {
	q    *gpuQueue
	comm any // what carries it; nil: a graph, which may hold several
}

// orderAfterOthers keeps collectives of different communicators from running at
// the same time, in another order on every rank: each would hold what the other
// needs. NCCL orders those of one communicator itself, and what is handed to the courier has
// its order; graphs and peers have none. now is what the command on q will be the last of. The caller holds g.issue.
func (g *gpu) orderAfterOthers(q *gpuQueue, now lastIssue) error {
	cap, last := q.s.cap, g.last
	if cap != nil { // what is captured runs with the graph, not now
		last = cap.last
	}
	_, peers := now.comm.(*peer.Comm)
	ordered := last.comm == now.comm && now.comm != nil && !peers
	switch {
	case ordered || now.q == nil || last.q == nil || last.q.s.w != q.s.w || last.q == q:
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

// lastOf is what c will be the last of; zero where nothing of it enters NCCL.
func lastOf(q *gpuQueue, c *command) lastIssue {
	switch {
	case c.kind == cmdGraph:
		return lastIssue{q: q}
	case c.comm.dev != nil && c.comm.peers == nil:
		return lastIssue{q, c.comm.dev}
	case c.comm.dev != nil:
		return lastIssue{q, c.comm.peers}
	case c.comm.nccl == nil:
		return lastIssue{}
	}
	switch c.comm.carrier(&c.call) {
	case symmetricWay:
		return lastIssue{q, c.comm.sym.comm}
	case peerWay:
		return lastIssue{q, c.comm.peers}
	}
	return lastIssue{q, c.comm.nccl}
}

// openNCCL makes the communicator's NCCL twin: from the world's by a split, which
// shares its resources, or the first by an id that travels by MPI. One rank needs
// none, and one with the same ranks as the world has the world's.
//
// Collective over parent, or over st where that is nil. color < 0 makes none.
func (w *World) openNCCL(st *commState, parent *nccl.Comm, color, key int) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	if parent != nil {
		if st.size == 1 {
			color = -1 // it has nobody to talk to
		}
		var c *nccl.Comm
		if c, err = parent.Split(ctx, color, key, nccl.Config{}); err != nil {
			return err
		}
		if c != nil {
			st.nccl, st.ownsNCCL = c, true
			w.gpu.addNCCL(c)
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
	if e := st.mpi.BroadcastID((*[128]byte)(&id), 0); e != nil {
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
	st.nccl, st.ownsNCCL = c, true
	w.gpu.addNCCL(c)
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
		uuids, err := peer.UUIDs(st.mpi.Comm, w.gpu.dev)
		if err != nil {
			return false, err
		}
		failure = w.gpu.reachesOverNVLink(uuids)
	}
	first, err := control.First(st.mpi, failure)
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
		return nil
	}
	err := errors.Join(st.closeSym(), st.closePeers())
	for i := range st.known {
		err = errors.Join(err, st.known[i].reg.Close())
	}
	st.nccl, st.known = nil, nil
	st.w.gpu.forget(c)
	return errors.Join(err, st.w.gpu.endNCCL(c))
}

// endNCCL closes a communicator of NCCL.
func (g *gpu) endNCCL(c *nccl.Comm) error {
	g.mu.Lock()
	g.comms = slices.DeleteFunc(g.comms, func(o *nccl.Comm) bool { return o == c })
	g.mu.Unlock()
	return c.Close()
}

// forget has nothing wait for what carries collectives and is about to go.
func (g *gpu) forget(comm any) {
	g.issue.Lock()
	defer g.issue.Unlock()
	if g.last.comm == comm {
		g.last = lastIssue{}
	}
}

// stagingBytes is the scratch memory that a call needs through NCCL.
func (c *call) stagingBytes() int {
	if c.comm.dev != nil {
		return 0
	}
	return roundUp(c.Scratch(c.comm.rank, c.comm.size, &ncclHas))
}

func roundUp(n int) int { return (n + alignment - 1) / alignment * alignment }

// communicate enqueues a call of a communicator. The caller holds g.issue and q.mu.
func (q *gpuQueue) communicate(c *call, work unsafe.Pointer) error {
	switch {
	case c.comm.dev != nil && c.comm.peers != nil:
		return q.amongPeers(c, work)
	case c.comm.dev != nil:
		return q.throughMPI(*c)
	}
	nc := c.comm.nccl
	if nc == nil {
		return q.alone(c)
	}
	switch c.comm.carrier(c) {
	case symmetricWay:
		nc = c.comm.sym.comm
	case peerWay:
		if c.hasPeerKernel(c.comm.peers.AtOnce()) {
			q.g.entered = true
			return q.byPeers(c)
		}
	}
	q.g.calls = q.g.calls[:0]
	if c.Kind != coll.Group {
		if err := q.expand(c, &work); err != nil {
			return err
		}
	} else {
		for i := range c.group.cmds {
			if err := q.expand(&c.group.cmds[i], &work); err != nil {
				return err
			}
		}
	}
	if err := q.enter(c.comm, nc, work); err != nil {
		return err
	}
	if c.Kind == coll.Group {
		c.comm.recycle(c.group)
	}
	return nil
}

// ncclHas is what NCCL does itself. It exchanges in place only between different buffers.
var ncclHas = coll.Library{
	Kinds: coll.SetOf(coll.AllReduce, coll.Reduce, coll.Broadcast, coll.AllGather, coll.ReduceScatter, coll.AllToAll, coll.Send, coll.Recv),
	Apart: coll.SetOf(coll.AllToAll),
}

var ncclKinds = [coll.Kinds]nccl.Kind{coll.AllReduce: nccl.AllReduce, coll.Reduce: nccl.Reduce, coll.Broadcast: nccl.Broadcast,
	coll.AllGather: nccl.AllGather, coll.ReduceScatter: nccl.ReduceScatter, coll.AllToAll: nccl.AllToAll, coll.Send: nccl.Send, coll.Recv: nccl.Recv}

// expand appends what a call is in NCCL's terms: itself, or a group of simpler
// ones. work is the staging memory that is left.
func (q *gpuQueue) expand(c *call, work *unsafe.Pointer) (err error) {
	if c.Kind == coll.Barrier {
		word := q.g.word
		q.g.calls = append(q.g.calls, nccl.Call{Kind: nccl.AllReduce, Type: elem.Int32, Op: Sum, Dst: word, Src: word, N: 1})
		return nil
	}
	c.Steps(c.comm.rank, c.comm.size, &ncclHas, *work, func(s coll.Call) bool {
		if s.Kind == coll.Copy {
			err = q.h.Copy(s.Dst, s.Src, s.N*s.Type.Size())
			return err == nil
		}
		if s.Kind == coll.Broadcast && s.Src == nil {
			s.Src = s.Dst
		}
		q.g.calls = append(q.g.calls, nccl.Call{Kind: ncclKinds[s.Kind], Type: s.Type, Op: s.Op, Peer: s.Root, Dst: s.Dst, Src: s.Src, N: s.N})
		return true
	})
	*work = unsafe.Add(*work, c.stagingBytes())
	return err
}

// alone is a call on a communicator of one rank: a copy, or nothing. Avg, like the
// others, leaves one rank's values as they are.
func (q *gpuQueue) alone(c *call) error {
	if c.Kind == coll.Group {
		err := q.aloneGroup(c.group.cmds)
		if err == nil {
			c.comm.recycle(c.group)
		}
		return err
	}
	switch c.Kind {
	case coll.Barrier, coll.Broadcast:
		return nil
	case coll.Send, coll.Recv:
		return fmt.Errorf("%s: a message to oneself outside a Group would wait for ever", ccall.At())
	case coll.SendRecv:
		if c.N != c.RecvN {
			return fmt.Errorf("%s: SendRecv with oneself: src has %d elements, dst %d", ccall.At(), c.N, c.RecvN)
		}
	}
	n, _ := c.Extents(0, 1)
	return q.move(c, c.Dst, c.Src, n)
}

func (q *gpuQueue) move(c *call, dst, src unsafe.Pointer, n int) error {
	if n == 0 || dst == src {
		return nil
	}
	return q.h.Copy(dst, src, n*c.Type.Size())
}

// aloneGroup pairs the sends and receives of a group in their order.
func (q *gpuQueue) aloneGroup(cmds []call) error {
	sends, recvs := 0, 0
	for i := range cmds {
		switch c := &cmds[i]; c.Kind {
		case coll.Send:
			sends++
		case coll.Recv:
			recvs++
		default:
			if err := q.alone(c); err != nil {
				return err
			}
		}
	}
	if sends != recvs {
		return fmt.Errorf("%s: a Group of one rank with %d Send and %d Recv", ccall.At(), sends, recvs)
	}
	j := 0
	for i := range cmds {
		out := &cmds[i]
		if out.Kind != coll.Send {
			continue
		}
		for cmds[j].Kind != coll.Recv {
			j++
		}
		in := &cmds[j]
		j++
		if out.N != in.N {
			return fmt.Errorf("%s: message to oneself: Send has %d elements, Recv %d", ccall.At(), out.N, in.N)
		}
		if err := q.move(out, in.Dst, out.Src, out.N); err != nil {
			return err
		}
	}
	return nil
}
