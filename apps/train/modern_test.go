package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/apps/train/traintest"
	"lockstep/internal/testkit"
	"lockstep/spmd/spmdtest"
)

// modernRun is a small modern model, trained by Muon.
var modernRun = []string{"--model", "modern-tiny", "--layers", "3", "--heads", "2", "--channels", "32", "--seq", "24",
	"--batch", "2", "--global-batch", "8", "--sample", "0", "--json", "-"}

// A modern model learns on any number of ranks. A resumed run has the bits of an uninterrupted one.
// The checkpoint alone gives its loss and text, and its weights can be exported and imported.
func TestModern(t *testing.T) {
	besideOthers(t)
	spmdtest.Ranks(t, 3)
	const sentence = "abcdefghijklmnop\n"
	text := traintest.Write(t, t.TempDir(), "text.txt", strings.Repeat(sentence, 400))
	for _, dtype := range testkit.Some(t, "types of a modern model", []string{"float32", "bfloat16"},
		func(dtype string) bool { return dtype == "float32" }) {
		args := append([]string{"--data", text, "--steps", "40", "--val-every", "20", "--dtype", dtype, "--grow-batch",
			"3"}, modernRun...)
		var alone told
		for _, ranks := range []int{1, 3} {
			dir, args := t.TempDir(), args
			if ranks > 1 {
				args = append(args, "--shard", "parameters", "--recompute", "block")
			}
			r, log := finishOn(t, ranks, false, append(args, "--checkpoint", dir, "--save-every", "20")...)
			if !strings.Contains(log, "optimizer=muon") || !strings.Contains(log, "parts=modern,qk-norm") {
				t.Errorf("the log does not tell of the model and its optimizer:\n%s", log)
			}
			if !(*r.summary.ValLoss < 1.5) { // untrained it is 5.5
				t.Errorf("%s, %d ranks: the loss is %g after 40 steps on one sentence",
					dtype, ranks, *r.summary.ValLoss)
			}
			if alone.summary == nil {
				alone = r
			} else if first, want := r.steps[0].Loss, alone.steps[0].Loss; !traintest.CloseTo(first, want, 1e-3) {
				t.Errorf("%s: the first step's loss is %g on %d ranks, %g on one", dtype, first, ranks, want)
			}
			if n, want := r.summary.Tokens, (14*3+13*6+13*8)*24; n != want || r.steps[13].Tokens != 14*3*24 {
				t.Errorf("%s, %d ranks: %d tokens in steps that grow, want %d; %d in the smallest",
					dtype, ranks, n, want, r.steps[13].Tokens)
			}
			again, _ := finishOn(t, ranks, false, append(args, "--checkpoint", only(t, dir, 20), "--resume", "must")...)
			compareRuns(t, again, r, 20, 0)
			if ranks > 1 {
				elsewhere, _ := finishOn(t, 1, true,
					append(args, "--shard", "off", "--checkpoint", only(t, dir, 20), "--resume", "must")...)
				compareRuns(t, elsewhere, r, 20, 2e-2) // Muon turns a rounding of small gradients into a whole step
			}
			if ranks > 1 && dtype == "float32" {
				checkModernCommands(t, dir, text, *r.summary.ValLoss)
			}
		}
	}
}

// checkModernCommands checks the commands that read a checkpoint.
func checkModernCommands(t *testing.T, dir, text string, loss float64) {
	t.Helper()
	const sentence = "abcdefghijklmnop\n"
	if p := quickly(t, 0, "sample", dir, "--prompt", sentence+"abc", "--max-tokens", "20", "--temperature",
		"0"); p.Status != 0 || !strings.HasPrefix(p.Stdout, sentence+sentence) {
		t.Errorf("sample: status %d, wrote %q:\n%s", p.Status, p.Stdout, p.Stderr)
	}
	p := quickly(t, 2, "eval", dir, "--data", text, "--part", "val", "--dtype", "float32")
	if p.Status != 0 || !strings.Contains(p.Stderr, fmt.Sprintf("loss=%.4f", loss)) {
		t.Errorf("eval: status %d, want a loss of %g:\n%s", p.Status, loss, p.Stderr)
	}
	first, second, next := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second"), t.TempDir()
	export := func(from, to string) {
		t.Helper()
		if p := quickly(t, 0, "export", from, "--to", to); p.Status != 0 {
			t.Fatalf("export: status %d:\n%s", p.Status, p.Stderr)
		}
	}
	export(dir, first)
	finishQuickly(t, 2, "--data", text, "--init-from", first, "--checkpoint", next, "--steps", "1", "--seq", "24",
		"--batch", "2", "--lr", "1e-45", "--embed-lr", "0",
		"--head-lr", "0", "--vector-lr", "0", "--sample", "0", "--json", "-")
	export(next, second)
	read := func(dir string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
		traintest.NoError(t, err)
		return b
	}
	if !bytes.Equal(read(first), read(second)) {
		t.Error("exported, begun with and exported again the weights are others")
	}
	config, err := os.ReadFile(filepath.Join(first, "config.json"))
	traintest.NoError(t, err)
	other := t.TempDir()
	traintest.Write(t, other, "config.json", strings.Replace(string(config), "0.12", "0.125", 1))
	traintest.NoError(t, os.WriteFile(filepath.Join(other, "model.safetensors"), read(first), 0o666))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--init-from", other}, "the model is another one"},
		{[]string{"--init-from", first, "--model", "tiny"}, "--model tiny is made of gpt2"},
		{[]string{"--init-from", first, "--without", "skips"}, "--without: the model in --init-from"},
		{[]string{"--model", "tiny", "--checkpoint", dir}, `parts is "gpt2"`},
		{append(modernRun, "--optimizer", "adamw", "--checkpoint", dir), `--optimizer is "adamw"`},
		{append(modernRun, "--without", "skips", "--checkpoint", dir), `parts is`},
	} {
		p := quickly(t, 0, append([]string{"--data", text, "--cache", t.TempDir()}, c.args...)...)
		if lines := ours(p.Stderr); p.Status != 2 || len(lines) != 1 || !strings.Contains(lines[0], c.want) {
			t.Errorf("%v: status %d, want 2 and one line with %q:\n%s", c.args, p.Status, c.want, p.Stderr)
		}
	}
}

// A modern model at too high a rate ends with one line, though its norms
// shrink every finite stream.
func TestModernDiverges(t *testing.T) {
	besideOthers(t)
	text := traintest.Write(t, t.TempDir(), "text.txt", string(traintest.RandomWords(6000)))
	for _, ranks := range []int{0, 3} {
		p := train(t, ranks, append([]string{"--data", text, "--steps", "20", "--lr", "1e30"}, modernRun...)...)
		if p.Status != 1 || !strings.Contains(p.Stderr, "is not finite") {
			t.Errorf("%d ranks: status %d, want 1 and a message of what is not finite:\n%s", ranks, p.Status, p.Stderr)
		}
	}
}

// A flag that does not fit a modern model or Muon is refused in one line that says which does.
func TestModernRefuses(t *testing.T) {
	besideOthers(t)
	text := traintest.Write(t, t.TempDir(), "text.txt", "a text")
	for _, c := range []struct {
		args  string
		wants []string
	}{
		{"--model modern --tp 2", []string{"--tp 2", "--shard parameters and --recompute block"}},
		{"--model modern --pp 2", []string{"--pp 2", "in another stage", "--shard parameters and --recompute block"}},
		{"--model modern-tiny --heads 32", []string{"multiple of 8"}},
		{"--model modern-tiny --heads 2 --channels 4096", []string{"modern"}},
		{"--model modern --without sauce", []string{"--without", "qk-norm, values, skips, windows"}},
		{"--model gpt2 --without skips", []string{"--without", "gpt2"}},
		{"--optimizer muon --tp 2", []string{"--tp 2", "adamw", "--pp and --shard"}},
		{"--optimizer sgd", []string{"--optimizer sgd", "adamw or muon"}},
		{"--grow-batch 5", []string{"--grow-batch 5", "4 sequences of --global-batch"}},
		{"--model modern --grow-batch 4 --global-batch 3", []string{"--grow-batch 4", "3 sequences"}},
		{"--schedule step", []string{"--schedule step", "cosine or wsd"}},
		{"--head-lr 0.1", []string{"--head-lr", "muon"}},
		{"--optimizer muon --embed-lr -1", []string{"--embed-lr -1"}},
	} {
		p := train(t, 0, append(strings.Fields(c.args), "--data", text)...)
		lines := ours(p.Stderr)
		if p.Status != 2 || len(lines) != 1 {
			t.Errorf("%s: status %d, want 2 and one line:\n%s", c.args, p.Status, p.Stderr)
			continue
		}
		for _, want := range c.wants {
			if !strings.Contains(lines[0], want) {
				t.Errorf("%s: %q does not say %q", c.args, lines[0], want)
			}
		}
	}
}
