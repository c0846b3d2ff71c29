package spmd_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep/internal/mpirun"
	"lockstep/spmd/spmdtest"
)

// TestReadmeProgram builds the README's program in a module of its own, as a
// newcomer would, and runs it.
func TestReadmeProgram(t *testing.T) {
	spmdtest.HostOnly(t, "it compiles a program, which a machine with GPUs may not be able to")
	t.Parallel()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	_, rest, _ := strings.Cut(read("README.md"), "```go\n")
	program, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("README.md has no program")
	}
	mod := strings.Replace(read("go.mod"), "module lockstep", "module hello", 1) +
		"\nrequire lockstep v0.0.0\nreplace lockstep => " + root + "\n"
	dir := t.TempDir()
	for name, text := range map[string]string{"main.go": program, "go.mod": mod, "go.sum": read("go.sum")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-mod=mod", "-o", "hello", ".")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	out, err := mpirun.Command(ctx, 3, filepath.Join(dir, "hello"), "--n", "5").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "sum=3") {
		t.Fatalf("%v\n%s", err, out)
	}
}
