package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	rand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/text"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// The program of docs/modern.md finds the same loss of exported weights as eval,
// also in layers with a window.
func TestModernInPyTorch(t *testing.T) {
	spmdtest.Ranks(t, 1)
	python, program := modernInPyTorch(t)
	dir, folder, where := t.TempDir(), filepath.Join(t.TempDir(), "folder"), t.TempDir()
	const seq = 512
	rng := rand.New(rand.NewPCG(1, 2))
	tokens := make([]uint16, 6*seq+1)
	for i := range tokens {
		tokens[i] = uint16(rng.IntN(300))
	}
	data := traintest.Write(t, where, "text.bin", traintest.GoodBin(tokens))
	finish(t, 0, "--model", "modern-tiny", "--layers", "5", "--heads", "2", "--channels", "32", "--seq",
		fmt.Sprint(seq), "--data", data, "--steps", "8",
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
	read := exec.Command(python, filepath.Join("testdata", "modern_loss.py"), program, folder, fmt.Sprint(seq))
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

// modernInPyTorch finds Python and writes the program of docs/modern.md. It skips the
// test if Python lacks a module.
func modernInPyTorch(t *testing.T) (python, program string) {
	t.Helper()
	const found = "LOCKSTEP_TEST_PYTHON" // set by the parent process, since mpirun puts its own folder first
	if python = os.Getenv(found); python == "" {
		var err error
		if python, err = exec.LookPath("python3"); err != nil {
			t.Skip(err)
		}
		t.Setenv(found, python)
	}
	if out, err := exec.Command(python, "-c", "import torch, safetensors").CombinedOutput(); err != nil {
		t.Skipf("%s cannot import torch and safetensors: %v\n%s", python, err, out)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "modern.md"))
	traintest.NoError(t, err)
	_, program, _ = strings.Cut(string(page), "```python\n")
	program, _, _ = strings.Cut(program, "```\n")
	return python, traintest.Write(t, t.TempDir(), "read.py", program)
}

// Loss and gradients are those of PyTorch in float64 from the same weights and batch. Each tensor
// is compared by its norm, its direction, and its worst element.
func TestModernGradientsInPyTorch(t *testing.T) {
	python, program := modernInPyTorch(t)
	traintest.OnBoth(t, []int{1}, func(t *testing.T, w *spmd.World) {
		gradientsInPyTorch[float32](t, w, python, program)
	},
		func(t *testing.T, w *spmd.World) { gradientsInPyTorch[spmd.BF16](t, w, python, program) })
}

func gradientsInPyTorch[A ops.Act](t *testing.T, w *spmd.World, python, program string) {
	type shape struct {
		cfg    layout.Config
		tokens text.Tokenizer
	}
	shapes := []shape{{layout.Config{Layers: 5, Heads: 2, Channels: 64, SeqMax: 512,
		Parts: layout.Presets["modern"].Parts}, text.Bytes{}}}
	if !w.OnHost() {
		shapes = append(shapes, shape{layout.Presets["modern"], text.NewGPT2()})
	}
	most := apartness{norm: 1e-3, turn: 1e-5, worst: 1e-2}
	if ops.IsHalf[A]() {
		most = apartness{norm: 0.03, turn: 0.01, worst: 0.3}
	}
	for _, x := range shapes {
		x.cfg.Vocab = x.tokens.IDs()
		const batch = 2
		m, err := gpt.NewModel[A](w, x.cfg, batch, x.cfg.SeqMax)
		traintest.NoError(t, err)
		s := spmdtest.Stream(t, w, "test")
		traintest.NoError(t, m.Init(1), m.Refresh(s), s.Synchronize())
		dir := t.TempDir()
		_, err = layout.WriteFolder(dir, x.cfg, x.tokens, traintest.ValuesOf(t, m.Weights), nil, nil)
		traintest.NoError(t, err)
		var sequences [][]int32
		var in, targets []int32
		for i := range batch {
			tokens := traintest.RandomTokens(x.cfg.SeqMax+1, x.cfg.Vocab, uint64(i))
			sequences = append(sequences, tokens)
			in = append(in, tokens[:x.cfg.SeqMax]...)
			targets = append(targets, tokens[1:]...)
		}
		list := make([]int32, ops.SortedLen(len(in), x.cfg.Vocab))
		new(ops.Sorter).Sort(list, in, x.cfg.Vocab)
		b := gpt.Batch{In: traintest.BufferOf(t, w, in), Targets: traintest.BufferOf(t, w, targets),
			Sorted: traintest.BufferOf(t, w, list), B: batch, T: x.cfg.SeqMax}
		traintest.NoError(t, m.ForwardBackward(s, b, 1/float32(len(in)), true, nil), s.Synchronize())
		theirs := runInPyTorch(t, python, program, dir, sequences)
		if !traintest.CloseTo(m.Loss.At(0), theirs.loss, traintest.BoundsOf(w, ops.IsHalf[A]()).Loss) {
			t.Errorf("%d layers of %d channels: a loss of %v, in PyTorch %v",
				x.cfg.Layers, x.cfg.Channels, m.Loss.At(0), theirs.loss)
		}
		ours, mine, vectors := traintest.ValuesOf(t, m.Grads), []float32{}, []float32{}
		for _, p := range m.Params {
			want := theirs.grads[p.Name]
			if !p.Decay { // one by one they may be near 0 by chance
				mine, vectors = append(mine, ours[p.Off:p.Off+p.Len]...), append(vectors, want...)
				continue
			}
			apart(t, p.Name, ours[p.Off:p.Off+len(want)], want, most)
		}
		apart(t, "vectors", mine, vectors, most)
		traintest.NoError(t, m.Close())
	}
}

// apartness is how far two tensors are apart: the ratio of their norms, 1 less the cosine between
// them, and their worst element in units of the largest.
type apartness struct{ norm, turn, worst float64 }

// apart measures a tensor, and fails if it is too far off.
func apart(t *testing.T, name string, got, want []float32, most apartness) {
	t.Helper()
	if len(got) != len(want) || len(want) == 0 {
		t.Errorf("%s: %d numbers, in PyTorch %d", name, len(got), len(want))
		return
	}
	gg, ww, gw, off, largest := 0.0, 0.0, 0.0, 0.0, 0.0
	for i, x := range want {
		g, w := float64(got[i]), float64(x)
		gg, ww, gw = gg+g*g, ww+w*w, gw+g*w
		off, largest = max(off, math.Abs(g-w)), max(largest, math.Abs(w))
	}
	is := apartness{math.Abs(math.Sqrt(gg/ww) - 1), 1 - gw/math.Sqrt(gg*ww), off / largest}
	t.Logf("%-26s norm %.4g, off by %.1e; 1 - cosine %.1e; worst element %.1e of the largest",
		name, math.Sqrt(ww), is.norm, is.turn, is.worst)
	if !(is.norm <= most.norm && is.turn <= most.turn && is.worst <= most.worst) { // NaN is too far
		t.Errorf("%s: %+v, at most %+v", name, is, most)
	}
}

// inPyTorch is a loss and its gradients, by the names of tensors.
type inPyTorch struct {
	loss  float64
	grads map[string][]float32
}

// runInPyTorch returns what PyTorch finds for the weights in a folder.
func runInPyTorch(t *testing.T, python, program, folder string, sequences [][]int32) inPyTorch {
	t.Helper()
	given, err := json.Marshal(sequences)
	traintest.NoError(t, err)
	file := filepath.Join(t.TempDir(), "gradients")
	cmd := exec.Command(python, filepath.Join("testdata", "modern_gradients.py"), program, folder, file)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(given), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("PyTorch: %v", err)
	}
	var told struct {
		Loss    float64
		Tensors []struct {
			Name string
			Len  int
		}
	}
	traintest.NoError(t, json.Unmarshal(out, &told))
	numbers, err := os.ReadFile(file)
	traintest.NoError(t, err)
	x := inPyTorch{told.Loss, map[string][]float32{}}
	for _, tensor := range told.Tensors {
		v := make([]float32, tensor.Len)
		for i := range v {
			v[i] = math.Float32frombits(binary.LittleEndian.Uint32(numbers[4*i:]))
		}
		x.grads[tensor.Name], numbers = v, numbers[4*len(v):]
	}
	return x
}
