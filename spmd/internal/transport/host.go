package transport

import (
	"sync"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
	"lockstep/internal/launcher"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
)

// Host is a communicator in host memory. A rank has it before it has a device: the ranks agree over it, other communicators
// are made of it, and it carries the calls on host memory. Calls are made in the order of its Ranks.
type Host interface {
	Transport
	control.Comm
	// Make is Do without a copy of the call. It keeps nothing of c, nor of what the slices of c hold.
	Make(c *coll.Call) error
	// Send and Recv are those calls of a communicator, with no more than they need.
	Send(src unsafe.Pointer, n int, t elem.Type, to int) error
	Recv(dst unsafe.Pointer, n int, t elem.Type, from int) error
	// Dup returns a communicator of the same ranks. Collective, blocking.
	Dup() (Host, error)
	// Split returns a communicator of the ranks that gave the same color, ordered by key, then by rank; nil with a color
	// below zero. Collective, blocking.
	Split(color, key int) (Host, error)
	// SplitShared returns a communicator of the ranks of this node. Collective, blocking.
	SplitShared() (Host, error)
	// Slow is why the communicator is slower than communicators are here; nil where it is not.
	Slow() error
	// BroadcastID copies an id of NCCL from root to every rank. Collective, blocking.
	BroadcastID(id *[128]byte, root int) error
	// WaitStream waits for a stream, and lets messages that are under way go on meanwhile.
	WaitStream(s *cuda.Stream) error
	// Close gives the communicator back. Collective, blocking. A second call does nothing.
	Close() error
	// Abort ends the processes of all ranks of the job. It returns where there is nothing to end but this process.
	Abort(status int)
}

// Ranks is where the ranks of a job come from: processes that MPI joins, or goroutines of one process. One value stands for
// this rank in all of its worlds.
type Ranks interface {
	// Environment is what is known of this rank before Join.
	Environment() launcher.Job
	// Join returns the communicator of all ranks, which is not closed. Each call is undone by Leave, after what was made of
	// the communicator was closed; after the last Leave there may be no Join any more. Collective, blocking.
	Join() (Host, error)
	Leave() error
	// Abort ends the processes of all ranks, where Join was called. It returns where there is nothing to end.
	Abort(status int)
	// Order is the order of this rank's calls.
	Order() *control.Tickets
	// Locker is held while a world starts or ends: one at a time.
	sync.Locker
	// Library is what joins the ranks, for the log.
	Library() string
	// Here is how many of the ranks this process has.
	Here() int
}
