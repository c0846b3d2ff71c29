package main

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/bench/measure"
	"lockstep/internal/testkit"
)

// llm.c's data loader would accept the file: its size follows from the header, and its tokens are
// in the vocabulary.
func TestRandomTokens(t *testing.T) {
	const n = 5000
	name, err := randomTokens(t.TempDir(), n)
	testkit.Must(t, err)
	b, err := os.ReadFile(name)
	testkit.Must(t, err)
	if len(b) != 1024+2*n || binary.LittleEndian.Uint32(b) != 20240520 || binary.LittleEndian.Uint32(b[4:]) != 1 ||
		binary.LittleEndian.Uint32(b[8:]) != n {
		t.Fatalf("%d bytes, header % x", len(b), b[:16])
	}
	different := map[uint16]bool{}
	for i := range n {
		v := binary.LittleEndian.Uint16(b[1024+2*i:])
		if v >= 50257 {
			t.Fatalf("token %d is %d", i, v)
		}
		different[v] = true
	}
	if len(different) < 4000 { // 4,760 are expected
		t.Errorf("%d different tokens among %d", len(different), n)
	}
}

// Two measurements give the right rows, which the right goals judge.
func TestTrainRows(t *testing.T) {
	b := trainBench{seq: 1024}
	b.Set, b.Group, b.GPUs = measure.GPUSet, trainGroup, []string{"a GPU"}
	gpt2 := trainCase{"gpt2", 64}
	for _, m := range []trained{
		{trainCase: gpt2, ranks: 1, tokS: []float64{900, 1000, 1100}, p99: []float64{1.02}, memory: 25,
			theirs: []byTorch{{torchWay: torchWays[0], tokS: []float64{790}}}},
		{trainCase: gpt2, ranks: 2, tokS: []float64{1980}, p99: []float64{1.04}, memory: 23},
	} {
		b.measured = append(b.measured, m)
		b.rowsOf(m)
	}
	want := []struct {
		ranks     int
		unit      string
		ours      float64
		goal, met float64
	}{
		{1, "tok/s", 1000, 0.8, 1}, {1, "medians", 1.02, 1.03, 1}, {1, "GB", 25, 24, 0},
		{2, "medians", 1.04, 1.03, 0}, {2, "GB", 23, 24, 1}, {2, "times", 2000. / 1980, 1 / 0.985, 1},
	}
	if len(b.Rows) != len(want) {
		t.Fatalf("%d rows, want %d: %+v", len(b.Rows), len(want), b.Rows)
	}
	for i, w := range want {
		r := b.Rows[i]
		if r.Ranks != w.ranks || r.Unit != w.unit || r.Ours != w.ours || math.Abs(r.Goal-w.goal) > 1e-9 ||
			r.Met != (w.met == 1) {
			t.Errorf("row %d is %+v, want %+v", i, r, w)
		}
	}
	// With 8-bit floats the goal is higher, but not if only the head has them.
	for flag, goal := range map[string]float64{"--fp8=all": 1 / 1.45, "--fp8=head": 0.8} {
		eight := trainBench{seq: 1024, more: []string{flag}}
		eight.Set, eight.Group, eight.GPUs = b.Set, b.Group, b.GPUs
		eight.rowsOf(trained{trainCase: gpt2, ranks: 1, tokS: []float64{1000}, p99: []float64{1},
			theirs: []byTorch{{torchWay: torchWays[0], tokS: []float64{790}}}})
		if r := eight.Rows[0]; math.Abs(r.Goal-goal) > 1e-9 || r.Met != (goal == 0.8) ||
			!strings.Contains(r.What, flag) {
			t.Errorf("%s: %+v, want a goal of %v", flag, r, goal)
		}
	}
	// Each row stands once, though it is written twice and beside another case's rows.
	b.Out = t.TempDir()
	other := b
	other.Rows = []measure.Row{{What: "another", Ranks: 1}}
	testkit.Must(t, errors.Join(other.keep(), b.keep(), b.keep()))
	kept, err := measure.ReadRows(filepath.Join(b.Out, "gpu.jsonl"))
	if err != nil || len(kept) != len(want)+1 || kept[0].What != "another" {
		t.Errorf("%d rows kept, error %v: %+v", len(kept), err, kept)
	}
	if r := b.Rows[0]; r.Ratio == nil || math.Abs(*r.Ratio-0.79) > 1e-9 {
		t.Errorf("ratio of %+v, want 0.79", r)
	}
}

// A rate comes from the tokens of the run and from the clock.
func TestRate(t *testing.T) {
	cmd := []string{"sh", "-c", `echo '{"step":8,"tokens":4000}'; echo '{"step":9,"tokens":9000}'; ` +
		`echo '{"summary":true,"tokens":9000}'`}
	steps, err := stepsOf(cmd, 2)
	testkit.Must(t, err)
	steps[1].at = steps[0].at.Add(2 * time.Second)
	if got := rate(steps[0], steps[1]); got != 2500 {
		t.Errorf("%v tokens a second, want 2500", got)
	}
}

// python writes a double of the Python that has PyTorch. Its body finds the way in $way and the
// run's number, from 1, in $run.
func python(t *testing.T, body string) (name string) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "python3")
	script := `#!/bin/sh
case "$*" in
*" --nproc-per-node "[1-9]*"torch_train.py --parallel ddp --model "*) way=ddp ;;
*" --nproc-per-node "[1-9]*"torch_train.py --parallel fsdp2 --model "*) way=fsdp2 ;;
*) echo "no command of bench train: $*" >&2; exit 3 ;;
esac
echo $way >>"$0.ran"
run=$(grep -cx $way "$0.ran")
` + body
	testkit.Must(t, os.WriteFile(name, []byte(script), 0o777))
	return name
}

// The way of PyTorch with the fastest median counts, and the row has its name.
func TestTorchWays(t *testing.T) {
	const ddpFaster = `case $way$run in
ddp1) r=300 ;; ddp2) r=100 ;; ddp3) r=200 ;; fsdp21) r=150 ;; fsdp22) r=400 ;; fsdp23) r=160 ;;
esac
echo "{\"parallel\": \"$way\", \"tok_s\": $r.0, \"ms\": 1.0, \"mem_gb\": $run.5}"`
	fsdp2Faster := strings.NewReplacer("ddp2) r=100", "ddp2) r=140", "ddp3) r=200", "ddp3) r=150").Replace(ddpFaster)
	const fsdp2Fails = `[ $way$run = fsdp22 ] && { echo "torch.OutOfMemoryError: CUDA out of memory" >&2; exit 1; }
echo "{\"parallel\": \"$way\", \"tok_s\": $([ $way = ddp ] && echo 200 || echo 900), \"mem_gb\": 2}"`
	ddp, both := []string{"ddp"}, []string{"fsdp2", "ddp"}
	for _, tc := range []struct {
		name, body, peer string
		parallel         []string
		ranks            int
		theirs           float64
		ran, said        string
	}{
		{"ddp is faster", ddpFaster, "PyTorch, compiled", both, 2, 200, "ddp fsdp2 ddp fsdp2 ddp fsdp2", ""},
		{"fsdp2 is faster", fsdp2Faster, "PyTorch FSDP2, compiled", both, 2, 160, "ddp fsdp2 ddp fsdp2 ddp fsdp2", ""},
		{"only ddp", ddpFaster, "PyTorch, compiled", ddp, 2, 200, "ddp ddp ddp", ""},
		{"only fsdp2", ddpFaster, "PyTorch FSDP2, compiled", []string{"fsdp2"}, 4, 160, "fsdp2 fsdp2 fsdp2", ""},
		{"one rank", ddpFaster, "PyTorch, compiled", []string{"fsdp2"}, 1, 200, "ddp ddp ddp", ""},
		{"fsdp2 fails", fsdp2Fails, "PyTorch, compiled", both, 2, 200, "ddp fsdp2 ddp fsdp2 ddp",
			"left out: PyTorch FSDP2, compiled: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := trainBench{seq: 1024, steps: 40, torch: true, parallel: tc.parallel}
			b.python = python(t, tc.body)
			b.Set, b.Group, b.GPUs = measure.GPUSet, trainGroup, []string{"a GPU"}
			m := trained{trainCase: trainCase{"gpt2-xl", 8}, ranks: tc.ranks, tokS: []float64{230}, p99: []float64{1},
				theirs: b.peers(tc.ranks)}
			said := stderr(t, func() {
				for range 3 {
					testkit.Must(t, b.theirs(&m))
				}
			})
			b.rowsOf(m)
			if r := b.Rows[0]; r.Peer == nil || *r.Peer != tc.peer || *r.Theirs != tc.theirs {
				t.Errorf("%+v, want %s with %v", r, tc.peer, tc.theirs)
			}
			ran, err := os.ReadFile(b.python + ".ran")
			if got := strings.Join(strings.Fields(string(ran)), " "); err != nil || got != tc.ran {
				t.Errorf("%q ran, want %q; error %v", got, tc.ran, err)
			}
			if !strings.Contains(said, tc.said) || strings.Contains(said, "CUDA out of memory") != (tc.said != "") {
				t.Errorf("%q said, want %q", said, tc.said)
			}
		})
	}
}

// If every way fails there is no peer, which is an error with all reasons. Another way's line is
// an error, too.
func TestTorchFails(t *testing.T) {
	for _, tc := range []struct {
		body string
		want []string
	}{
		{`echo "no memory for $way" >&2; exit 1`,
			[]string{"PyTorch, compiled: ", "no memory for ddp", "PyTorch FSDP2, compiled: ", "no memory for fsdp2"}},
		{`echo '{"parallel": "another", "tok_s": 5}'`, []string{"--parallel ddp printed", "--parallel fsdp2 printed"}},
	} {
		b := trainBench{steps: 40, torch: true, parallel: []string{"ddp", "fsdp2"}}
		b.python = python(t, tc.body)
		m := trained{trainCase: trainCase{"gpt2", 8}, ranks: 2, theirs: b.peers(2)}
		err := b.theirs(&m)
		if err == nil || slices.ContainsFunc(tc.want,
			func(part string) bool { return !strings.Contains(err.Error(), part) }) {
			t.Errorf("%v, want %q", err, tc.want)
		}
	}
}

// An unknown way, or none, is refused before anything runs.
func TestTorchParallelFlag(t *testing.T) {
	args := os.Args
	defer func() { os.Args = args }()
	for flag, want := range map[string]string{
		"ddp,zero": "--torch-parallel zero: want ddp, fsdp2",
		"":         "--torch-parallel is empty: --torch=false compares with nobody",
	} {
		os.Args = []string{"bench", "--torch-parallel=" + flag}
		if err := trainCommand(); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %q", flag, err, want)
		}
	}
}

// stderr returns f's standard error.
func stderr(t *testing.T, f func()) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	testkit.Must(t, err)
	defer file.Close()
	was := os.Stderr
	defer func() { os.Stderr = was }()
	os.Stderr = file
	f()
	said, err := os.ReadFile(file.Name())
	testkit.Must(t, err)
	return string(said)
}
