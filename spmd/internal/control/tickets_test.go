package control_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"lockstep/spmd/internal/control"
)

// Commands enter in the order in which they took tickets, whatever the order of their waiting.
func TestTickets(t *testing.T) {
	order := control.NewTickets()
	const n = 64
	var entered []uint64 // written by who is inside alone: the race detector sees two
	var all sync.WaitGroup
	first := order.Take(1)
	rest := order.Take(n)
	if rest != first+1 || order.Take(1) != rest+n {
		t.Fatalf("tickets %d and from %d", first, rest)
	}
	for i := range uint64(n) {
		k := rest + (i*37)%n // 37 and 64 have no common factor: each once
		all.Add(1)
		go func() {
			defer all.Done()
			if err := order.Enter(k); err != nil {
				t.Error(err)
				return
			}
			entered = append(entered, k)
			order.Leave()
		}()
	}
	must(t, order.Enter(first))
	if len(entered) != 0 {
		t.Error("somebody entered before the first ticket")
	}
	order.Leave()
	all.Wait()
	if len(entered) != n || !slices.IsSorted(entered) {
		t.Errorf("entered %v", entered)
	}
}

// After Fail all who wait, or come later, get its error. The first of several counts.
func TestTicketsFail(t *testing.T) {
	order := control.NewTickets()
	k := order.Take(3)
	cause := errors.New("a command failed")
	waits := make(chan error)
	for i := range uint64(2) {
		go func() { waits <- order.Enter(k + 1 + i) }()
	}
	order.Fail(cause)
	order.Fail(errors.New("another"))
	for range 2 {
		if err := <-waits; err != cause {
			t.Errorf("%v, want %v", err, cause)
		}
	}
	if err := order.Enter(order.Take(1)); err != cause {
		t.Errorf("%v, want %v", err, cause)
	}
	if err := order.Enter(k); err != nil { // it is served already
		t.Error(err)
	}
}
