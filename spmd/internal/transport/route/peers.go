package route

import (
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/internal/peer"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/mpi"
	"lockstep/spmd/internal/transport/peers"
)

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
	var ranks peer.Ranks = inProcess{r.host}
	if shared, err := mpi.CommOf(r.host); err == nil {
		ranks = shared
	}
	p, err := peer.Open(ranks, r.env.GPU.Dev, peerRoom)
	if err == nil {
		r.usePeers(p)
	}
	return err
}

// usePeers has the communicator know peers, and who waits hear of their failures.
func (r *Router) usePeers(p *peer.Comm) {
	p.Ordered = true // by orderAfterOthers
	r.peers = peers.New(p)
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

// inProcess is ranks that have no communicator of MPI's, as peers need them. Who calls has checked what it asks for.
type inProcess struct{ transport.Host }

// Ready implements transfer.Comm.
func (inProcess) Ready(string, int, elem.Type, unsafe.Pointer, unsafe.Pointer) error { return nil }

// CheckOp implements transfer.Comm.
func (inProcess) CheckOp(string, elem.Op, elem.Type) error { return nil }

// CheckRoot implements transfer.Comm.
func (inProcess) CheckRoot(string, int) error { return nil }

// CheckCounts implements transfer.Comm.
func (inProcess) CheckCounts(string, []int) error { return nil }

// FirstFailure implements devkernel.Comm.
func (c inProcess) FirstFailure(mine error) error {
	f, err := control.First(c.Host, mine)
	if err != nil {
		return err
	}
	return f.Or(mine)
}

// Barrier implements peer.Ranks.
func (c inProcess) Barrier() error { return c.Make(&coll.Call{Kind: coll.Barrier}) }

// Here implements peer.Ranks.
func (c inProcess) Here() (int, error) {
	node, err := c.SplitShared()
	if err != nil {
		return 0, err
	}
	return node.Size(), node.Close()
}
