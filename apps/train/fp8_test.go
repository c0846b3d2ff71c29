package main

import (
	"path/filepath"
	"testing"

	"lockstep/spmd/spmdtest"
)

// The program with --fp8, on a GPU: the checkpoint of a run goes on with its bits, and serves every
// command. Most of the time goes into starts. That graphs have the bits of commands is tested by
// TestFP8Steps of the trainer.
func TestFP8Program(t *testing.T) {
	if spmdtest.Device() != "cuda" {
		t.Skip("needs a GPU")
	}
	spmdtest.Ranks(t, 1)
	for _, c := range []struct{ model, level string }{{"tiny", "head"}, {"tiny", "all"}, {"modern-tiny", "head"}} {
		level := c.level
		t.Run(c.model+" "+level, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			args := smallRun(t, 12, "--model", c.model, "--val-every", "4", "--checkpoint", dir, "--save-every", "5",
				"--keep", "9")
			want, _ := finish(t, 0, append(args, "--fp8", level)...)
			// The checkpoint says which products they were, too.
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
