package route

import (
	"lockstep/spmd/internal/peer"
	"lockstep/spmd/internal/transport/carriers"
)

// openPeers has kernels between peers carry small collectives and messages of any memory from now
// on, if all ranks reach each other. Collective over the communicator, in a turn.
func (r *Router) openPeers() error {
	p, err := carriers.OpenPeers(r.host, r.env.GPU.Dev, peerRoom)
	if err != nil { // on all ranks alike
		r.env.Log.Info().Err(err).Msg("NCCL carries small collectives and messages, too, not kernels between peers")
		return nil
	}
	return r.usePeers(p)
}

// peerRoom is the scratch memory of the peers, which small collectives do without.
const peerRoom = 4096

// usePeers has peers carry what is small, and who waits hear of their failures.
func (r *Router) usePeers(p *peer.Clique) error {
	r.peers = carriers.NewPeerKernels(p, r.lent)
	r.env.GPU.Watch(p, p.Failure)
	return r.env.GPU.OpenBeside()
}

// leavePeers ends the use of peers that are about to be closed, and returns them.
func (r *Router) leavePeers() *peer.Clique {
	p := r.peers.Comm
	r.peers = nil
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
