package route

import (
	"strings"

	"lockstep/spmd/internal/transport"
	"lockstep/spmd/internal/transport/carriers"
)

// byMPI is the backend of processes that MPI joins: the best of the ways that do without NCCL.
type byMPI struct{}

var _ transport.Backend = (*byMPI)(nil)

func (byMPI) Name() string { return "mpi" }

func (byMPI) Probe(h transport.Host) error {
	_, err := carriers.CommOf(h)
	return err
}

func (byMPI) Joins() bool { return false }

// Open implements transport.Backend. All ranks find the same ways.
func (byMPI) Open(at transport.Site) (transport.Opened, error) {
	c, err := carriers.CommOf(at.Host)
	if err != nil {
		return nil, err
	}
	t, err := carriers.PeersBackend.Open(at)
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
		if t, err = carriers.AwareBackend.Open(at); err == nil {
			return t, nil
		}
		at.Else += ", but " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return carriers.StagedBackend.Open(at)
}
