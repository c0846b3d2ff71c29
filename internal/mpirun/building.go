package mpirun

import (
	"os"
	"strings"
)

// BuildEnv is what tests tell the go command that they have build programs: no network, since
// this was built, and the flags of this go test, by which Go's cache has most of what they
// need. A program without tables for a debugger is linked in half the time, and go vet would
// look at all packages below it.
func BuildEnv() []string {
	flags := strings.TrimSpace(os.Getenv("GOFLAGS") + " -buildvcs=false -vet=off")
	if !strings.Contains(flags, "-ldflags") {
		flags += " -ldflags=-w"
	}
	return []string{"GOPROXY=off", "GOTOOLCHAIN=local", "GOFLAGS=" + flags}
}
