package calls

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"lockstep/spmd/internal/coll"
	"lockstep/spmd/internal/exec"
)

// Share returns a block of this rank's on n elements of managed memory that rank 0 has allocated as
// first, or has failed to allocate. All ranks are of one process.
//
// Collective over all ranks, blocking.
func (r *Rank) Share(first *exec.Block, n int, failure error) (*exec.Block, error) {
	said := sharedSaid{N: n}
	if failure != nil {
		said.Failure = failure.Error()
	} else if first != nil {
		said.Key = sharedNumber.Add(1)
		sharedMade.Store(said.Key, &sharedMemory{first: first})
		defer sharedMade.Delete(said.Key) // all have it when the exchange is over
	}
	all, err := AllGatherValue(r.All, said)
	if err == nil {
		err = sharedError(all, n)
	}
	if err != nil {
		if first != nil {
			err = errors.Join(err, Free(first))
		}
		return nil, err
	}
	found, _ := sharedMade.Load(all[0].Key)
	m := found.(*sharedMemory)
	m.users.Add(1)
	barrier := Call{Call: coll.Call{Kind: coll.Barrier}}
	if err := r.All.Do(nil, &barrier, 0, 0, 0); err != nil { // before the first Free
		return nil, err
	}
	if n == 0 {
		return &exec.Block{Owner: r}, nil
	}
	f := m.first
	b := &exec.Block{Pool: r.Dev.Pools().Managed, Owner: r, Ptr: f.Ptr, Bytes: f.Bytes, Size: f.Size}
	b.Return = func(marks []exec.Point) error { return m.leave(b, marks) }
	return b, nil
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
	err := Of(b).Dev.Unadvise(b)
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
