package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"lockstep/apps/train/run"
)

// `train plan` prints what run.Options.Plan proposes, passes over the flags of every program, and refuses the rest.
func TestPlanCommand(t *testing.T) {
	besideOthers(t)
	machine := []string{"plan", "--model", "gpt2-xl", "--gpus-per-node", "4", "--timeout", "9s", "--data", "nowhere"}
	p := train(t, 0, machine...)
	if p.Status != 0 || !regexp.MustCompile(`(?m)^\d+ parameters on 4 x H200 with 141 GB each; the fastest first\n  --shard \w+ --batch \d+ --global-batch 512 +\d+\.\d GB +\d+k to \d+k tokens/s$`).MatchString(p.Stdout) {
		t.Errorf("status %d:\n%s%s", p.Status, p.Stdout, p.Stderr)
	}
	p = train(t, 0, append(machine, "--format", "json", "--gpu", "A100:40")...)
	var plan run.Planned
	if err := json.Unmarshal([]byte(p.Stdout), &plan); err != nil || plan.GPU != "A100" || plan.Memory != 40e9 || len(plan.Proposals) == 0 || plan.Proposals[0].Bytes > 40e9 {
		t.Errorf("error %v:\n%s%s", err, p.Stdout, p.Stderr)
	}
	if p := train(t, 0, "plan", "--model", "gpt2-xl", "--gpu", "L4", "--batch", "64"); p.Status != 0 || !strings.Contains(p.Stdout, "no way fits: ") {
		t.Errorf("status %d:\n%s%s", p.Status, p.Stdout, p.Stderr)
	}
	for flags, want := range map[string]string{
		"--gpu X": "--gpu X: unknown, want one of ", "--nodes 0": "--nodes 0 --gpus-per-node 1: want from 1 to ", "--format x": "--format x: unknown, want text or json",
		"--dtype float32": "--dtype float32: what that takes on GPUs has not been measured", "--heads 7": "channels do not divide into 7 heads", "--nodes x": "invalid argument",
	} {
		p := train(t, 0, append([]string{"plan"}, strings.Fields(flags)...)...)
		if said, more, _ := strings.Cut(p.Stderr, "\n"); p.Status != 2 || more != "" || !strings.Contains(said, want) {
			t.Errorf("%s: status %d, want one line with %q:\n%s", flags, p.Status, want, p.Stderr)
		}
	}
}
