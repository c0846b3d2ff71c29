package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/apps/train/text"
	"lockstep/apps/train/traintest"
	"lockstep/spmd/spmdtest"
)

// From one checkpoint, greedy and in float32, sample writes token for token what
// transformers writes from the exported weights. This holds with and without the end
// of a text before the prompt.
func TestSampleLikeTransformers(t *testing.T) {
	spmdtest.Ranks(t, 1)
	const count = 24
	if out, err := exec.Command("python3", "-c", "import torch, transformers").CombinedOutput(); err != nil {
		t.Skipf("python3 cannot import torch and transformers: %v\n%s", err, out)
	}
	dir, folder := t.TempDir(), filepath.Join(t.TempDir(), "folder")
	data := traintest.Write(t, t.TempDir(), "text.txt",
		strings.Repeat("func (r *Reader) Read(p []byte) (n int, err error) {\n\treturn r.read(p)\n}\n", 400))
	finish(t, 0, "--data", data, "--tokens", "gpt2", "--layers", "2", "--channels", "64", "--heads", "2", "--seq", "64",
		"--batch", "4", "--steps", "120",
		"--lr", "0.003", "--dtype", "float32", "--sample", "0", "--json", "-", "--checkpoint", dir)
	if p := train(t, 0, "export", dir, "--to", folder); p.Status != 0 {
		t.Fatalf("export: status %d\n%s", p.Status, p.Stderr)
	}
	const prompt = "func (r *Reader) Read("
	ids, err := text.TokensOf(text.NewGPT2(), prompt)
	spmdtest.Must(t, err)
	for _, within := range []bool{false, true} {
		args := []string{"sample", dir, "--prompt", prompt, "--temperature", "0", "--dtype", "float32", "--ignore-end",
			"--json", "-", "--max-tokens", fmt.Sprint(count)}
		before := []int32{text.GPT2End}
		if within {
			args, before = append(args, "--mid-document"), nil
		}
		p := train(t, 0, args...)
		var rec sampleRecord
		if err := json.Unmarshal([]byte(p.Stdout), &rec); p.Status != 0 || err != nil {
			t.Fatalf("sample: status %d, %v\n%s%s", p.Status, err, p.Stdout, p.Stderr)
		}
		given, err := json.Marshal(slices.Concat(before, ids))
		spmdtest.Must(t, err)
		out, err := exec.Command("python3", filepath.Join("testdata", "greedy.py"), folder, fmt.Sprint(count),
			string(given)).Output()
		if err != nil {
			t.Fatalf("transformers: %v", err)
		}
		var want []int32
		spmdtest.Must(t, json.Unmarshal(out, &want))
		if !slices.Equal(rec.IDs, want) {
			t.Errorf("in the middle of a document: %v: sample goes on with %v, transformers with %v",
				within, rec.IDs, want)
		}
	}
}
