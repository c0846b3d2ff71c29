package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/apps/train/traintest"
	"lockstep/cuda/nvrtc"
	"lockstep/spmd/spmdtest"
)

func TestMain(m *testing.M) { spmdtest.Main(m, main) }

// train runs the program on some ranks, or without mpirun if ranks is 0. The program finds no Go
// toolchain, and has a cache of its own. On a GPU it keeps the user's environment for the
// algorithms of products, since runs have equal bits only with equal algorithms.
func train(t *testing.T, ranks int, args ...string) spmdtest.Ended {
	t.Helper()
	env := []string{"HOME=", "GOROOT=", "PATH=" + filepath.Dir(lookPath(t, "mpirun")), "XDG_CACHE_HOME=" + t.TempDir()}
	if spmdtest.Device() != "host" {
		env = append(env, "LOCKSTEP_CACHE="+nvrtc.DefaultCache().Dir)
	}
	return spmdtest.Program(t, ranks, env, args...)
}

func lookPath(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	spmdtest.Must(t, err)
	return path
}

// ours returns the lines of the program itself, without mpirun's.
func ours(stderr string) []string {
	var lines []string
	for line := range strings.Lines(stderr) {
		if strings.HasPrefix(line, "train: ") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}

// Each command line is refused with status 2 and one line that names the fault.
func TestBadFlags(t *testing.T) {
	besideOthers(t)
	dir := t.TempDir()
	text := traintest.Write(t, dir, "text.txt", strings.Repeat("some text ", 500))
	empty := traintest.Write(t, dir, "empty.txt", "")
	short := traintest.Write(t, dir, "short.txt", "a few bytes")
	for _, c := range []struct {
		args  []string
		wants []string // parts of the line
	}{
		{[]string{"--no-such-flag"}, []string{"no-such-flag"}},
		{[]string{"--steps", "many"}, []string{"steps", "many"}},
		{[]string{"stray"}, []string{"stray"}},
		{[]string{"smaple", dir, "--prompt", "x"}, []string{`unknown command "smaple"; did you mean sample?`}},
		{[]string{"--model", "gpt5"}, []string{"--model gpt5", "gpt2-xl"}},
		{[]string{"--tokens", "words"}, []string{"--tokens words"}},
		{[]string{"--dtype", "float16"}, []string{"--dtype float16", "bfloat16"}},
		{[]string{"--fp8", "yes"}, []string{"--fp8 yes", "off, head or all"}},
		{[]string{"--fp8", "all", "--dtype", "float32"}, []string{"--fp8 all needs --dtype bfloat16"}},
		{[]string{"--data", text, "--fp8", "all", "--channels", "24", "--heads", "2"},
			[]string{"24 channels", "multiples of 16"}},
		{[]string{"--data", text, "--fp8", "head", "--device", "host"}, []string{"--fp8 head needs a GPU"}},
		{[]string{"--shard", "all"}, []string{"--shard all", "off, optimizer, gradients or parameters"}},
		{[]string{"--recompute", "all"}, []string{"--recompute all", "off, gelu or block"}},
		{[]string{"--tp", "0"}, []string{"--tp 0: must be at least 1"}},
		{[]string{"--data", text, "--dp", "2"}, []string{"--dp 2: that is 2 ranks, and there are 1"}},
		{[]string{"--balance", "time"}, []string{"--balance time", "auto, measured or rates"}},
		{[]string{"--data", text, "--balance", "measured"}, []string{"--balance measured has no meaning without --pp"}},
		{[]string{"--pp", "0"}, []string{"--pp 0: must be at least 1"}},
		{[]string{"--data", text, "--pp", "5", "--layers", "4"},
			[]string{"--pp 5: the model has 4 layers, and each stage needs one"}},
		{[]string{"--data", text, "--pp", "2"}, []string{"--pp 2: 2 ranks have a part"}},
		{[]string{"--graph", "yes"}, []string{"--graph yes", "auto, on or off"}},
		{[]string{"--dtype", ""}, []string{"--dtype", "bfloat16"}},
		{[]string{"--steps", "0"}, []string{"--steps 0"}},
		{[]string{"--batch", "-1"}, []string{"--batch -1"}},
		{[]string{"--global-batch", "0"}, []string{"--global-batch 0"}},
		{[]string{"--seq", "0"}, []string{"--seq 0"}},
		{[]string{"--layers", "0"}, []string{"--layers 0"}},
		{[]string{"--heads", "-4"}, []string{"--heads -4"}},
		{[]string{"--channels", "0"}, []string{"--channels 0"}},
		{[]string{"--heads", "3"}, []string{"--heads 3", "128"}},
		{[]string{"--channels", "130"}, []string{"--heads 4", "130"}},
		{[]string{"--data", text, "--layers", "100000000"}, []string{"layers", "100000000"}},
		{[]string{"--steps", "99999999999"}, []string{"--steps 99999999999"}},
		{[]string{"--steps", "10", "--warmup-steps", "11"}, []string{"--warmup-steps 11", "--steps 10"}},
		{[]string{"--warmup-steps", "-1"}, []string{"--warmup-steps -1"}},
		{[]string{"--lr", "0"}, []string{"--lr 0"}},
		{[]string{"--lr", "nan"}, []string{"--lr NaN"}},
		{[]string{"--lr", "inf"}, []string{"--lr +Inf"}},
		{[]string{"--min-lr", "1.5"}, []string{"--min-lr 1.5"}},
		{[]string{"--weight-decay", "-0.1"}, []string{"--weight-decay -0.1"}},
		{[]string{"--clip", "-1"}, []string{"--clip -1"}},
		{[]string{"--beta1", "1"}, []string{"--beta1 1"}},
		{[]string{"--beta2", "nan"}, []string{"--beta2 NaN"}},
		{[]string{"--temperature", "-1"}, []string{"--temperature -1"}},
		{[]string{"--sample", "-1"}, []string{"--sample -1"}},
		{[]string{"--val-every", "-1"}, []string{"--val-every -1"}},
		{[]string{"--val-batches", "-1"}, []string{"--val-batches -1"}},
		{[]string{"--log-every", "0"}, []string{"--log-every 0"}},
		{[]string{"--data", filepath.Join(dir, "none")}, []string{"none", "no such file"}},
		{[]string{"--data", filepath.Join(dir, "*.none")}, []string{"*.none", "no file matches"}},
		{[]string{"--data", empty}, []string{"empty.txt", "is empty"}},
		{[]string{"--data", text, "--data", empty}, []string{"empty.txt", "is empty"}},
		{[]string{"--data", short}, []string{"12 tokens are too few", "514"}}, // 11 bytes and a separator
		{[]string{"--data", text, "--cache", filepath.Join(text, "x")}, []string{"--cache", "not a directory"}},
		{[]string{"--audit", "-1"}, []string{"--audit -1"}},
		{[]string{"--checkpoint", dir, "--save-every", "-1"}, []string{"--save-every -1"}},
		{[]string{"--schedule", "wsd", "--steps", "10", "--warmup-steps", "6"}, []string{"--warmup-steps 6", "half"}},
		{[]string{"--checkpoint", dir, "--keep", "0"}, []string{"--keep 0"}},
		{[]string{"--checkpoint", dir, "--resume", "maybe"}, []string{"--resume maybe", "must"}},
		{[]string{"--checkpoint", dir, "--requeue-status", "256"}, []string{"--requeue-status 256"}},
		{[]string{"--save-every", "5"}, []string{"--save-every needs --checkpoint"}},
		{[]string{"--keep", "5"}, []string{"--keep needs --checkpoint"}},
		{[]string{"--resume", "auto"}, []string{"--resume needs --checkpoint"}},
		{[]string{"--requeue-status", "75"}, []string{"--requeue-status needs --checkpoint"}},
		{[]string{"--device", "abacus"}, []string{"--device abacus"}},
	} {
		p := train(t, 0, c.args...)
		lines := ours(p.Stderr)
		if p.Status != 2 || len(lines) != 1 || p.Stdout != "" {
			t.Errorf("train %v: status %d, stdout %q, stderr:\n%s", c.args, p.Status, p.Stdout, p.Stderr)
			continue
		}
		for _, want := range c.wants {
			if !strings.Contains(lines[0], want) {
				t.Errorf("train %v: %q, want %q in it", c.args, lines[0], want)
			}
		}
	}
}

// A job of several ranks prints one line, not one a rank.
func TestBadInputOnceAJob(t *testing.T) {
	besideOthers(t)
	spmdtest.Ranks(t, 3)
	short := traintest.Write(t, t.TempDir(), "short.txt", "a few bytes")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--global-batch", "2"}, "--global-batch 2 is less than the 3 ranks"}, // refused before MPI starts
		{[]string{"--data", short}, "too few"},                                         // refused later by all ranks
	} {
		p := train(t, 3, c.args...)
		if lines := ours(p.Stderr); p.Status != 2 || len(lines) != 1 || !strings.Contains(lines[0], c.want) {
			t.Errorf("train %v on 3 ranks: status %d, stderr:\n%s", c.args, p.Status, p.Stderr)
		}
	}
}

// A short run writes the right lines for programs and for people.
func TestRun(t *testing.T) {
	spmdtest.Ranks(t, 2)
	for _, dtype := range []string{"float32", "bfloat16"} {
		t.Run(dtype, func(t *testing.T) { testRun(t, dtype) })
	}
}

func testRun(t *testing.T, dtype string) {
	dir := t.TempDir()
	text := traintest.Write(t, dir, "text.txt", strings.Repeat("func main() { return }\n", 400))
	file := filepath.Join(dir, "out.json")
	p := train(t, 2, "--data", text, "--steps", "3", "--layers", "1", "--channels", "16", "--heads", "2",
		"--dtype", dtype, "--seq", "16", "--batch", "2", "--global-batch", "5", "--val-every", "2", "--audit", "1",
		"--sample", "20", "--prompt", "func", "--json", file)
	if p.Status != 0 {
		t.Fatalf("status %d, stderr:\n%s", p.Status, p.Stderr)
	}
	if !strings.HasPrefix(p.Stdout, "\nfunc") || len(p.Stdout) < 20 {
		t.Errorf("standard output is %q, want the prompt and what follows", p.Stdout)
	}
	for _, want := range []string{"step 1/3", "step 3/3", "val_loss", "done", "dtype=" + dtype} {
		if !strings.Contains(p.Stderr, want) {
			t.Errorf("no %q in the log:\n%s", want, p.Stderr)
		}
	}
	b, err := os.ReadFile(file)
	spmdtest.Must(t, err)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines of JSON, want 3 steps and a summary:\n%s", len(lines), b)
	}
	for i, line := range lines {
		var rec map[string]any
		spmdtest.Must(t, json.Unmarshal([]byte(line), &rec))
		fields := []string{"step", "loss", "lr", "grad_norm", "tokens", "tok_s", "ms"}
		if i == 3 {
			fields = []string{"summary", "params", "tok_s", "mfu", "loss_first", "loss_last", "val_loss", "ranks",
				"device"}
		}
		for _, f := range fields {
			if _, ok := rec[f]; !ok {
				t.Errorf("line %d has no %q: %s", i+1, f, line)
			}
		}
		_, val := rec["val_loss"]
		switch {
		case i < 3 && (rec["step"] != float64(i+1) || rec["tokens"] != float64((i+1)*5*16)):
			t.Errorf("line %d has other numbers: %s", i+1, line)
		case i < 3 && val != (i > 0): // after steps 2 and 3
			t.Errorf("line %d: validation loss there is %v: %s", i+1, val, line)
		case i == 3 && (rec["summary"] != true || rec["ranks"] != 2.0 || rec["dtype"] != dtype):
			t.Errorf("the summary has other values: %s", line)
		}
	}
}

// The sample goes to standard error if measurements go to standard output.
func TestJSONOnStandardOutput(t *testing.T) {
	text := traintest.Write(t, t.TempDir(), "text.txt", strings.Repeat("func main() { return }\n", 400))
	p := train(t, 0, "--data", text, "--steps", "1", "--layers", "1", "--channels", "16", "--heads", "2",
		"--seq", "16", "--batch", "1", "--val-batches", "0", "--sample", "5", "--prompt", "sample", "--json", "-")
	if p.Status != 0 {
		t.Fatalf("status %d, stderr:\n%s", p.Status, p.Stderr)
	}
	for line := range strings.Lines(p.Stdout) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %q", line)
		}
	}
	if strings.Contains(p.Stdout, `"tok_s":0,`) || strings.Contains(p.Stderr, "tok/s=0 ") {
		t.Errorf("a run of one step has no rate:\n%s%s", p.Stdout, p.Stderr)
	}
	if !strings.Contains(p.Stdout, `"val_loss":null`) || !strings.Contains(p.Stderr, "\nsample") {
		t.Errorf("stdout:\n%s\nstderr:\n%s", p.Stdout, p.Stderr)
	}
}

// besideOthers lets a test on the host run beside others, since it mostly waits for programs. GPUs
// hold one job of train at a time.
func besideOthers(t *testing.T) {
	if spmdtest.Device() == "host" {
		t.Parallel()
	}
}
