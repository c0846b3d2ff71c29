package mpirun

import (
	"context"
	"sync"
	"testing"
	"time"
)

const (
	// hang is how long a test waits before it gives up. It is far more than anything takes on the
	// busiest machine.
	hang = 10 * time.Minute
	// reportGrace is how much longer a job may take to end by itself and to say why.
	reportGrace = time.Minute
)

// Limit returns how long t may wait for something that does not end, so that t can still report it.
// Only a hang takes so long: ten minutes, or a third of the test binary's time (go test -timeout)
// if tests get hours.
func Limit(t testing.TB) time.Duration {
	limit := hang
	if timed, ok := t.(*testing.T); ok {
		if end, ok := timed.Deadline(); ok {
			whole := time.Until(end)
			left := max(whole-reportGrace-2*stopGrace, whole/2) // with little time it is half of it
			limit = min(max(hang, left/3), left)
		}
	}
	return limit
}

// Patience returns a context that ends with the test, and after its Limit.
func Patience(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Limit(t))
	t.Cleanup(cancel)
	return ctx
}

// turns limits how many programs are in their start.
var turns = make(chan struct{}, 4)

// Turn waits until few programs that this process has started are still in their start. The caller
// calls started when its program has come through the start, or has ended; later calls do nothing.
// So tests of programs that mostly wait may run beside many others: a program whose --timeout is
// short has the cores that its start needs.
func Turn() (started func()) {
	turns <- struct{}{}
	return sync.OnceFunc(func() { <-turns })
}
