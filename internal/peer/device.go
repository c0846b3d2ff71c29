package peer

import (
	"errors"
	"strings"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/internal/shm"
	"lockstep/internal/transfer"
)

// node is what carries device memory between the ranks of a node: either the peers, or memory of the host that the ranks share.
type node struct {
	c     *shm.Comm
	dev   *cuda.Device
	peers *Comm
	stage *shm.Stage
	small *stagedAllReduce // beside the stage; may be nil
	rings *rings           // of messages; may be nil
}

// OnDevice makes a DeviceComm of c, as cudampi.Comm.OnDevice does, that does without MPI where all ranks are on one node: on
// path Peer, which Auto prefers, where their devices reach each other, and on Staged and AwareMPI through memory of the host
// that they share. It returns, on path Peer, what carries its collectives; a caller that uses that beside the DeviceComm has
// all calls of both follow each other, and sets Ordered. The DeviceComm closes it.
//
// Collective; it blocks.
func OnDevice(c *shm.Comm, d *cuda.Device, cfg cudampi.DeviceConfig) (*cudampi.DeviceComm, *Comm, error) {
	k, n, err := open(c, d, cfg)
	if err != nil || n == nil {
		return k, nil, err
	}
	return k, n.peers, nil
}

// open is OnDevice that returns the node, nil where MPI carries all.
func open(c *shm.Comm, d *cuda.Device, cfg cudampi.DeviceConfig) (*cudampi.DeviceComm, *node, error) {
	if c.Size() == 1 || cfg.Path > cudampi.Peer {
		k, err := c.OnDevice(d, cfg)
		return k, nil, err
	}
	aware, err := c.AwareOnAll(cfg.Aware)
	if err != nil {
		return nil, nil, err
	}
	cfg.Aware = &aware
	noPeers := ""
	if cfg.Path == cudampi.Peer || cfg.Path == cudampi.Auto {
		p, err := Open(c, d, 0)
		if err == nil {
			cfg.Path, cfg.Why = cudampi.Peer, "the devices reach each other"
			n := &node{c: c, dev: d, peers: p}
			cfg.Carrier = n
			k, err := c.OnDevice(d, cfg)
			return k, n, err
		}
		if cfg.Path == cudampi.Peer {
			return nil, nil, err
		}
		noPeers = "; no peer memory: " + oneLine(err)
	}
	stage, why, err := shm.OpenStage(c.Comm, d)
	if err != nil {
		return nil, nil, err
	}
	if stage == nil {
		cfg.Why = "; through MPI on the host, since " + why + noPeers
		k, err := c.OnDevice(d, cfg)
		return k, nil, err
	}
	n := &node{c: c, dev: d, stage: stage}
	cfg.Why = noPeers
	if n.small, err = openStagedAllReduce(c, d); err != nil {
		cfg.Why += "; small all-reduces by copies, since " + oneLine(err)
	}
	cfg.Carrier = n
	k, err := c.OnDevice(d, cfg)
	return k, n, err
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// Use is that of a cudampi.Carrier: it opens rings of messages where MPI is not given device addresses.
func (n *node) Use(p cudampi.Path) (why string) {
	shape, own := hostRings, (*kernels)(nil)
	switch {
	case p == cudampi.AwareMPI:
		return ""
	case n.peers != nil:
		shape = deviceRings
		if n.peers.apart {
			own = n.peers.k
		}
	case n.small != nil:
		own = n.small.k
	}
	var err error
	if n.rings, err = openRings(n.c, n.dev, own, shape, n.peers != nil); err != nil {
		return "; messages through MPI on the host, since " + oneLine(err)
	}
	return ""
}

// Agree is that of a cudampi.Carrier.
func (n *node) Agree(x *transfer.Transfer) error {
	if n.stage == nil {
		return nil // as with NCCL, there is nobody who could compare
	}
	return n.stage.Agree(x)
}

// Collective is that of a cudampi.Carrier.
func (n *node) Collective(x *transfer.Transfer, in, out *cuda.Stream, agreed bool) error {
	switch {
	case n.peers != nil:
		return n.peers.carryOut(x, out)
	case n.small == nil || x.What != transfer.AllReduce || x.N*x.Type.Size() > min(transfer.Sizes.Small, smallMost):
		return n.stage.Collective(x, in, out, agreed)
	}
	if !agreed {
		if err := n.stage.Agree(x); err != nil {
			return err
		}
	}
	return n.small.allReduce(x, out)
}

// CarriesMessages is that of a cudampi.Carrier.
func (n *node) CarriesMessages() bool { return n.rings != nil }

// Exchange is that of a cudampi.Carrier.
func (n *node) Exchange(messages []cudampi.Message, in, out *cuda.Stream) error {
	for _, m := range messages {
		if err := n.rings.add(m); err != nil {
			n.rings.forget()
			return err
		}
	}
	return n.rings.run(in, out)
}

// Close is that of a cudampi.Carrier.
func (n *node) Close() error {
	var err error
	if n.rings != nil {
		err = errors.Join(err, n.rings.close())
	}
	if n.small != nil {
		err = errors.Join(err, n.small.close())
	}
	if n.peers != nil {
		err = errors.Join(err, n.peers.Close())
	}
	if n.stage != nil {
		err = errors.Join(err, n.stage.Close())
	}
	*n = node{}
	return err
}
