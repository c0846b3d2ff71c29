package route

import (
	"strings"

	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/aware"
	"lockstep/spmd/internal/transport/mpi"
	"lockstep/spmd/internal/transport/peers"
	"lockstep/spmd/internal/transport/staged"
)

// byMPI is the backend of processes that MPI joins: the best of the ways that do without NCCL.
type byMPI struct{}

// Name implements transport.Backend.
func (byMPI) Name() string { return "mpi" }

// Probe implements transport.Backend.
func (byMPI) Probe(h transport.Host) error {
	_, err := mpi.CommOf(h)
	return err
}

// Joins implements transport.Backend.
func (byMPI) Joins() bool { return false }

// Open implements transport.Backend. What one way lacks is the same on all ranks.
func (byMPI) Open(at transport.Site) (transport.Opened, error) {
	c, err := mpi.CommOf(at.Host)
	if err != nil {
		return nil, err
	}
	t, err := peers.Backend.Open(at)
	if err == nil {
		return t, nil
	}
	at.Else = "; no peer memory: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	said, err := c.AwareOnAll()
	if err != nil {
		return nil, err
	}
	at.Else += "; " + said.Reason
	if said.Yes {
		if t, err = aware.Backend.Open(at); err == nil {
			return t, nil
		}
		at.Else += ", but " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return staged.Backend.Open(at)
}
