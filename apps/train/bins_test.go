package main

import (
	"fmt"
	rand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/apps/train/text"
	"lockstep/apps/train/traintest"
	"lockstep/spmd/spmdtest"
)

// A run learns from llm.c's files as it does from the text that they were made from: the losses are
// the same on any number of files and ranks. Files that it cannot use are refused.
func TestBinData(t *testing.T) {
	besideOthers(t)
	spmdtest.Ranks(t, 3)
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("func return if else for range int string error nil package import")
	var some strings.Builder
	for range 6000 {
		some.WriteString(words[rng.IntN(len(words))] + " ")
	}
	plain := traintest.Write(t, dir, "text.txt", some.String())
	ids, err := text.TokensOf(text.NewGPT2(), some.String())
	spmdtest.Must(t, err)
	var tokens []uint16
	for _, id := range append(ids, text.GPT2End) {
		tokens = append(tokens, uint16(id))
	}
	traintest.Write(t, dir, "part_000.bin", traintest.GoodBin(tokens[:1000]))
	traintest.Write(t, dir, "part_001.bin", traintest.GoodBin(tokens[1000:1001]))
	traintest.Write(t, dir, "part_002.bin", traintest.GoodBin(tokens[1001:]))
	all := traintest.Write(t, dir, "all.bin", traintest.GoodBin(tokens))
	written := filepath.Join(dir, "written.bin")
	for _, more := range []string{"--summary=off", "--overwrite"} { // whatever flag: the first file is not there yet
		if p := quickly(t, 1, "tokens", "--data", plain, "--to", written, more); p.Status != 0 {
			t.Fatalf("train tokens: status %d\n%s", p.Status, p.Stderr)
		}
		got, err := os.ReadFile(written)
		if err != nil || string(got) != string(traintest.GoodBin(tokens)) {
			t.Errorf("train tokens wrote %d bytes, which are not the %d tokens of the text: %v",
				len(got), len(tokens), err)
		}
	}
	args := func(more ...string) []string {
		return append([]string{"--steps", "3", "--layers", "1", "--channels", "8", "--heads", "2", "--seq", "16",
			"--batch", "2", "--global-batch", "5", "--sample", "0", "--json", "-", "--dtype", "float32"}, more...)
	}
	want, _ := finishQuickly(t, 1, args("--data", plain, "--tokens", "gpt2")...)
	one, _ := finishQuickly(t, 1, args("--data", filepath.Join(dir, "part_*.bin"))...)
	compareRuns(t, one, want, 0, 0)
	three, log := finishQuickly(t, 3, args("--data", filepath.Join(dir, "part_*.bin"), "--tokens", "gpt2")...)
	compareRuns(t, three, want, 0, 1e-4)
	line := fmt.Sprintf("files=3 tokens=%d from=\"%s and 2 more\"", len(tokens), filepath.Join(dir, "part_000.bin"))
	if !strings.Contains(log, line) {
		t.Errorf("no line with %s:\n%s", line, log)
	}

	// With validation data of its own the run learns from all of --data.
	_, log = finishQuickly(t, 2, args("--data", all, "--val-data", filepath.Join(dir, "part_000.bin"))...)
	if !strings.Contains(log, fmt.Sprintf("train_tokens=%d", len(tokens))) ||
		!strings.Contains(log, "val_tokens=1000") {
		t.Errorf("the data are divided otherwise:\n%s", log)
	}
	finishQuickly(t, 2, args("--data", all, "--val-data", plain)...)

	outside := slices.Clone(tokens)
	outside[1500] = 50257
	bad := traintest.Write(t, dir, "outside.bin", traintest.GoodBin(outside))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--data", bad}, "outside.bin: token 50257 at place 1500 is outside GPT-2's vocabulary of 50257"},
		{[]string{"--data", all, "--data", plain}, "do not go together"},
		{[]string{"--data", all, "--tokens", "bytes"}, "--tokens bytes: token files (.bin) hold GPT-2's"},
		{[]string{"--data", plain, "--val-data", all, "--tokens", "bytes"}, "--tokens bytes"},
		{[]string{"--data", traintest.Write(t, dir, "text.bin", some.String())}, "text.bin: not a token file of llm.c"},
		{[]string{"--data", all, "--val-data", filepath.Join(dir, "none.bin")},
			"--val-data " + filepath.Join(dir, "none.bin") + ": no such file"},
		{[]string{"--data", all, "--val-data", bad}, "--val-data " + bad + ": token 50257"},
		{[]string{"--data", all, "--val-data", filepath.Join(dir, "part_001.bin")}, "one sequence to validate on 17"},
	} {
		p := quickly(t, 3, args(c.args...)...)
		if lines := ours(p.Stderr); p.Status != 2 || len(lines) != 1 || !strings.Contains(lines[0], c.want) {
			t.Errorf("train %v: status %d, want 2 and one line with %q:\n%s", c.args, p.Status, c.want, p.Stderr)
		}
	}
	for _, c := range []struct {
		ranks int
		args  []string
		want  string
	}{
		{1, []string{"--data", plain, "--to", written},
			"written.bin is there already: give another name, or --overwrite to replace it"},
		{1, []string{"--data", plain}, "--to is missing"},
		{2, []string{"--data", plain, "--to", filepath.Join(dir, "two.bin")}, "tokens runs on one rank, not on 2"},
	} {
		p := quickly(t, c.ranks, append([]string{"tokens"}, c.args...)...)
		if p.Status != 2 || strings.Count(p.Stderr, "train tokens: ") != 1 || !strings.Contains(p.Stderr, c.want) {
			t.Errorf("train tokens %v: status %d, want 2 and one line with %q:\n%s", c.args, p.Status, c.want, p.Stderr)
		}
	}
}
