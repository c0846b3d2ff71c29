package mpirun

import (
	"os"
	"strings"
)

// BuildEnv is what tests tell the go command that they have build programs: no network, since this was built, and the
// flags of this go test, by which Go's cache has most of what they need.
func BuildEnv() []string {
	return []string{"GOPROXY=off", "GOTOOLCHAIN=local", "GOFLAGS=" + strings.TrimSpace(os.Getenv("GOFLAGS")+" -buildvcs=false")}
}
