package carriers

import (
	"context"
	"errors"
	"os"

	"lockstep/cuda"
	"lockstep/nccl"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/peer"
	"lockstep/spmd/internal/transport"
)

var NCCLBackend transport.Backend = ncclBackend{}

type ncclBackend struct{}

var _ transport.Backend = (*ncclBackend)(nil)

func (ncclBackend) Name() string { return "nccl" }

func (ncclBackend) Probe(transport.Host) error { return nccl.Load() }

var _ transport.Versioned = (*ncclBackend)(nil)

func (ncclBackend) Version() string { return nccl.VersionString() }

func (ncclBackend) Joins() bool { return true }

// Open implements transport.Backend: the ranks join by an id that travels by MPI.
func (ncclBackend) Open(at transport.Site) (transport.Opened, error) {
	ctx, cancel := context.WithTimeout(context.Background(), exec.Patience)
	defer cancel()
	linked, err := linked(&at)
	if err = errors.Join(err, noGraphRegister()); err != nil {
		return nil, err
	}
	rank := at.Host.Rank()
	var id nccl.ID
	done := at.Begin("id")
	if rank == 0 {
		if id, err = nccl.NewID(); err != nil {
			id = nccl.ID{} // the others must not wait: they see that there is none
		}
	}
	if e := at.Host.BroadcastID((*[128]byte)(&id), 0); e != nil {
		return nil, e
	}
	done()
	if err != nil {
		return nil, err
	}
	if id == (nccl.ID{}) {
		return nil, errors.New("rank 0 got no id from NCCL")
	}
	defer at.Begin("nccl")()
	// Communicators of Split share its memory: each would take about a GB.
	c, err := nccl.Init(ctx, at.Dev, id, rank, at.Host.Size(), nccl.Config{SplitShare: true, UnmixedGraphs: linked})
	if err != nil {
		return nil, err
	}
	t := NewNCCL(c, at.Dev, at.Word)
	t.linked = linked
	return t, nil
}

// Split implements transport.Splitter. The part shares the resources of t.
func (t *NCCL) Split(color, key int) (transport.Opened, error) {
	ctx, cancel := context.WithTimeout(context.Background(), exec.Patience)
	defer cancel()
	c, err := t.Comm.Split(ctx, color, key, nccl.Config{})
	if c == nil || err != nil {
		return nil, err
	}
	return NewNCCL(c, t.dev, t.word), nil
}

var _ transport.Opened = (*NCCL)(nil)

func (t *NCCL) Why() (why string, doubtful bool, err error) { return "", false, nil }

func (t *NCCL) Linked() bool { return t.linked }

func (t *NCCL) Peers() *peer.Clique { return nil }

var _ transport.Splitter = (*NCCL)(nil)

func (t *NCCL) Failure() error { return t.Comm.AsyncError() }

func (t *NCCL) Close() error { return t.Comm.Close() }

// linked reports whether NVLink joins all GPUs. Then kernels between peers are faster than NCCL,
// and the order of a GPU's streams suffices to keep the collectives of a graph apart from others.
// If NCCL does that too, an all-reduce in a graph takes 1 us more on 4 H200s.
//
// NCCL must do it if a network carries the collectives, since its network threads follow no stream.
// That is so between nodes, and on one node if GPUs are nearer to network cards than to each other.
// Nothing is nearer than NVLink. Source: NCCL 2.28.3, strongstream.cc; enqueue.cc,
// ncclLaunchPrepare; topo.cc, ncclTopoCheckNet; transport/p2p.cc and shm.cc, proxyProgress.
//
// Collective over the communicator, which is the world's.
func linked(at *transport.Site) (bool, error) {
	failure := errors.New("there are several nodes")
	if at.Nodes == 1 {
		uuids, err := peer.UUIDs(at.Host, at.Dev)
		if err != nil {
			return false, err
		}
		failure = reachesOverNVLink(at.Dev, uuids)
	}
	first, err := control.First(at.Host, failure)
	if err == nil && first != nil {
		at.Log.Debug().Int("of_rank", first.Rank).Str("why", first.Text).
			Msg("NCCL carries all but symmetric memory, and keeps the collectives of graphs apart by events around " +
				"each")
	}
	return first == nil, err
}

// reachesOverNVLink says which of the GPUs with these UUIDs may not be reached over NVLink, or
// why NCCL may take another way.
func reachesOverNVLink(dev *cuda.Device, uuids []string) error {
	for _, name := range []string{
		"NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_P2P_USE_CUDA_MEMCPY", "NCCL_SHM_USE_CUDA_MEMCPY",
	} {
		if os.Getenv(name) != "" {
			return errors.New(name + " is set")
		}
	}
	for _, id := range uuids {
		ok, why, err := dev.NativeAtomics(id)
		if err != nil {
			return err
		}
		if !ok {
			return errors.New(why)
		}
	}
	return nil
}
