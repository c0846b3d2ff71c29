package main

import (
	"encoding/json"
	"fmt"
	rand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"lockstep/apps/train/traintest"
	"lockstep/spmd/spmdtest"
)

// The program of docs/modern.md finds the loss of exported weights that eval finds, in layers with a window, too.
func TestModernInPyTorch(t *testing.T) {
	spmdtest.Ranks(t, 1)
	if out, err := exec.Command("python3", "-c", "import torch, safetensors").CombinedOutput(); err != nil {
		t.Skipf("python3 cannot import torch and safetensors: %v\n%s", err, out)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "modern.md"))
	traintest.NoError(t, err)
	_, program, _ := strings.Cut(string(page), "```python\n")
	program, _, _ = strings.Cut(program, "```\n")
	dir, folder, where := t.TempDir(), filepath.Join(t.TempDir(), "folder"), t.TempDir()
	const seq = 512
	rng := rand.New(rand.NewPCG(1, 2))
	tokens := make([]uint16, 6*seq+1)
	for i := range tokens {
		tokens[i] = uint16(rng.IntN(300))
	}
	data := traintest.Write(t, where, "text.bin", traintest.GoodBin(tokens))
	finish(t, 0, "--model", "modern-tiny", "--layers", "5", "--heads", "2", "--channels", "32", "--seq", fmt.Sprint(seq), "--data", data, "--steps", "8",
		"--batch", "2", "--dtype", "float32", "--sample", "0", "--json", "-", "--checkpoint", dir)
	if p := train(t, 0, "export", dir, "--to", folder); p.Status != 0 {
		t.Fatalf("export: status %d\n%s", p.Status, p.Stderr)
	}
	p := train(t, 0, "eval", dir, "--data", data, "--dtype", "float32", "--json", "-")
	var ours evalRecord
	if err := json.Unmarshal([]byte(p.Stdout), &ours); p.Status != 0 || err != nil {
		t.Fatalf("eval: status %d, %v\n%s%s", p.Status, err, p.Stdout, p.Stderr)
	}
	given, err := json.Marshal(tokens)
	traintest.NoError(t, err)
	read := exec.Command("python3", filepath.Join("testdata", "modern_loss.py"), traintest.Write(t, where, "read.py", program), folder, fmt.Sprint(seq))
	read.Stdin, read.Stderr = strings.NewReader(string(given)), os.Stderr
	out, err := read.Output()
	if err != nil {
		t.Fatalf("PyTorch: %v", err)
	}
	theirs, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	if err != nil || !traintest.CloseTo(ours.Loss, theirs, 1e-3) {
		t.Errorf("a loss of %v, in PyTorch %v: %v", ours.Loss, theirs, err)
	}
	t.Logf("a loss of %v, in PyTorch %v", ours.Loss, theirs)
}
