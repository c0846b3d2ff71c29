package mpirun

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

// BuildEnv is what tests tell the go command that they have build programs: no network, since this was built, and the
// flags of this go test, by which Go's cache has most of what they need.
func BuildEnv() []string {
	return []string{"GOPROXY=off", "GOTOOLCHAIN=local", "GOFLAGS=" + strings.TrimSpace(os.Getenv("GOFLAGS")+" -buildvcs=false")}
}

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
