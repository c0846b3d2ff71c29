package main

import (
	"path/filepath"
	"testing"

	"lockstep/spmd/spmdtest"
)

// A run with --fp8 on a GPU resumes from its checkpoint with equal bits, and every command
// reads the checkpoint. Most of the time goes into starts. The trainer's TestFP8Steps
// compares graphs with commands.
func TestFP8Program(t *testing.T) {
	if spmdtest.Device() != "cuda" {
		t.Skip("needs a GPU")
	}
	spmdtest.Ranks(t, 1)
	for _, c := range []struct{ model, level string }{{"tiny", "head"}, {"tiny", "all"}, {"modern-tiny", "all"}} {
		level := c.level
		t.Run(c.model+" "+level, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			args := smallRun(t, 12, "--model", c.model, "--val-every", "4", "--checkpoint", dir, "--save-every", "5",
				"--keep", "9")
			want, _ := finish(t, 0, append(args, "--fp8", level)...)
			// The checkpoint also says which products were 8-bit.
			got, _ := finish(t, 0, append(args, "--checkpoint", only(t, dir, 5), "--resume", "must")...)
			compareRuns(t, got, want, 5, 0)
			if level == "head" {
				return
			}
			for _, command := range [][]string{
				{"eval", dir, "--data", args[1]}, {"sample", dir, "--max-tokens", "5"},
				{"export", dir, "--device", "host", "--to", filepath.Join(t.TempDir(), "hf")},
			} {
				if p := train(t, 0, command...); p.Status != 0 {
					t.Errorf("train %v: status %d, stderr:\n%s", command, p.Status, p.Stderr)
				}
			}
		})
	}
}
