package devmpi

import (
	"lockstep/cudampi"
	"lockstep/internal/peer"
	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/mpi"
)

// MPI on the way that is the best here, and on each of its ways.
var (
	Auto    transport.Backend = backend(cudampi.Auto)
	Staged  transport.Backend = backend(cudampi.Staged)
	Aware   transport.Backend = backend(cudampi.AwareMPI)
	Between transport.Backend = backend(cudampi.Peer)
)

// backend is a way that device memory takes.
type backend cudampi.Path

// Name implements transport.Backend.
func (b backend) Name() string {
	if p := cudampi.Path(b); p != cudampi.Auto {
		return p.String()
	}
	return "mpi"
}

// Probe implements transport.Backend. What the way needs of the devices Open finds.
func (b backend) Probe(h transport.Host) error {
	_, err := mpi.CommOf(h)
	return err
}

// Joins implements transport.Backend.
func (b backend) Joins() bool { return false }

// Open implements transport.Backend.
func (b backend) Open(at transport.Site) (transport.Opened, error) {
	shared, err := mpi.CommOf(at.Host)
	if err != nil {
		return nil, err
	}
	dev, peers, err := peer.OnDevice(shared, at.Dev, cudampi.DeviceConfig{Path: cudampi.Path(b)})
	if err != nil {
		return nil, err
	}
	t := New(dev, at.Word)
	t.peers, t.asked = peers, cudampi.Path(b)
	return t, nil
}

// Why implements transport.Opened.
func (t *Transport) Why() (why string, doubtful bool, err error) {
	if t.asked == cudampi.AwareMPI {
		said, err := cudampi.CUDAAware()
		if err != nil {
			return "", false, err
		}
		doubtful = !said.Yes
	}
	return t.Comm.Reason(), doubtful, nil
}

// Linked implements transport.Opened.
func (t *Transport) Linked() bool { return false }

// Peers implements transport.Opened.
func (t *Transport) Peers() *peer.Comm { return t.peers }

// Close implements transport.Opened. It closes the peers, too.
func (t *Transport) Close() error { return t.Comm.Close() }
