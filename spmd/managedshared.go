package spmd

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/calls"
	"lockstep/spmd/internal/exec"
)

// AllocManagedShared returns one array in managed memory to all ranks of a process, whose GPUs and whose host code all
// address it: each rank gets a Buffer of its own on the same n elements, for its streams and kernels. Which rank works on which
// part is the program's to say, for example by Slice and ShardOf, and a rank that reads what another has written has to wait
// for it first, as with any memory that is shared: Synchronize the stream, then Barrier. Prefetch and Advise mean the GPU of
// the rank that calls them. Where each rank is a process, it is AllocManaged: each has an array of its own.
//
// The memory counts as that of rank 0, and is never larger than what is free on its GPU. Each rank frees its Buffer; advice
// that it has given ends with that. The memory goes back to the pool with the last Free, and is handed out again when the
// streams of all ranks have passed theirs.
//
// Collective over all ranks of w, blocking, with the same n; different n are an error on every rank. Otherwise as
// AllocManaged. Source: cuda.h, cuMemAllocManaged, CU_MEM_ATTACH_GLOBAL.
func AllocManagedShared[T Stored](w *World, n int) (Buffer[T], error) {
	if w.in.Here() == 1 {
		return AllocManaged[T](w, n)
	}
	said := sharedSaid{N: n}
	var own *sharedMemory
	if w.Rank() == 0 {
		b, err := AllocManaged[T](w, n)
		if err != nil {
			said.Failure = err.Error()
		} else {
			own = &sharedMemory{first: b.blk}
			said.Key = sharedNumber.Add(1)
			sharedMade.Store(said.Key, own)
			defer sharedMade.Delete(said.Key) // all have it when the exchange is over
		}
	}
	all, err := AllGatherValue(w.Comm(), said)
	if err == nil {
		err = sharedError(all, n)
	}
	if err != nil {
		if own != nil {
			err = errors.Join(err, Buffer[T]{blk: own.first, n: n}.Free())
		}
		return Buffer[T]{}, fmt.Errorf("%s: AllocManagedShared of %d elements on rank %d: %w", ccall.At(), n, w.Rank(), err)
	}
	found, _ := sharedMade.Load(all[0].Key)
	m := found.(*sharedMemory)
	m.users.Add(1)
	if err := Barrier(w.Comm()); err != nil { // before the first Free
		return Buffer[T]{}, err
	}
	if n == 0 {
		return Buffer[T]{blk: &exec.Block{Owner: &w.in.Rank}}, nil
	}
	b := &exec.Block{Pool: w.in.Dev.Pools().Managed, Owner: &w.in.Rank, Ptr: m.first.Ptr, Bytes: m.first.Bytes, Size: m.first.Size}
	b.Return = func(marks []exec.Point) error { return m.leave(b, marks) }
	return Buffer[T]{blk: b, n: n}, nil
}

// sharedSaid is what a rank says of an array that it is to share.
type sharedSaid struct {
	N       int
	Key     uint64 // of rank 0's, in sharedMade
	Failure string // of that rank; "" for none
}

// sharedError is why there is no array, on all ranks alike; nil where there is one.
func sharedError(all []sharedSaid, n int) error {
	lo, hi := n, n
	for _, s := range all {
		lo, hi = min(lo, s.N), max(hi, s.N)
	}
	if lo != hi {
		return fmt.Errorf("from %d to %d over the ranks", lo, hi)
	}
	if failure := all[0].Failure; failure != "" {
		return fmt.Errorf("rank 0: %s", failure)
	}
	return nil
}

// Arrays on their way from rank 0 to the others, by their numbers.
var (
	sharedNumber atomic.Uint64
	sharedMade   sync.Map
)

// sharedMemory is an array that several worlds of the process have.
type sharedMemory struct {
	first *exec.Block // of the world that has allocated it
	users atomic.Int32
	mu    sync.Mutex
	marks []exec.Point // the ends of the streams of those who have left
}

// leave is the Free of one world. The last one gives the memory back.
func (m *sharedMemory) leave(b *exec.Block, marks []exec.Point) error {
	err := calls.Of(b).Dev.Unadvise(b)
	m.mu.Lock()
	m.marks = append(m.marks, marks...)
	all := m.marks
	m.mu.Unlock()
	if m.users.Add(-1) == 0 && m.first.Pool != nil {
		m.first.Freed.Store(true)
		m.first.Pool.Release(m.first, all)
	}
	return err
}
