package carriers

import (
	"errors"
	"sync"

	"lockstep/cudampi"
	"lockstep/internal/launcher"
	"lockstep/spmd/internal/control"
	"lockstep/spmd/internal/shm"
	"lockstep/spmd/internal/transport"
)

// Processes are ranks that are processes. This process is one of them.
var Processes transport.Ranks = &processes{order: control.NewTickets()}

type processes struct {
	sync.Mutex
	order  *control.Tickets
	joined int // calls of Join less those of Leave; under the lock
}

var _ transport.Ranks = (*processes)(nil)

func (p *processes) Environment() launcher.Job { return launcher.Environment() }

func (p *processes) Order() *control.Tickets { return p.order }

// Join implements transport.Ranks: it starts MPI if it is not running. The caller has the lock.
func (p *processes) Join() (transport.Host, error) {
	base, err := cudampi.Start()
	if err != nil {
		return nil, err
	}
	p.joined++
	return NewMPI(&shm.NodeComm{Comm: base}), nil
}

// Leave implements transport.Ranks: the last one stops MPI. The caller has the lock.
func (p *processes) Leave() error {
	if p.joined--; p.joined > 0 {
		return nil
	}
	return cudampi.Stop()
}

func (p *processes) Abort(status int) { cudampi.Abort(status) }

func (p *processes) Library() string { return cudampi.Version() }

func (p *processes) Here() int { return 1 }

// share makes the transport of a communicator of MPI, whose small calls go through memory where
// that is possible. A nil one gives nil.
func shareMemory(c *cudampi.Comm, err error) (transport.Host, error) {
	if c == nil || err != nil {
		return nil, err
	}
	shared, err := shm.Share(c)
	t := NewMPI(shared)
	if apart := (*shm.Apart)(nil); errors.As(err, &apart) { // on all ranks, which are to say the same
		first, e := control.First(t, apart.Mine)
		if e != nil {
			return nil, e
		}
		err = first.Or(nil)
	}
	t.slow = err
	return t, nil
}

func (t *MPI) Dup() (transport.Host, error) { return shareMemory(t.NodeComm.Dup()) }

func (t *MPI) Split(color, key int) (transport.Host, error) {
	return shareMemory(t.NodeComm.Split(color, key))
}

func (t *MPI) SplitShared() (transport.Host, error) { return shareMemory(t.NodeComm.SplitShared()) }

func (t *MPI) Slow() error { return t.slow }

// ErrNone is why MPI does not carry something.
var ErrNone = errors.New("the ranks are goroutines of one process, which MPI does not join")

// CommOf returns the communicator of MPI that h is.
func CommOf(h transport.Host) (*shm.NodeComm, error) {
	if t, ok := h.(*MPI); ok {
		return t.NodeComm, nil
	}
	return nil, ErrNone
}
