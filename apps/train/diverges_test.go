package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/spmd/spmdtest"
)

// A run of the program diverges at a rate that no model survives.
func TestRunDiverges(t *testing.T) {
	besideOthers(t)
	spmdtest.Ranks(t, 3)
	args := smallRun(t, 4, "--dtype", "float32", "--lr", "1e30", "--warmup-steps", "0", "--val-batches", "0")
	p := train(t, 3, args...)
	for _, want := range []string{
		"step 2: loss ", "rank 0 has the first number that is not finite in", "--skip-bad-steps",
	} {
		if p.Status != 1 || !strings.Contains(p.Stderr, want) {
			t.Errorf("status %d, want 1 and %q in:\n%s", p.Status, want, p.Stderr)
		}
	}
	if n := strings.Count(p.Stdout, `"step":`); n != 1 {
		t.Errorf("%d steps told, want 1:\n%s", n, p.Stdout)
	}
}

// The checkpoint before a bad step stays, and the next start names it. This holds if bad steps are
// skipped, skipped up to a limit, or end the run.
func TestBadCheckpoint(t *testing.T) {
	spmdtest.HostOnly(t, "what is saved does not depend on the device")
	for _, skip := range []string{"", "--skip-bad-steps=3"} {
		t.Run(skip, func(t *testing.T) {
			dir := t.TempDir()
			args := smallRun(t, 4, "--ranks", "3", "--dtype", "float32", "--val-batches", "0", "--checkpoint", dir,
				"--save-every", "1", "--keep", "1")
			finish(t, 0, args...)
			steps := func() (names []string) {
				there, err := filepath.Glob(filepath.Join(dir, "step-*"))
				spmdtest.Must(t, err)
				return there
			}
			if want := []string{stepDir(dir, 3), stepDir(dir, 4)}; !slices.Equal(steps(), want) {
				t.Fatalf("%v, want %v: no later step has shown the last one to be good", steps(), want)
			}
			bad := append(args, "--steps", "30", "--lr", "1e30", "--warmup-steps", "0")
			if skip != "" {
				bad = append(bad, skip)
			}
			for start := range 2 {
				p := train(t, 0, bad...)
				last := 6 // the first step behind weights that the rate has ruined
				if skip != "" {
					last += 3
				}
				wants := []string{fmt.Sprintf("step %d: loss ", last)}
				if skip != "" {
					wants = append(wants, "3 steps before it are left out already")
				}
				if start > 0 {
					wants = append(wants, fmt.Sprintf(
						"the checkpoint before it is %s: move %s away to go on from there",
						stepDir(dir, 4), stepDir(dir, 5)))
				}
				for _, want := range wants {
					if p.Status != 1 || !strings.Contains(p.Stderr, want) {
						t.Errorf("start %d: status %d, want 1 and %q in:\n%s", start, p.Status, want, p.Stderr)
					}
				}
				if want := []string{stepDir(dir, 4), stepDir(dir, 5)}; !slices.Equal(steps(), want) {
					t.Errorf("start %d leaves %v, want %v", start, steps(), want)
				}
			}
			spmdtest.Must(t, os.RemoveAll(stepDir(dir, 5)))
			r, _ := finish(t, 0, append(args, "--steps", "6", "--val-batches", "1")...)
			if r.steps[0].Step != 5 || r.summary.Skipped != 0 {
				t.Errorf("it goes on with %+v to %+v", r.steps[0], r.summary)
			}
			if want := []string{stepDir(dir, 6)}; !slices.Equal(steps(), want) {
				t.Errorf("%v after a good validation, want %v", steps(), want)
			}
		})
	}
}

// A run whose last step is bad fails, unless a validation shows the weights to be good.
func TestEndsBad(t *testing.T) {
	spmdtest.HostOnly(t, "what is saved does not depend on the device")
	dir := t.TempDir()
	args := smallRun(t, 3, "--ranks", "3", "--dtype", "float32", "--lr", "1e30", "--warmup-steps", "0", "--val-batches",
		"0", "--checkpoint", dir, "--skip-bad-steps")
	p := train(t, 0, args...)
	const want = "the last 2 steps are left out, as their losses or gradients are not finite: the weights may be no " +
		"good, and are not saved"
	if p.Status != 1 || !strings.Contains(p.Stderr, want) {
		t.Errorf("status %d, want 1 and %q in:\n%s", p.Status, want, p.Stderr)
	}
	if _, err := os.Stat(stepDir(dir, 3)); err == nil {
		t.Error("they are saved")
	}
}
