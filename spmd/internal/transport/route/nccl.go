package route

import (
	"context"
	"errors"
	"os"

	"lockstep/internal/peer"
	"lockstep/nccl"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	cudaexec "lockstep/spmd/internal/exec/cuda"
	ncclt "lockstep/spmd/internal/transport/nccl"
)

// OpenNCCL makes the communicator's NCCL twin: from the world's by a split, which
// shares its resources, or the first by an id that travels by MPI. One rank needs
// none, and one with the same ranks as the world has the world's.
//
// Collective over parent, or over the communicator where that is nil. color < 0 makes none.
func (r *Router) OpenNCCL(parent *Router, color, key int) error {
	ctx, cancel := context.WithTimeout(context.Background(), exec.Patience)
	defer cancel()
	var err error
	if parent != nil {
		if r.size == 1 {
			color = -1 // it has nobody to talk to
		}
		var c *nccl.Comm
		if c, err = parent.nccl.Comm.Split(ctx, color, key, nccl.Config{}); err != nil {
			return err
		}
		if c != nil {
			r.useNCCL(c)
			if r.env.First.atOnce > 0 {
				return r.openPeers()
			}
		}
		return nil
	}
	linked, err := r.linked()
	if err != nil {
		return err
	}
	var id nccl.ID
	done := r.env.Begin("id")
	if r.rank == 0 {
		if id, err = nccl.NewID(); err != nil {
			id = nccl.ID{} // the others must not wait: they see that there is none
		}
	}
	if e := r.host.BroadcastID((*[128]byte)(&id), 0); e != nil {
		return e
	}
	done()
	if err != nil {
		return err
	}
	if id == (nccl.ID{}) {
		return errors.New("rank 0 got no id from NCCL")
	}
	done = r.env.Begin("nccl")
	// What Split makes of it is to share its memory: a communicator takes about a GB.
	c, err := nccl.Init(ctx, r.env.GPU.Dev, id, r.rank, r.size, nccl.Config{SplitShare: true, UnmixedGraphs: linked})
	if err != nil {
		return err
	}
	r.useNCCL(c)
	done()
	if linked && r.env.Symmetric == "auto" {
		defer r.env.Begin("peers")()
		return r.openPeers()
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
// Collective over the communicator, which is the world's.
func (r *Router) linked() (bool, error) {
	failure := errors.New("there are several nodes")
	if r.env.Nodes == 1 {
		uuids, err := peer.UUIDs(r.host, r.env.GPU.Dev)
		if err != nil {
			return false, err
		}
		failure = reachesOverNVLink(r.env.GPU, uuids)
	}
	first, err := control.First(r.host, failure)
	if err == nil && first != nil {
		r.env.Log.Debug().Int("of_rank", first.Rank).Str("why", first.Text).Msg("NCCL carries all but symmetric memory, and keeps the collectives of graphs apart by events around each")
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

// HasNCCL says whether NCCL carries calls of the communicator, and whether by a communicator of its own.
func (r *Router) HasNCCL() (has, own bool) { return r.nccl != nil, r.nccl != nil && r.ownsNCCL }

// useNCCL has NCCL carry the communicator's calls by c.
func (r *Router) useNCCL(c *nccl.Comm) {
	r.nccl = ncclt.New(c, r.env.GPU.Word())
	r.device, r.ownsNCCL = r.nccl, true
	r.env.GPU.Watch(c, c.AsyncError)
}

// CloseNCCL takes the communicator out of NCCL. No graph may hold it any more.
func (r *Router) CloseNCCL() error {
	c := r.nccl
	if c == nil {
		return nil
	}
	if !r.ownsNCCL {
		r.nccl, r.sym, r.peers = nil, nil, nil
		r.UseDevice()
		return nil
	}
	err := errors.Join(r.closeSym(), r.closePeers())
	for i := range r.known {
		err = errors.Join(err, r.known[i].reg.Close())
	}
	r.nccl, r.known = nil, nil
	r.UseDevice()
	r.env.GPU.Forget(c)
	r.env.GPU.Unwatch(c.Comm)
	return errors.Join(err, c.Comm.Close())
}
