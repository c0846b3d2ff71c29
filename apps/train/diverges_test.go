package main

import (
	"fmt"
	"strings"
	"testing"

	"lockstep/spmd/spmdtest"
)

// The program: a rate that no model survives.
func TestRunDiverges(t *testing.T) {
	besideOthers(t)
	spmdtest.Ranks(t, 3)
	args := smallRun(t, 4, "--dtype", "float32", "--lr", "1e30", "--warmup-steps", "0", "--val-batches", "0")
	p := train(t, 3, args...)
	for _, want := range []string{"step 2: loss ", "rank 0 has the first number that is not finite in", "--skip-bad-steps"} {
		if p.Status != 1 || !strings.Contains(p.Stderr, want) {
			t.Errorf("status %d, want 1 and %q in:\n%s", p.Status, want, p.Stderr)
		}
	}
	if n := strings.Count(p.Stdout, `"step":`); n != 1 {
		t.Errorf("%d steps told, want 1:\n%s", n, p.Stdout)
	}
	// Skipping, the run goes on, and remembers from one start to the next.
	dir := t.TempDir()
	args = append(args, "--skip-bad-steps", "--checkpoint", dir)
	for _, steps := range []string{"4", "6"} {
		r, log := finish(t, 3, append(args, "--steps", steps)...)
		if r.summary == nil || fmt.Sprint(r.summary.Skipped+1) != steps || r.summary.LossLast != r.summary.LossFirst {
			t.Errorf("of %s steps the summary tells %+v, want all but 1 skipped", steps, r.summary)
		}
		if !strings.Contains(log, "is left out") {
			t.Errorf("no line tells of a step that was left out:\n%s", log)
		}
	}
}
