package spmd

import (
	"context"
	"errors"
	"os"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/peer"
	"lockstep/nccl"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	cudaexec "lockstep/spmd/internal/exec/cuda"
	ncclt "lockstep/spmd/internal/transport/nccl"
)

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
	c, err := nccl.Init(ctx, w.gpu.GPU.Dev, id, st.rank, st.size, nccl.Config{SplitShare: true, UnmixedGraphs: linked})
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
		uuids, err := peer.UUIDs(st.host, w.gpu.GPU.Dev)
		if err != nil {
			return false, err
		}
		failure = reachesOverNVLink(w.gpu.GPU, uuids)
	}
	first, err := control.First(st.host, failure)
	if err == nil && first != nil {
		w.Log.Debug().Int("of_rank", first.Rank).Str("why", first.Text).Msg("NCCL carries all but symmetric memory, and keeps the collectives of graphs apart by events around each")
	}
	return first == nil, err
}

// reachesOverNVLink says which of the GPUs with these UUIDs may not be reached over NVLink, or why NCCL may take another way.
func reachesOverNVLink(g *cudaexec.GPU, uuids []string) error {
	for _, name := range []string{"NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_P2P_USE_CUDA_MEMCPY", "NCCL_SHM_USE_CUDA_MEMCPY"} {
		if os.Getenv(name) != "" {
			return errors.New(name + " is set")
		}
	}
	for _, id := range uuids {
		ok, why, err := g.Dev.NativeAtomics(id)
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
	if err := w.dev.Quiesce(); err != nil { // NCCL allocates
		return err
	}
	if err := w.openNCCL(st, parent, color, key); err != nil || w.symmetric == nil || !st.ownsNCCL {
		return err
	}
	return w.symmetric.enter(st)
}

// useNCCL has NCCL carry the communicator's calls by c.
func (st *commState) useNCCL(c *nccl.Comm) {
	st.nccl = ncclt.New(c, st.w.gpu.GPU.Word())
	st.device, st.ownsNCCL = st.nccl, true
	st.w.gpu.GPU.Watch(c, c.AsyncError)
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
	st.w.gpu.GPU.Forget(c)
	st.w.gpu.GPU.Unwatch(c.Comm)
	return errors.Join(err, c.Comm.Close())
}

// onGPU is a queue of a GPU.
func onGPU(q exec.Queue) *cudaexec.Queue { return q.(*cudaexec.Queue) }

// Order implements cuda.Call. No other rank takes part where the communicator has none.
func (c *call) Order() (by any, others bool) {
	if c.route.by.Caps().Alone {
		return nil, false
	}
	if t := c.route.order(); t != nil {
		by = t
	}
	return by, true
}

// Needs implements cuda.Call.
func (c *call) Needs() (fills bool, bytes int) {
	return c.route.fills, inBytes(c.route.list + c.route.work)
}

// Issued implements exec.Notes.
func (c *call) Issued(q exec.Queue, seq uint64, site *ccall.Site) {
	c.comm.recorder.Issue(q, seq, &c.Call, c.group, c.memory(), site, c.begun)
}

// Issue implements cuda.Call: it enqueues the call, as its route says.
func (c *call) Issue(on *cudaexec.Queue, seq uint64, work unsafe.Pointer) error {
	c.q, c.seq = on, seq
	q, to, p := (*handing)(c), &c.route, &c.comm.w.parts
	if to.whole {
		return to.by.Do(q, c.Call)
	}
	p.together, p.short = p.together[:0], p.short[:0]
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

// parts are those of the call that is being enqueued, one at a time.
type parts struct {
	together []coll.Call // what starts together
	short    []coll.Call // and short messages, which peers carry
}

// handing is a call that is being enqueued, and its queue as transports see it.
type handing call

// Stream implements transport.Queue.
func (q *handing) Stream() *cuda.Stream { return q.q.Stream() }

// divide lists the steps of a call: short messages, and the others. work is the memory that is left
// for copies of operands.
func (q *handing) divide(c *call, to *route, work *unsafe.Pointer) (err error) {
	w, lib := c.comm.w, &to.by.Caps().Library
	rank, size := c.comm.rank, c.comm.size
	c.Steps(rank, size, lib, *work, func(s coll.Call) bool {
		switch t := s.Kind.Traits(); {
		case t.Local:
			err = w.local(q, s)
		case to.short && t.Message && c.comm.peers.Short(&s):
			w.parts.short = append(w.parts.short, s)
		case !t.Message && !to.by.Caps().Merges:
			err = to.by.Do(q, s)
		default:
			w.parts.together = append(w.parts.together, s)
		}
		return err == nil
	})
	*work = unsafe.Add(*work, inBytes(units(c.Scratch(rank, size, lib))))
	return err
}
