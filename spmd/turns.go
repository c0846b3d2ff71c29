package spmd

import (
	"sync"
	"sync/atomic"
)

// mpiTurns is the order of this process in MPI.
var mpiTurns = newTurns()

// turns lets commands into MPI one at a time, in the order in which the program
// issued them, whatever streams they wait in. MPI is thus entered by one thread
// at a time; and as every rank runs the same program, all ranks enter their
// blocking calls in one order, so calls on different communicators and streams
// cannot wait for each other crosswise.
//
// A turn is taken when a command is issued. A command only depends on commands
// issued before it, so the one whose turn it is can always get there.
type turns struct {
	next    atomic.Uint64 // the next turn to be taken
	serving atomic.Uint64 // the turn that may enter
	waiting atomic.Int32
	mu      sync.Mutex
	cond    sync.Cond
	err     error // once set, nobody enters any more
}

func newTurns() *turns {
	t := &turns{}
	t.cond.L = &t.mu
	return t
}

// take reserves n turns in a row and returns the first.
func (t *turns) take(n uint64) uint64 { return t.next.Add(n) - n }

// enter waits for turn k. It fails when fail was called.
func (t *turns) enter(k uint64) error {
	if t.serving.Load() == k {
		return nil
	}
	return t.wait(k)
}

func (t *turns) wait(k uint64) error {
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.serving.Load() != k {
		if t.err != nil {
			return t.err
		}
		t.cond.Wait()
	}
	return nil
}

// leave lets the next turn in.
func (t *turns) leave() {
	t.serving.Add(1)
	if t.waiting.Load() != 0 {
		t.wake()
	}
}

func (t *turns) wake() {
	t.mu.Lock() // a waiter between its check and its Wait holds it
	defer t.mu.Unlock()
	t.cond.Broadcast()
}

// fail ends all waiting with err: a command that held a turn will not come.
func (t *turns) fail(err error) {
	t.mu.Lock()
	if t.err == nil {
		t.err = err
	}
	t.mu.Unlock()
	t.wake()
}
