package transport

import (
	"slices"
	"sync"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
	"lockstep/internal/launcher"
	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/control"
)

// Host is a communicator in host memory. A rank has it before it has a device: the ranks agree
// over it, other communicators are made of it, and it carries the calls on host memory. Calls are
// made in the order of its Ranks.
type Host interface {
	Transport
	control.Exchange
	// Make is Do without a copy of the call. It keeps nothing of c, nor of the contents of its
	// slices.
	Make(c *coll.Call) error
	// Send and Recv are those calls of a communicator, with no more than they need.
	Send(src unsafe.Pointer, n int, t elem.Type, to int) error
	Recv(dst unsafe.Pointer, n int, t elem.Type, from int) error
	// Dup returns a communicator of the same ranks. Collective, blocking.
	Dup() (Host, error)
	// Split returns a communicator of the ranks that gave the same color, ordered by key, then by
	// rank; nil with a color below zero. Collective, blocking.
	Split(color, key int) (Host, error)
	// SplitShared returns a communicator of the ranks of this node. Collective, blocking.
	SplitShared() (Host, error)
	// Slow returns why the communicator is slower than communicators are here; nil if it is not.
	Slow() error
	// BroadcastID copies an id of NCCL from root to every rank. Collective, blocking.
	BroadcastID(id *[128]byte, root int) error
	// Pause returns what a rank does between two looks at what it waits for. It lets messages that
	// are under way go on.
	Pause(looks int) error
	// Lost returns why a rank that is waited for will never come; nil if it may. Who asks looks
	// once more after it.
	Lost(rank int) error
	// Pin returns memory for so many bytes of each rank, pinned for dev, with
	// zeros. Collective, blocking.
	Pin(dev *cuda.Device, bytes int) (*Pinned, error)
	// NewMessage returns room for messages that are started and asked for. Those between two ranks
	// match in the order in which they are started.
	NewMessage() Message
	// Close gives the communicator back. Collective, blocking. A second call does nothing.
	Close() error
	// Abort ends the processes of all ranks of the job. It returns if there is nothing to end but
	// this process.
	Abort(status int)
}

// Message is a message in host memory, one after the other.
type Message interface {
	// Send begins to send bytes at src to rank to. src must not change until Test says that the
	// message is over.
	Send(src unsafe.Pointer, bytes, to int) error
	// Recv begins to receive at most so many bytes from rank from at dst. dst is valid when Test
	// says that the message is over.
	Recv(dst unsafe.Pointer, bytes, from int) error
	// Test reports whether the message is over. It does not block.
	// Messages from one rank are asked for in their order, and none again once it is over.
	Test() (over bool, err error)
}

// Pinned is host memory that a device copies from and to without another copy.
type Pinned struct {
	Parts []unsafe.Pointer // of the ranks, at a page each; nil of those whose part this rank does not reach
	Apart error            // why it does not reach those of its own node
	Free  func() error     // gives the memory back. Nobody uses this rank's part any more.
}

// Whole reports whether each rank reaches all parts. It is the same on all ranks.
func (p *Pinned) Whole() bool { return !slices.Contains(p.Parts, nil) }

// PinAlone returns the memory of a rank that reaches no other rank's memory.
func PinAlone(dev *cuda.Device, bytes, rank, size int) (*Pinned, error) {
	p := &Pinned{Parts: make([]unsafe.Pointer, size)}
	mem, err := dev.MallocHost(bytes)
	if err != nil {
		return nil, err
	}
	clear(unsafe.Slice((*byte)(mem), bytes))
	p.Parts[rank] = mem
	p.Free = func() error { return dev.FreeHost(mem) }
	return p, nil
}

// Looks is the number of looks at a rank, some 200 us, after which it is time to ask whether it is
// Lost.
const Looks = 2000

// Wait waits until done says so, such as the Query of a stream.
func Wait(h Host, done func() (bool, error)) error {
	for looks := 0; ; looks++ {
		if over, err := done(); over || err != nil {
			return err
		}
		if err := h.Pause(looks); err != nil {
			return err
		}
	}
}

// Ranks makes the ranks of a job: processes that MPI joins, or goroutines of one process. One value
// stands for this rank in all of its worlds.
type Ranks interface {
	// Environment returns what is known of this rank before Join.
	Environment() launcher.Job
	// Join returns the communicator of all ranks, which is not closed. Each call is undone by
	// Leave, after what was made of the communicator was closed; after the last Leave there may be
	// no Join any more. Collective, blocking.
	Join() (Host, error)
	Leave() error
	// Abort ends the processes of all ranks, where Join was called. It returns if there is nothing
	// to end.
	Abort(status int)
	// Order returns the order of this rank's calls.
	Order() *control.Tickets
	// Locker is held while a world starts or ends: one at a time.
	sync.Locker
	// Library returns what joins the ranks, for the log.
	Library() string
	// Here returns how many of the ranks this process has.
	Here() int
}
