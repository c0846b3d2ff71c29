package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"lockstep/internal/mpirun"
	"lockstep/spmd/spmdtest"
)

// measured is what differs between two runs of the same: numbers with their
// units, and how the columns stand.
var measured = regexp.MustCompile(`[-+]?\d[\d.,e+-]*( (us|ms|s|B|KiB|MiB|GiB|%))?|\s+| - `)

// TestSeeing types what the page shows, and looks for each of its lines.
func TestSeeing(t *testing.T) {
	spmdtest.HostOnly(t, "the page shows a run on the host")
	dir := t.TempDir()
	ctx := mpirun.Patience(t)
	do := func(in, name string, args ...string) string {
		c := exec.CommandContext(ctx, name, args...)
		c.Dir, c.Env, c.WaitDelay = in, append(mpirun.Env(1), "CUDA_VISIBLE_DEVICES="), 5*time.Second
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	spmdtest.Must(t, os.Mkdir(filepath.Join(dir, "bin"), 0o777))
	do("..", "go", "build", "-o", filepath.Join(dir, "bin")+"/", "./apps/reduce", "./launch")
	words := func(line string) string { return strings.TrimSpace(measured.ReplaceAllString(line, " ")) }
	ran := 0
	for _, b := range blocks(t, "../docs/seeing.md") {
		for _, c := range b.commands(t) {
			ran++
			args := strings.Fields(c.typed)
			out := do(dir, filepath.Join(dir, args[0]), args[1:]...)
			shown := map[string]bool{}
			for line := range strings.Lines(out) {
				shown[first(words(line))] = true
			}
			for _, line := range c.want {
				if want := first(words(line)); !shown[want] {
					t.Errorf("%s: no line begins with %q, as one on the page does:\n%s", c.typed, want, out)
				}
			}
		}
	}
	if ran != 2 {
		t.Errorf("the page has %d commands", ran)
	}
	if trace, err := os.Stat(filepath.Join(dir, "run.json")); err != nil || trace.Size() == 0 {
		t.Error(fmt.Sprint("the trace: ", err))
	}
}

// first is the first two words. In which collective ranks have waited
// longest is the machine's to say.
func first(line string) string {
	if strings.Contains(line, " on world, number") {
		return "a wait"
	}
	w := strings.Fields(line)
	return strings.Join(w[:min(len(w), 2)], " ")
}
