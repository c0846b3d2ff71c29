package cudampi

import (
	"unsafe"

	"lockstep/internal/elem"
)

// Tags. Messages of the application never meet those that collectives are made of. Nor has a
// message of theirs a tag from tagInternal on.
const (
	tagUser     = sysTagUser
	tagInternal = 16
	tagTyped    = 32 // and above it the type of the elements
)

// maxElems keeps the bytes of a call within an int, whatever the type and the number of ranks.
const maxElems = 1 << 44

// Comm is a group of ranks that communicate only with each other. A rank that takes part in no
// group gets a nil *Comm (see Split), which has no methods to call.
type Comm struct {
	h     handle
	rank  int
	size  int
	live  bool
	soon  bool // see SleepSoon
	v     ints // counts and displacements of V forms
	group P2P  // of AllToAllV
}

func newComm(h handle) (*Comm, error) {
	c := &Comm{h: h, rank: -1, live: true}
	size, code := sysSize(h)
	if err := c.Check("MPI_Comm_size", code); err != nil {
		return nil, err
	}
	rank, code := sysRank(h)
	if err := c.Check("MPI_Comm_rank", code); err != nil {
		return nil, err
	}
	c.rank, c.size, c.v = rank, size, make(ints, 2*size)
	return c, nil
}

// Rank returns this process's number in c, from 0 to Size()-1. Source: mpi.h, MPI_Comm_rank.
func (c *Comm) Rank() int { return c.rank }

// Size returns the number of ranks in c. Source: mpi.h, MPI_Comm_size.
func (c *Comm) Size() int { return c.size }

// Dup returns a Comm of the same ranks, whose communication never mixes with c's.
//
// Collective; it blocks until every rank of c has called it. Source: mpi.h, MPI_Comm_dup.
func (c *Comm) Dup() (*Comm, error) {
	if err := c.Usable("MPI_Comm_dup"); err != nil {
		return nil, err
	}
	h, code := sysDup(c.h)
	return c.derived("MPI_Comm_dup", h, code)
}

// Split returns a Comm of the ranks that gave the same color, ordered by key, then by rank in c.
// With a color below zero it returns nil: this rank is in no group.
//
// Collective; it blocks until every rank of c has called it. Source: mpi.h, MPI_Comm_split.
func (c *Comm) Split(color, key int) (*Comm, error) {
	const op = "MPI_Comm_split"
	if err := c.Usable(op); err != nil {
		return nil, err
	}
	if color != int(int32(color)) || key != int(int32(key)) {
		return nil, c.Errorf(op, ErrArg, "color %d, key %d: both are 32-bit", color, key)
	}
	h, code := sysSplit(c.h, color, key)
	return c.derived(op, h, code)
}

// SplitShared returns a Comm of the ranks that can share memory with this one: the ranks of this
// node.
//
// Collective; it blocks until every rank of c has called it. Source: mpi.h, MPI_Comm_split_type.
func (c *Comm) SplitShared() (*Comm, error) {
	const op = "MPI_Comm_split_type"
	if err := c.Usable(op); err != nil {
		return nil, err
	}
	h, code := sysSplitShared(c.h, c.rank)
	return c.derived(op, h, code)
}

func (c *Comm) derived(op string, h handle, code int) (*Comm, error) {
	if err := c.Check(op, code); err != nil {
		return nil, err
	}
	if sysIsNull(h) {
		return nil, nil
	}
	return newComm(h)
}

// Close gives the Comm back. A second call, and one after Stop, does nothing.
//
// Collective: every rank of c calls it, when no communication on c is under way. Source: mpi.h,
// MPI_Comm_free.
func (c *Comm) Close() error {
	if !c.live || !world.running.Load() {
		return nil
	}
	c.live = false
	return c.Check("MPI_Comm_free", sysFree(c.h))
}

// Abort ends the job on every rank, of this Comm and of all others, with the exit status code. It
// returns only after MPI has ended, with nothing left to end.
//
// Not collective. Source: mpi.h, MPI_Abort.
func (c *Comm) Abort(code int) { sysAbort(c.h, code) }

// BroadcastID copies id, an NCCL id, from the root to every rank.
//
// Collective; it blocks. On the Comm of Start it goes through gompi, as 32-bit words on
// MPI_COMM_WORLD. A failure there ends the job with MPI's message, since gompi reads no status.
// Source: mpi.h, MPI_Bcast.
func (c *Comm) BroadcastID(id *[128]byte, root int) error {
	const op = "MPI_Bcast"
	if err := c.Usable(op); err != nil {
		return err
	}
	if err := c.CheckRoot(op, root); err != nil {
		return err
	}
	words := new([32]uint32) // by itself: C may not be given memory next to Go pointers
	bytes := (*[128]byte)(unsafe.Pointer(words))
	*bytes = *id
	if c == world.comm {
		world.gompi.BcastUint32s(words[:], root)
	} else if err := c.Check(op, sysBroadcast(c, unsafe.Pointer(words), len(words), elem.Uint32, root)); err != nil {
		return err
	}
	*id = *bytes
	return nil
}

// move copies n elements unless they are in their place already.
func move(dst, src unsafe.Pointer, n int, t elem.Type) {
	if n > 0 && dst != src {
		copy(unsafe.Slice((*byte)(dst), n*t.Size()), unsafe.Slice((*byte)(src), n*t.Size()))
	}
}
