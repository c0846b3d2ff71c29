package testkit

import "testing"

var kept [][]byte

// TestAllocations: what fn allocates each time is counted, and not what goes on beside it.
func TestAllocations(t *testing.T) {
	calls := 0
	if n := Allocations(50, func() { calls++ }); n != 0 || calls != 100 {
		t.Errorf("%v allocations in %d calls of nothing", n, calls)
	}
	if n := Allocations(50, func() { kept = [][]byte{make([]byte, 100), make([]byte, 100)} }); n != 3 {
		t.Errorf("%v allocations, want 3", n)
	}
	if n := Allocations(50, func() {
		if calls++; calls%3 == 0 {
			kept = [][]byte{make([]byte, 100)}
		}
	}); n != 0 {
		t.Errorf("%v allocations of a call that mostly has none", n)
	}
}
