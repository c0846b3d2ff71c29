package mpirun

import (
	"context"
	"testing"
	"time"
)

// Building returns a context for commands that build programs. It ends with the test, and after usual; or after a quarter of
// the time that the test has left where that is more, as where the compiler is emulated and tests are given hours.
func Building(t *testing.T, usual time.Duration) context.Context {
	if end, ok := t.Deadline(); ok {
		usual = max(usual, time.Until(end)/4)
	}
	ctx, cancel := context.WithTimeout(t.Context(), usual)
	t.Cleanup(cancel)
	return ctx
}
