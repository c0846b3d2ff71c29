package route

import (
	"lockstep/spmd/internal/peer"
	"lockstep/spmd/internal/transport/carriers"
)

// openPeers has kernels between peers carry small collectives and messages of any memory from now
// on. Collective over the communicator, in a turn.
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

// reachPeers opens the peers, or fails on all ranks alike. Collective over
// the communicator, in a turn.
func (r *Router) reachPeers() error {
	p, err := carriers.OpenPeers(r.host, r.env.GPU.Dev, peerRoom)
	if err == nil {
		r.usePeers(p)
	}
	return err
}

// usePeers has the communicator know peers, and who waits hear of their failures.
func (r *Router) usePeers(p *peer.Clique) {
	r.peers = carriers.NewPeerKernels(p, r.lent)
	r.env.GPU.Watch(p, p.Failure)
}

// leavePeers ends the use of peers that are about to be closed, and returns them.
func (r *Router) leavePeers() *peer.Clique {
	p := r.peers.Comm
	r.peers, r.atOnce = nil, 0
	r.env.GPU.Unwatch(p)
	return p
}

// closePeers gives the peers back. No graph may hold calls of them any more. Collective over
// the communicator, in a turn.
func (r *Router) closePeers() error {
	if r.peers == nil {
		return nil
	}
	return r.leavePeers().Close()
}
