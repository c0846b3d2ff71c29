package route

import (
	"lockstep/cudampi"
	"lockstep/internal/peer"
	"lockstep/spmd/internal/transport/devmpi"
	"lockstep/spmd/internal/transport/mpi"
	peert "lockstep/spmd/internal/transport/peer"
)

// OpenDevice has the communicator carry GPU memory through MPI, instead of NCCL or to
// be compared with it. Collective, in the caller's turn.
func (r *Router) OpenDevice() error {
	if r.device == nil || r.size < 2 || !r.env.ByMPI && !r.env.Twice {
		return nil
	}
	if err := r.env.Quiesce(); err != nil { // it allocates
		return err
	}
	shared, err := mpi.CommOf(r.host)
	if err != nil {
		return err
	}
	dev, peers, err := peer.OnDevice(shared, r.env.GPU.Dev, cudampi.DeviceConfig{Path: r.env.Path})
	if err != nil {
		return err
	}
	t := devmpi.New(dev, r.env.GPU.Word())
	if !r.env.ByMPI {
		r.second = t
		return nil
	}
	r.dev, r.device = t, t
	if peers == nil {
		return nil
	}
	r.usePeers(peers)
	return r.startPeers()
}

// CloseDevice undoes OpenDevice. Collective, in the caller's turn.
func (r *Router) CloseDevice() error {
	if r.second != nil {
		err := r.second.Comm.Close()
		r.second = nil
		return err
	}
	if r.dev == nil {
		return nil
	}
	r.env.GPU.Forget(r.dev)
	if r.peers != nil {
		r.leavePeers()
	}
	err := r.dev.Comm.Close()
	r.dev = nil
	r.UseDevice()
	return err
}

// OnMPI is MPI on device memory, where that carries calls; else nil.
func (r *Router) OnMPI() *devmpi.Transport { return r.dev }

// Second is MPI on device memory beside NCCL, where both are compared; else nil.
func (r *Router) Second() *devmpi.Transport { return r.second }

// openPeers has kernels between peers carry small collectives and messages of any memory from now on.
// Collective over the communicator, in a turn.
func (r *Router) openPeers() error {
	if err := r.reachPeers(); err != nil {
		r.env.Log.Info().Err(err).Msg("NCCL carries small collectives and messages, too, not kernels between peers")
		return nil
	}
	return r.startPeers()
}

// startPeers has the peers carry what is small.
func (r *Router) startPeers() error {
	r.atOnce = r.peers.Most()
	return r.env.GPU.OpenBeside()
}

// reachPeers opens the peers, or fails on all ranks alike. Collective over the communicator, in a turn.
func (r *Router) reachPeers() error {
	shared, err := mpi.CommOf(r.host)
	if err != nil {
		return err
	}
	p, err := peer.Open(shared, r.env.GPU.Dev, peerRoom)
	if err == nil {
		r.usePeers(p)
	}
	return err
}

// usePeers has the communicator know peers, and who waits hear of their failures.
func (r *Router) usePeers(p *peer.Comm) {
	p.Ordered = true // by orderAfterOthers
	r.peers = peert.New(p)
	r.env.GPU.Watch(p, p.Failure)
}

// leavePeers ends the use of peers that are about to be closed, and returns them.
func (r *Router) leavePeers() *peer.Comm {
	p := r.peers.Comm
	r.peers, r.atOnce = nil, 0
	r.env.GPU.Unwatch(p)
	return p
}

// closePeers gives the peers back. No graph may hold calls of them any more. Collective over the communicator, in a turn.
func (r *Router) closePeers() error {
	if r.peers == nil {
		return nil
	}
	return r.leavePeers().Close()
}
