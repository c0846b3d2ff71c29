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
	done := w.startup.begin("id")
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
	done = w.startup.begin("nccl")
	// What Split makes of it is to share its memory: a communicator takes about a GB.
	c, err := nccl.Init(ctx, w.gpu.dev, id, st.rank, st.size, nccl.Config{SplitShare: true, UnmixedGraphs: linked})
	if err != nil {
		return err
	}
	st.nccl, st.ownsNCCL = c, true
	w.gpu.addNCCL(c)
	done()
	if linked && w.cfg.Symmetric == "auto" {
		defer w.startup.begin("peers")()
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

// stagingBytes is the scratch memory that a call needs: NCCL exchanges in place
// only between different buffers.
func (c *call) stagingBytes() int {
	if c.kind == cmdAllToAll && c.dst == c.src && c.comm.dev == nil {
		return roundUp(c.n * c.comm.size * c.typ.Size())
	}
	return 0
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
	if c.kind != cmdGroup {
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
	if c.kind == cmdGroup {
		c.comm.recycle(c.group)
	}
	return nil
}

// expand appends what a call is in NCCL's terms: itself, or a group of simpler
// ones. work is the staging memory that is left.
func (q *gpuQueue) expand(c *call, work *unsafe.Pointer) error {
	rank, size, bytes := c.comm.rank, c.comm.size, c.typ.Size()
	// A collective of no elements is nothing. A message of none is a message.
	message := c.kind.pointToPoint()
	add := func(kind nccl.Kind, dst, src unsafe.Pointer, n, peer int) {
		if n > 0 || message {
			q.g.calls = append(q.g.calls, nccl.Call{Kind: kind, Type: c.typ, Op: c.op, Peer: int32(peer), Dst: dst, Src: src, N: n})
		}
	}
	// to and from exchange with a peer; with itself a rank copies.
	to := func(src unsafe.Pointer, n, peer int) { add(nccl.Send, nil, src, n, peer) }
	from := func(dst unsafe.Pointer, n, peer int) { add(nccl.Recv, dst, nil, n, peer) }
	at := func(p unsafe.Pointer, elements int) unsafe.Pointer { return unsafe.Add(p, elements*bytes) }
	// share is how many elements are rank r's.
	share := func(r int) int {
		if len(c.counts) == 0 {
			return c.n
		}
		return c.counts[r]
	}
	switch c.kind {
	case cmdAllReduce:
		add(nccl.AllReduce, c.dst, c.src, c.n, 0)
	case cmdReduce:
		add(nccl.Reduce, c.dst, c.src, c.n, c.root)
	case cmdBroadcast:
		add(nccl.Broadcast, c.dst, c.dst, c.n, c.root)
	case cmdAllGather:
		add(nccl.AllGather, c.dst, c.src, c.n, 0)
	case cmdReduceScatter:
		add(nccl.ReduceScatter, c.dst, c.src, c.n, 0)
	case cmdAllToAll:
		src := c.src
		if n := c.stagingBytes(); n > 0 {
			src = *work
			*work = unsafe.Add(*work, n)
			if err := q.h.Copy(src, c.src, c.n*size*bytes); err != nil {
				return err
			}
		}
		add(nccl.AllToAll, c.dst, src, c.n, 0)
	case cmdAllGatherV:
		off := 0
		for r, n := range c.counts {
			part := at(c.dst, off)
			src := part
			if r == rank {
				src = c.src
			}
			add(nccl.Broadcast, part, src, n, r)
			off += n
		}
	case cmdReduceScatterV:
		off := 0
		for r, n := range c.counts {
			var dst unsafe.Pointer
			if r == rank {
				dst = c.dst
			}
			add(nccl.Reduce, dst, at(c.src, off), n, r)
			off += n
		}
	case cmdGather, cmdGatherV:
		if rank != c.root {
			to(c.src, share(rank), c.root)
			break
		}
		apart := false // its own part is not in place
		for r, off := 0, 0; r < size; r++ {
			if part := at(c.dst, off); r != rank || part != c.src {
				from(part, share(r), r)
				apart = apart || r == rank
			}
			off += share(r)
		}
		if apart {
			to(c.src, share(rank), rank)
		}
	case cmdScatter, cmdScatterV:
		if rank != c.root {
			from(c.dst, share(rank), c.root)
			break
		}
		apart := false
		for r, off := 0, 0; r < size; r++ {
			if part := at(c.src, off); r != rank || part != c.dst {
				to(part, share(r), r)
				apart = apart || r == rank
			}
			off += share(r)
		}
		if apart {
			from(c.dst, share(rank), rank)
		}
	case cmdAllToAllV:
		out, in := 0, 0
		for r := range size {
			to(at(c.src, out), c.counts[r], r)
			from(at(c.dst, in), c.rcounts[r], r)
			out, in = out+c.counts[r], in+c.rcounts[r]
		}
	case cmdSend:
		to(c.src, c.n, c.root)
	case cmdRecv:
		from(c.dst, c.n, c.root)
	case cmdSendRecv:
		to(c.src, c.n, c.root)
		from(c.dst, c.rn, c.from)
	case cmdBarrier:
		word := q.g.word
		q.g.calls = append(q.g.calls, nccl.Call{Kind: nccl.AllReduce, Type: elem.Int32, Op: Sum, Dst: word, Src: word, N: 1})
	}
	return nil
}

// alone is a call on a communicator of one rank: a copy, or nothing. Avg, like the
// others, leaves one rank's values as they are.
func (q *gpuQueue) alone(c *call) error {
	if c.kind == cmdGroup {
		err := q.aloneGroup(c.group.cmds)
		if err == nil {
			c.comm.recycle(c.group)
		}
		return err
	}
	n := c.n
	switch c.kind {
	case cmdBarrier, cmdBroadcast:
		return nil
	case cmdSend, cmdRecv:
		return fmt.Errorf("%s: a message to oneself outside a Group would wait for ever", ccall.At())
	case cmdSendRecv:
		if c.n != c.rn {
			return fmt.Errorf("%s: SendRecv with oneself: src has %d elements, dst %d", ccall.At(), c.n, c.rn)
		}
	case cmdAllGatherV, cmdReduceScatterV, cmdGatherV, cmdScatterV, cmdAllToAllV:
		n = c.counts[0]
	}
	return q.move(c, c.dst, c.src, n)
}

func (q *gpuQueue) move(c *call, dst, src unsafe.Pointer, n int) error {
	if n == 0 || dst == src {
		return nil
	}
	return q.h.Copy(dst, src, n*c.typ.Size())
}

// aloneGroup pairs the sends and receives of a group in their order.
func (q *gpuQueue) aloneGroup(cmds []call) error {
	sends, recvs := 0, 0
	for i := range cmds {
		switch c := &cmds[i]; c.kind {
		case cmdSend:
			sends++
		case cmdRecv:
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
		if out.kind != cmdSend {
			continue
		}
		for cmds[j].kind != cmdRecv {
			j++
		}
		in := &cmds[j]
		j++
		if out.n != in.n {
			return fmt.Errorf("%s: message to oneself: Send has %d elements, Recv %d", ccall.At(), out.n, in.n)
		}
		if err := q.move(out, in.dst, out.src, out.n); err != nil {
			return err
		}
	}
	return nil
}
