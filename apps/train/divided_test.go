package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockstep/apps/train/traintest"
	"lockstep/internal/testkit"
	"lockstep/spmd/spmdtest"
)

// A run with a divided model goes on in another form and on other ranks. Its losses are those of
// an undivided run, and have the same bits in the same form. A few forms go through MPI; the
// others write the same files.
func TestDividedResume(t *testing.T) {
	spmdtest.HostOnly(t, "no device plays a part")
	const bound = 1e-4
	args := append(smallRun(t, 7, "--val-every", "3"), "--layers", "3", "--heads", "6", "--channels", "24")
	want, _ := finishQuickly(t, 2, args...)
	type form struct {
		ranks     int
		processes bool
		flags     string
	}
	forms := []form{{2, false, "--pp 2"}, {4, true, "--pp 2 --shard gradients"}, {3, false, "--pp 3 --recompute block"},
		{4, false, "--pp 2"}, {2, false, ""},
		{4, false, "--pp 2 --shard parameters"}, {2, false, "--tp 2"}, {4, true, "--dp 2 --tp 2 --shard parameters"},
		{4, true, "--tp 2 --pp 2 --recompute block"}, {3, true, "--tp 3"}, {4, false, "--tp 2 --shard optimizer"}}
	kinds := []string{"--pp 3 --recompute block", "--tp 2 --pp 2 --recompute block", "--tp 2 --shard optimizer"}
	for i, form := range testkit.Some(t, "divisions of a run that resumes", forms,
		func(f form) bool { return slices.Contains(kinds, f.flags) }) {
		t.Run(fmt.Sprintf("%s on %d", form.flags, form.ranks), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			with := append(args, strings.Fields(form.flags)...)
			whole, log := finishOn(t, form.ranks, form.processes,
				append(with, "--checkpoint", dir, "--save-every", "3", "--keep", "9")...)
			compareRuns(t, whole, want, 0, bound)
			if strings.Contains(form.flags, "--pp") &&
				(!regexp.MustCompile(`bubble="\d+ %"`).MatchString(log) ||
					!strings.Contains(log, " layers_of_stages=")) {
				t.Errorf("the log does not tell of stages:\n%s", log)
			}
			same, _ := finishOn(t, form.ranks, form.processes,
				append(with, "--graph", "on", "--checkpoint", only(t, dir, 3), "--resume", "must")...)
			compareRuns(t, same, whole, 3, 0)
			next := [...]string{"--pp 3", "--tp 3", "--tp 2 --shard optimizer"}[i%3]
			other, log := finishOn(t, []int{3, 3, 4}[i%3], false,
				append(append(args, strings.Fields(next)...), "--checkpoint", only(t, dir, 3), "--resume", "must")...)
			compareRuns(t, other, want, 3, bound)
			if strings.Contains(log, "another setting") {
				t.Errorf("other stages are told as another setting:\n%s", log)
			}
		})
	}
}

// A checkpoint of divided layers and a divided vocabulary serves every command. Weights of a folder
// come to the ranks that have them.
func TestDividedWeights(t *testing.T) {
	spmdtest.HostOnly(t, "no device plays a part")
	dir := t.TempDir()
	run, folder := filepath.Join(dir, "a"), filepath.Join(dir, "weights")
	args := smallRun(t, 3, "--val-batches", "1", "--dtype", "float32")
	text := args[slices.Index(args, "--data")+1]
	divided, _ := finishQuickly(t, 3,
		append(args, "--heads", "6", "--channels", "24", "--tp", "3", "--checkpoint", run)...)
	p := quickly(t, 2, "eval", run, "--data", text, "--part", "val", "--sequences", "5", "--dtype", "float32", "--json",
		"-")
	var told evalRecord
	err := json.Unmarshal([]byte(p.Stdout), &told)
	if err != nil || !traintest.CloseTo(told.Loss, *divided.summary.ValLoss, 1e-5) {
		t.Errorf("eval has loss %g, the run %g, error %v:\n%s", told.Loss, *divided.summary.ValLoss, err, p.Stderr)
	}
	if p := quickly(t, 0, "sample", run, "--max-tokens", "5", "--ignore-end"); p.Status != 0 || len(p.Stdout) < 5 {
		t.Errorf("sample: status %d, %q, stderr:\n%s", p.Status, p.Stdout, p.Stderr)
	}
	if p := quickly(t, 0, "export", run, "--to", folder); p.Status != 0 {
		t.Fatalf("export: status %d, stderr:\n%s", p.Status, p.Stderr)
	}
	args = []string{"--data", text, "--init-from", folder, "--steps", "2", "--seq", "16", "--batch", "2",
		"--global-batch", "5", "--val-batches", "1", "--sample", "0", "--json", "-"}
	want, _ := finishQuickly(t, 2, args...)
	for ranks, flags := range map[int]string{3: "--tp 3", 4: "--tp 2 --shard parameters"} {
		got, _ := finishQuickly(t, ranks, append(args, strings.Fields(flags)...)...)
		compareRuns(t, got, want, 0, 1e-4)
	}
}

// A run with a summary or a trace measures how long stages wait, and logs it
// beside the calculated time.
func TestIdleTold(t *testing.T) {
	for _, tc := range []struct {
		ranks, stages int
		flags         string
	}{
		{3, 3, "--summary on"}, {4, 2, "--summary on --graph off"},
		{2, 2, "--summary off --trace " + filepath.Join(t.TempDir(), "trace.json")}, {2, 0, "--summary off"},
	} {
		spmdtest.Ranks(t, tc.ranks)
		args := append(smallRun(t, 4, "--val-batches", "0", "--layers", "3", "--global-batch", "8", "--batch", "1",
			"--pp", fmt.Sprint(max(2, tc.stages))), strings.Fields(tc.flags)...)
		run, log := finish(t, tc.ranks, args...)
		idle := run.summary.Idle
		if len(idle) != tc.stages || slices.ContainsFunc(idle,
			func(part float64) bool { return !(part >= 0 && part < 1) }) {
			t.Errorf("%s: stages wait %v of the time, want %d numbers", tc.flags, idle, tc.stages)
		}
		told := regexp.MustCompile(`bubble of the pipeline: \d+ % calculated, \d+ % measured; ` +
			`by stage \d+ %(, \d+ %)+`).MatchString(log)
		if told != strings.Contains(tc.flags, "--summary on") ||
			strings.Contains(log, " bubble_measured=") != (tc.stages > 0) {
			t.Errorf("%s: the summary tells %v:\n%s", tc.flags, told, log)
		}
	}
}

// Divisions that are impossible are refused in one line before the start.
func TestDividedRefused(t *testing.T) {
	besideOthers(t)
	spmdtest.Ranks(t, 4)
	for _, tc := range []struct{ flags, want string }{
		{"--pp 3", "--pp 3: 3 ranks have a part of a replica each, which does not divide the 4 ranks"},
		{"--dp 1 --tp 2", "--dp 1 --tp 2: that is 2 ranks, and there are 4"},
		{"--tp 2 --pp 3", "--tp 2 --pp 3: 6 ranks have a part of a replica"},
		{"--tp 4 --heads 6 --channels 24", "--tp 4 does not divide the 6 heads: 1, 2, 3, 6 do"},
		{"--tp 4 --fp8 all --dtype bfloat16 --heads 4 --channels 32",
			"--tp 4: 8 channels a rank, which products of 8-bit floats take in multiples of 16"},
		{"--pp 2 --global-batch 1", "--global-batch 1 is less than the 2 replicas of the model"},
		{"--pp 2 --sample 5", "--sample 5 does not go with --pp 2"},
	} {
		p := quickly(t, 4, append(append(smallRun(t, 1), "--layers", "3"), strings.Fields(tc.flags)...)...)
		if lines := ours(p.Stderr); p.Status != 2 || len(lines) != 1 || !strings.Contains(lines[0], tc.want) {
			t.Errorf("%s: status %d, want one line with %q:\n%s", tc.flags, p.Status, tc.want, p.Stderr)
		}
	}
}
