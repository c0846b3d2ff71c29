package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/text"
	"lockstep/apps/train/traintest"
	"lockstep/spmd/spmdtest"
)

// Weights are trained on 3 ranks, exported, imported on 2, saved and exported again. They keep
// their bits, since the second run changes no weight.
func TestExport(t *testing.T) {
	spmdtest.Ranks(t, 3)
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	finishQuickly(t, 3, smallRun(t, 5, "--checkpoint", filepath.Join(dir, "a"))...)
	export := func(args ...string) spmdtest.Ended { return train(t, 0, append([]string{"export"}, args...)...) }
	if p := export(filepath.Join(dir, "a"), "--to", first); p.Status != 0 || !strings.Contains(p.Stderr, "exported") {
		t.Fatalf("status %d:\n%s", p.Status, p.Stderr)
	}
	text := traintest.Write(t, t.TempDir(), "text.txt", string(traintest.RandomWords(6000)))
	r, log := finishQuickly(t, 2, "--data", text, "--init-from", first, "--checkpoint", filepath.Join(dir, "b"),
		"--steps", "1", "--seq", "16", "--batch", "2",
		"--lr", "1e-45", "--weight-decay", "0", "--sample", "0", "--json", "-")
	if !strings.Contains(log, "model=first") || !strings.Contains(log, "channels=16") {
		t.Errorf("the log tells of another model:\n%s", log)
	}
	if r.summary.LossFirst > 5.4 { // ln 256 is what an untrained model has
		t.Errorf("loss %g with weights that have learned", r.summary.LossFirst)
	}
	if p := export("--to", second, "--checkpoint", filepath.Join(dir, "b")); p.Status != 0 {
		t.Fatalf("status %d:\n%s", p.Status, p.Stderr)
	}
	read := func(dir string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
		spmdtest.Must(t, err)
		return b
	}
	if !bytes.Equal(read(first), read(second)) {
		t.Error("exported, begun with and exported again the weights are others")
	}

	// A refused export leaves everything as it was.
	other := traintest.Write(t, t.TempDir(), "other.txt", "mine")
	empty := t.TempDir()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--to", second}, "--checkpoint is missing"},
		{[]string{filepath.Join(dir, "a")}, "--to is missing"},
		{[]string{filepath.Join(dir, "none"), "--to", second}, "none: no such folder"},
		{[]string{other, "--to", second}, "not a folder"},
		{[]string{empty, "--to", filepath.Join(dir, "x")}, "there is no checkpoint in it"},
		{[]string{filepath.Join(dir, "a"), "--to", filepath.Dir(other)}, "the folder holds other.txt"},
		{[]string{filepath.Join(dir, "a"), "--to", other}, "not a directory"},
		{[]string{filepath.Join(dir, "a"), "b", "--to", other}, `unexpected argument "b"`},
	} {
		p := export(c.args...)
		if p.Status != 2 || !strings.HasPrefix(p.Stderr, "train export: ") || strings.Count(p.Stderr, "\n") != 1 ||
			!strings.Contains(p.Stderr, c.want) {
			t.Errorf("export %v: status %d, want 2 and one line with %q:\n%s", c.args, p.Status, c.want, p.Stderr)
		}
	}
	for _, gone := range []string{"none", "x"} {
		if _, err := os.Stat(filepath.Join(dir, gone)); err == nil {
			t.Errorf("what was refused has made %s", gone)
		}
	}
	left := []string{"model-00001-of-00002.safetensors", "model.safetensors.index.json", "vocab.json", "merges.txt",
		"tokenizer.json", "pytorch_model.bin"}
	for _, name := range left { // of another model
		traintest.Write(t, filepath.Dir(other), name, "old")
	}
	if p := export(filepath.Join(dir, "a"), "--to", filepath.Dir(other), "--overwrite"); p.Status != 0 {
		t.Errorf("--overwrite: status %d:\n%s", p.Status, p.Stderr)
	}
	if b, err := os.ReadFile(other); err != nil || string(b) != "mine" ||
		!bytes.Equal(read(filepath.Dir(other)), read(first)) {
		t.Errorf("after --overwrite the other file holds %q, error %v", b, err)
	}
	for _, name := range left {
		if _, err := os.Stat(filepath.Join(filepath.Dir(other), name)); err == nil {
			t.Errorf("--overwrite leaves %s of the model that was there", name)
		}
	}
}

// A flag that does not fit the weights is refused in one line.
func TestInitFromFlags(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "weights")
	cfg := layout.Config{Layers: 2, Heads: 2, Channels: 8, SeqMax: 6, Vocab: 256}
	_, _, n := layout.Of(cfg)
	if _, err := layout.WriteFolder(dir, cfg, text.Bytes{}, make([]float32, n), nil, nil); err != nil {
		t.Fatal(err)
	}
	text := traintest.Write(t, t.TempDir(), "text.txt", strings.Repeat("some text ", 500))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--init-from", filepath.Join(dir, "none")}, "config.json: no such file"},
		{[]string{"--init-from", dir, "--model", "gpt2"}, "--model gpt2 has 12 layers"},
		{[]string{"--init-from", dir, "--layers", "3"}, "--layers 3, but"},
		{[]string{"--init-from", dir, "--seq", "7"}, "--seq 7, but the model"},
		{[]string{"--init-from", dir, "--tokens", "gpt2"}, "--tokens gpt2 are 50257"},
		{[]string{"--init-from", dir, "--tokens", "words"}, "--tokens words"},
	} {
		p := quickly(t, 0, append(c.args, "--data", text)...)
		if lines := ours(p.Stderr); p.Status != 2 || len(lines) != 1 || !strings.Contains(lines[0], c.want) {
			t.Errorf("train %v: status %d, want 2 and one line with %q:\n%s", c.args, p.Status, c.want, p.Stderr)
		}
	}
}
