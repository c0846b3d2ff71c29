package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/apps/train/run"
	"lockstep/spmd/spmdtest"
)

// loggedIn returns the lines of a run folder's log, without the summaries.
func loggedIn(t *testing.T, dir string) told {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "log.jsonl"))
	spmdtest.Must(t, err)
	var r told
	for line := range strings.Lines(string(text)) {
		r.add(t, []byte(line))
	}
	return r
}

// A run keeps the lines of --json in a folder of its own. With --checkpoint it is the folder of the
// checkpoints, and a resumed run appends to it. Another run does not get it.
func TestRunFolder(t *testing.T) {
	besideOthers(t)
	spmdtest.Ranks(t, 2)
	parent := t.TempDir()
	env := []string{"LOCKSTEP_RUNS" + "=" + filepath.Join(parent, "runs")}
	begin := func(args ...string) spmdtest.Ended { return spmdtest.Program(t, 2, env, args...) }

	p := begin(smallRun(t, 6, "--val-every", "3")...)
	dirs, err := filepath.Glob(filepath.Join(parent, "runs", "*-train-*"))
	if err != nil || len(dirs) != 1 || p.Status != 0 || strings.Count(p.Stderr, "INF run folder="+dirs[0]) != 1 {
		t.Fatalf("%v, %v, status %d\n%s", err, dirs, p.Status, p.Stderr)
	}
	if text, err := os.ReadFile(filepath.Join(dirs[0], "log.jsonl")); err != nil || string(text) != p.Stdout {
		t.Errorf("%v: the log is %q, and --json got %q", err, text, p.Stdout)
	}
	if text, err := os.ReadFile(filepath.Join(dirs[0], "starts.jsonl")); err != nil ||
		!strings.Contains(string(text), `"program":"train"`) || !strings.Contains(string(text), `"val-every":"3"`) {
		t.Errorf("%v: the start is %q", err, text)
	}

	kept := filepath.Join(parent, "kept")
	for i, steps := range []int{4, 8} {
		if p := begin(smallRun(t, steps, "--run-dir", kept, "--save-every", "2")...); p.Status != 0 {
			t.Fatalf("start %d: status %d\n%s", i, p.Status, p.Stderr)
		}
	}
	all := loggedIn(t, kept)
	if _, err := os.Stat(stepDir(kept, 8)); err != nil || len(all.steps) != 8 || all.steps[7].Step != 8 {
		t.Errorf("%v: %d steps", err, len(all.steps))
	}
	if p := spmdtest.Program(t, 1, env, "sample", kept, "--max-tokens", "3", "--prompt", "a"); p.Status != 0 {
		t.Errorf("a sample of the run: status %d\n%s", p.Status, p.Stderr)
	}
	for name, args := range map[string][]string{
		"without checkpoints": {"--run-dir", kept},
		"with others":         {"--run-dir", kept, "--checkpoint", filepath.Join(parent, "others")},
	} {
		p := begin(smallRun(t, 4, args...)...)
		want := "train: --run-dir: " + kept + " holds a run of train already, begun at "
		if p.Status != 2 || !strings.Contains(p.Stderr, want) {
			t.Errorf("%s: status %d, want 2 and %q\n%s", name, p.Status, want, p.Stderr)
		}
	}
	var none run.StepRecord
	if again := loggedIn(t, kept); len(again.steps) != len(all.steps) || again.steps[0] == none {
		t.Errorf("the log has changed: %d steps", len(again.steps))
	}
}
