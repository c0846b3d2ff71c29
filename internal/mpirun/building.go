package mpirun

import (
	"os"
	"strings"
)

// BuildEnv returns the environment for the go command when a test builds programs. It has no
// network, since this program was built, and the flags of this go test, for which Go's cache has
// most packages. Tests of such a program have all their processes.
//
// A program without tables for a debugger is linked in half of the time. go vet would check all
// packages below it.
func BuildEnv() []string {
	flags := strings.TrimSpace(os.Getenv("GOFLAGS") + " -buildvcs=false -vet=off")
	if !strings.Contains(flags, "-ldflags") {
		flags += " -ldflags=-w"
	}
	return []string{"LOCKSTEP_TESTS=", "GOPROXY=off", "GOTOOLCHAIN=local", "GOFLAGS=" + flags}
}
