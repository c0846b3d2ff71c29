package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd/spmdtest"
)

// A run resumes in another mode and on other ranks. Its losses are those of a run without --shard,
// with the same bits in the same mode on as many ranks. Runs with float32 go through MPI.
func TestShardedResume(t *testing.T) {
	spmdtest.HostOnly(t, "no device plays a part")
	testkit.More(t, 4, "types and modes of sharing of a run that resumes")
	for _, dtype := range []string{"float32", "bfloat16"} {
		bound := 1e-4
		if dtype == "bfloat16" {
			bound = 1e-3
		}
		args := smallRun(t, 7, "--dtype", dtype, "--layers", "2", "--val-every", "3")
		want, _ := finish(t, 2, args...)
		modes := []string{"off", "optimizer", "gradients", "parameters"}
		for i, mode := range modes {
			processes, ranks, next, others := dtype == "float32", 2+i%2, modes[(i+1)%len(modes)], 4-i
			if !testkit.AllCases() && (i+b2i(processes))%2 == 0 { // every other case, with one type of each mode
				continue
			}
			t.Run(fmt.Sprintf("%s, %s on %d ranks, then %s on %d", dtype, mode, ranks, next, others),
				func(t *testing.T) {
					dir := filepath.Join(t.TempDir(), "run")
					whole, log := finishOn(t, ranks, processes,
						append(args, "--shard", mode, "--checkpoint", dir, "--save-every", "3", "--keep", "9")...)
					compareRuns(t, whole, want, 0, bound)
					if said := strings.Contains(log, " shard="+mode); said != (mode != "off") {
						t.Errorf("--shard %s: the log says so: %v", mode, said)
					}
					same, _ := finishOn(t, ranks, processes,
						append(args, "--shard", mode, "--graph", "on", "--checkpoint", only(t, dir, 3), "--resume",
							"must")...)
					compareRuns(t, same, whole, 3, 0)
					other, log := finishOn(t, others, processes && i == 0,
						append(args, "--shard", next, "--checkpoint", only(t, dir, 3), "--resume", "must")...)
					compareRuns(t, other, want, 3, bound)
					if strings.Contains(log, "another setting") {
						t.Errorf("another --shard is told as another setting:\n%s", log)
					}
				})
		}
	}
}

// --batch 0 takes the largest batch that fits beside the memory of --shard.
func TestShardedBatch(t *testing.T) {
	spmdtest.Ranks(t, 2)
	_, log := finish(t, 2, append(smallRun(t, 1), "--shard", "parameters", "--batch", "0")...)
	if !regexp.MustCompile(` batch=3 `).MatchString(log) || !regexp.MustCompile(`needs \d+ kB `).MatchString(log) {
		t.Errorf("--batch 0 took another one:\n%s", log)
	}
}

// Weights of a folder come to the ranks that have them.
func TestShardedInitFrom(t *testing.T) {
	spmdtest.HostOnly(t, "no device plays a part")
	dir := t.TempDir()
	args := smallRun(t, 2, "--val-batches", "1")
	finishQuickly(t, 2, append(args, "--checkpoint", filepath.Join(dir, "a"))...)
	folder := filepath.Join(dir, "weights")
	if p := quickly(t, 0, "export", filepath.Join(dir, "a"), "--to", folder); p.Status != 0 {
		t.Fatalf("export: status %d, stderr:\n%s", p.Status, p.Stderr)
	}
	var text string
	for i, a := range args {
		if a == "--data" {
			text = args[i+1]
		}
	}
	args = []string{"--data", text, "--init-from", folder, "--steps", "2", "--seq", "16", "--batch", "2",
		"--global-batch", "5", "--sample", "0", "--json", "-"}
	want, _ := finishQuickly(t, 3, args...)
	for _, mode := range []string{"optimizer", "gradients", "parameters"} {
		got, _ := finishQuickly(t, 3, append(args, "--shard", mode)...)
		compareRuns(t, got, want, 0, 1e-4)
	}
}
