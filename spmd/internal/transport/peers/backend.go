package peers

import (
	"lockstep/internal/peer"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/mpi"
)

// Backend is kernels between GPUs as what carries all calls.
var Backend transport.Backend = backend{}

type backend struct{}

// Name implements transport.Backend.
func (backend) Name() string { return "mpi-peer" }

// Probe implements transport.Backend. What the kernels need of the devices Open finds.
func (backend) Probe(h transport.Host) error {
	_, err := mpi.CommOf(h)
	return err
}

// Joins implements transport.Backend.
func (backend) Joins() bool { return false }

// Open implements transport.Backend.
func (backend) Open(at transport.Site) (transport.Opened, error) {
	p, err := Open(at.Host, at.Dev, 0)
	if err != nil {
		return nil, err
	}
	return &opened{*New(p, true)}, nil
}

// opened is a Transport that has its peer.Comm itself, and messages as calls.
type opened struct{ Transport }

var openedCaps = transport.Caps{Library: coll.Library{Kinds: caps.Kinds | coll.SetOf(coll.Send, coll.Recv)}}

// Name implements transport.Transport.
func (*opened) Name() string { return Backend.Name() }

// Caps implements transport.Transport.
func (*opened) Caps() *transport.Caps { return &openedCaps }

// Do implements transport.Transport.
func (t *opened) Do(q transport.Queue, c coll.Call) error {
	if c.Kind.Traits().Message {
		return t.Group(q, []coll.Call{c}, nil)
	}
	return t.Transport.Do(q, c)
}

// Why implements transport.Opened.
func (*opened) Why() (why string, doubtful bool, err error) {
	return "the devices reach each other", false, nil
}

// Linked implements transport.Opened.
func (*opened) Linked() bool { return false }

// Peers implements transport.Opened.
func (t *opened) Peers() *peer.Comm { return t.Comm }

// Close implements transport.Opened. It closes the peers.
func (t *opened) Close() error { return t.Comm.Close() }

// inProcess is ranks that have no communicator of MPI's, as peers need them.
type inProcess struct{ transport.Host }

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
