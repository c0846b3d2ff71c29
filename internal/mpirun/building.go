package mpirun

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// BuildEnv returns the environment for the go command when a test builds programs. It has no
// network, since this program was built, and the flags of this go test, for which Go's cache has
// most packages.
//
// A program without tables for a debugger is linked in half of the time. go vet would check all
// packages below it.
func BuildEnv() []string {
	flags := strings.TrimSpace(os.Getenv("GOFLAGS") + " -buildvcs=false -vet=off")
	if !strings.Contains(flags, "-ldflags") {
		flags += " -ldflags=-w"
	}
	return []string{"GOPROXY=off", "GOTOOLCHAIN=local", "GOFLAGS=" + flags}
}

// Workspace returns the variable by which the go command builds the module in dir with packages of
// the checkout in root as they were built there. As those of another module, by a replacement in
// go.mod, it would compile them all again.
//
// So a build in a workspace does not read what go.mod says of the checkout: `go list -deps` does,
// with GOWORK=off.
func Workspace(t *testing.T, dir, root string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "go.work")
	text := fmt.Sprintf("go %s\n\nuse (\n\t%q\n\t%q\n)\n", strings.TrimPrefix(runtime.Version(), "go"), dir, root)
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return "GOWORK=" + file
}
