package mpirun

import (
	"context"
	"testing"
	"time"
)

const (
	// hang is after how long a test gives up what it waits for. It is far more than anything
	// takes on the busiest machine.
	hang = 10 * time.Minute
	// reportGrace is what a job has besides, to end by itself and to say why.
	reportGrace = time.Minute
)

// Limit is how long t may wait for what does not end, so that t can still tell of it. Only a hang
// takes so long: ten minutes, or a third of what the test binary has left (go test -timeout),
// where tests are given hours.
func Limit(t testing.TB) time.Duration {
	limit := hang
	if timed, ok := t.(*testing.T); ok {
		if end, ok := timed.Deadline(); ok {
			whole := time.Until(end)
			left := max(whole-reportGrace-2*stopGrace, whole/2) // whoever gives little time gets half of it
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
