package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"lockstep/apps/train/run"
	"lockstep/internal/testkit"
)

// `train plan` prints what run.Options.Plan proposes. It ignores the flags of every
// program, and refuses others.
func TestPlanCommand(t *testing.T) {
	besideOthers(t)
	machine := []string{"plan", "--model", "gpt2-xl", "--gpus-per-node", "4", "--timeout", "9s", "--data", "nowhere"}
	p := train(t, 0, machine...)
	if p.Status != 0 || !regexp.MustCompile(
		`(?m)^1\.48B parameters on 4 x H200 with 141 GB each; the fastest first\n  --shard \w+ --batch \d+ `+
			`--global-batch 512 +\d+\.\d GB +\d+k to \d+k tokens/s +messages \d+ to \d+ %$`).MatchString(p.Stdout) {
		t.Errorf("status %d:\n%s%s", p.Status, p.Stdout, p.Stderr)
	}
	p = train(t, 0, append(machine, "--format", "json", "--gpu", "A100:40")...)
	var plan run.Planned
	err := json.Unmarshal([]byte(p.Stdout), &plan)
	if err != nil || plan.GPU != "A100" || plan.Memory != 40e9 || len(plan.Proposals) == 0 ||
		plan.Proposals[0].Bytes > 40e9 {
		t.Errorf("error %v:\n%s%s", err, p.Stdout, p.Stderr)
	}
	if p := train(t, 0, "plan", "--model", "gpt2-xl", "--gpu", "L4", "--batch", "64"); p.Status != 0 ||
		!strings.Contains(p.Stdout, "no way fits: ") {
		t.Errorf("status %d:\n%s%s", p.Status, p.Stdout, p.Stderr)
	}
	for flags, want := range map[string]string{
		"--gpu X": "--gpu X: unknown, want one of ", "--nodes 0": "--nodes 0 --gpus-per-node 1: want from 1 to ",
		"--format x":      "--format x: unknown, want text or json",
		"--dtype float32": "--dtype float32: what that takes on GPUs has not been measured",
		"--heads 7":       "channels do not divide into 7 heads", "--nodes x": "invalid argument",
	} {
		p := train(t, 0, append([]string{"plan"}, strings.Fields(flags)...)...)
		if said, more, _ := strings.Cut(p.Stderr, "\n"); p.Status != 2 || more != "" || !strings.Contains(said, want) {
			t.Errorf("%s: status %d, want one line with %q:\n%s", flags, p.Status, want, p.Stderr)
		}
	}
}

// A number has three digits, and the next unit if they round up to it.
func TestThousands(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0", 12.34: "12.3", 999.4: "999", 999.6: "1k", 1234: "1.23k", 999_400: "999k", 999_600: "1M",
		45_678_000: "45.7M", 1_557_611_200: "1.56B", 174.6e9: "175B",
	} {
		if got := thousands(x); got != want {
			t.Errorf("%v is %q, want %q", x, got, want)
		}
	}
	var b strings.Builder
	p := run.Planned{GPU: "L4", Memory: 24e9, Ranks: 2, Params: 842_496,
		Proposals: []run.Proposal{{Flags: []string{"--batch", "4"}, Bytes: 3e9, Low: 1000, High: 1001,
			Messages: [2]float64{0.021, 0.021}},
			{Flags: []string{"--pp", "2"}, Bytes: 2e9, Low: 900, High: 950, Bubble: 0.126,
				Messages: [2]float64{0.05, 0.1}}}}
	testkit.Must(t, showPlan(&b, &p))
	if want := "842k parameters on 2 x L4 with 24 GB each; the fastest first\n" +
		"  --batch 4  3.0 GB  1k tokens/s          messages 2 %\n  --pp 2     2.0 GB  900 to 950 tokens/s  messages " +
		"5 to 10 %  bubble 13 %\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
