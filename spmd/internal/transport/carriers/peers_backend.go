package carriers

import (
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/peer"
	"lockstep/spmd/internal/transport"
)

// PeersBackend has kernels between GPUs carry all calls.
var PeersBackend transport.Backend = peersBackend{}

type peersBackend struct{}

var _ transport.Backend = (*peersBackend)(nil)

func (peersBackend) Name() string { return "mpi-peer" }

// Probe implements transport.Backend. Open finds whether the devices can run the kernels.
func (peersBackend) Probe(h transport.Host) error {
	_, err := CommOf(h)
	return err
}

func (peersBackend) Joins() bool { return false }

func (peersBackend) Open(at transport.Site) (transport.Opened, error) {
	p, err := OpenPeers(at.Host, at.Dev, 0)
	if err != nil {
		return nil, err
	}
	return &openedPeers{*NewPeerKernels(p, AllMessages)}, nil
}

// openedPeers is a PeerKernels that has its peer.Clique itself, and messages as calls.
type openedPeers struct{ PeerKernels }

var openedPeersCaps = transport.Caps{Library: coll.Library{Kinds: peersCaps.Kinds | coll.SetOf(coll.Send, coll.Recv)}}

var _ transport.Transport = (*openedPeers)(nil)

func (*openedPeers) Name() string { return PeersBackend.Name() }

func (*openedPeers) Caps() *transport.Caps { return &openedPeersCaps }

func (t *openedPeers) Do(q transport.Issuer, c coll.Call) error {
	if c.Kind.Traits().Message {
		return t.Group(q, []coll.Call{c}, nil)
	}
	return t.PeerKernels.Do(q, c)
}

var _ transport.Opened = (*openedPeers)(nil)

func (*openedPeers) Why() (why string, doubtful bool, err error) {
	return "the devices reach each other", false, nil
}

func (*openedPeers) Linked() bool { return false }

func (t *openedPeers) Peers() *peer.Clique { return t.Comm }

// Close implements transport.Opened. It closes the peers.
func (t *openedPeers) Close() error { return t.Comm.Close() }

// inProcess has ranks without a communicator of MPI's, as peers need them.
type inProcess struct{ transport.Host }

func (c inProcess) FirstFailure(mine error) error {
	f, err := control.First(c.Host, mine)
	if err != nil {
		return err
	}
	return f.Or(mine)
}

var _ peer.Ranks = (*inProcess)(nil)

func (c inProcess) Barrier() error { return c.Make(&coll.Call{Kind: coll.Barrier}) }

func (c inProcess) Here() (int, error) {
	node, err := c.SplitShared()
	if err != nil {
		return 0, err
	}
	return node.Size(), node.Close()
}
