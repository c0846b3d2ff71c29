package control

import (
	"sync"
	"sync/atomic"
)

// Tickets lets commands into MPI one at a time, in the order in which the program issued them,
// whatever streams they wait in. So one thread at a time enters MPI. Every rank runs the same
// program, so all ranks enter their blocking calls in one order, and calls on different
// communicators and streams cannot wait for each other crosswise.
//
// A ticket is taken when a command is issued. A command depends only on commands issued before it,
// so the next one to be served can always get there.
type Tickets struct {
	next    atomic.Uint64 // the next ticket to be taken
	serving atomic.Uint64 // the ticket that may enter
	waiting atomic.Int32
	mu      sync.Mutex
	cond    sync.Cond
	err     error // once set, nobody enters any more
}

// NewTickets returns an order without commands.
func NewTickets() *Tickets {
	t := &Tickets{}
	t.cond.L = &t.mu
	return t
}

// Take reserves n tickets in a row and returns the first. It does not block.
func (t *Tickets) Take(n uint64) uint64 { return t.next.Add(n) - n }

// Idle reports whether all commands that took a ticket are over.
func (t *Tickets) Idle() bool { return t.serving.Load() == t.next.Load() }

// Enter waits until ticket k is served. It fails after Fail, and Leave must then not be called.
func (t *Tickets) Enter(k uint64) error {
	if t.serving.Load() == k {
		return nil
	}
	return t.wait(k)
}

func (t *Tickets) wait(k uint64) error {
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

// Leave lets the next ticket in.
func (t *Tickets) Leave() {
	t.serving.Add(1)
	if t.waiting.Load() != 0 {
		t.wake()
	}
}

func (t *Tickets) wake() {
	t.mu.Lock() // a waiter between its check and its Wait holds it
	defer t.mu.Unlock()
	t.cond.Broadcast()
}

// Fail ends all waiting with err: a command with a ticket will not come. A command that is already
// served still enters.
func (t *Tickets) Fail(err error) {
	t.mu.Lock()
	if t.err == nil {
		t.err = err
	}
	t.mu.Unlock()
	t.wake()
}
