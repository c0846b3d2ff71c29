package main

import (
	"path/filepath"
	"testing"

	"lockstep/spmd/spmdtest"
)

// The program with --FP8, on a GPU: the checkpoints of a run go on with its bits, and serve every command.
func TestFP8Program(t *testing.T) {
	if spmdtest.Device() != "cuda" {
		t.Skip("needs a GPU")
	}
	for _, level := range []string{"head", "all"} {
		t.Run(level, func(t *testing.T) {
			spmdtest.Ranks(t, 1)
			dir := filepath.Join(t.TempDir(), "run")
			args := smallRun(t, 12, "--fp8", level, "--val-every", "4")
			want, _ := finish(t, 1, append(args, "--checkpoint", dir, "--save-every", "5", "--keep", "9")...)
			plain, _ := finish(t, 1, append(args, "--graph", "off")...)
			compareRuns(t, want, plain, 0, 0)
			// The checkpoint says which products they were, too.
			got, _ := finish(t, 1, append(smallRun(t, 12, "--val-every", "4"), "--checkpoint", only(t, dir, 5), "--resume", "must")...)
			compareRuns(t, got, want, 5, 0)
			for _, command := range [][]string{{"eval", dir, "--data", args[1]}, {"sample", dir, "--max-tokens", "5"}, {"export", dir, "--to", filepath.Join(t.TempDir(), "hf")}} {
				if p := train(t, 1, command...); p.Status != 0 {
					t.Errorf("train %v: status %d, stderr:\n%s", command, p.Status, p.Stderr)
				}
			}
		})
	}
}
