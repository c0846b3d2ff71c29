package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/bench/measure"
	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
	"lockstep/spmd/spmdtest"
)

// The whole command, with the built applications: the files are complete, right and well formed.
func TestSweepCommand(t *testing.T) {
	spmdtest.HostOnly(t, "the numbers of ranks are those of a host")
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip(err)
	}
	ctx := mpirun.Patience(t)
	bin, out := t.TempDir(), t.TempDir()
	only := "collectives,cost"
	if testkit.More(t, 1, "parts of a sweep: the applications on more and more ranks"); testkit.AllCases() {
		only += ",scaling"
		build := exec.CommandContext(ctx, goTool, "build", "-buildvcs=false", "-o", bin, "../apps/reduce",
			"../apps/matvec", "../apps/stencil", "../apps/train")
		if text, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	}
	cmd := spmdtest.Command(ctx, t, 0, nil, "sweep", "--device=host", "--out", out, "--bin", bin, "--only", only,
		"--c-sources=c", "--peers=c", "--ranks=1,2", "--cost-ranks=3", "--rounds=1", "--iters=2", "--warmup=1",
		"--calls=2", "--from=64B", "--to=4KiB", "--factor=64", "--elements=1000", "--rows=10", "--cols=100",
		"--grid=20", "--app-iters=2", "--steps=3", "--global-batch=2", "--train=--layers=1,--seq=8", "--commit=abc")
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	data, err := os.ReadFile(filepath.Join(out, "host-measured.jsonl"))
	spmdtest.Must(t, err)
	all, err := measure.Lines[measure.Measured](string(data))
	spmdtest.Must(t, err)
	count := map[string]int{}
	for _, m := range all {
		count[strings.TrimSpace(m.App+" "+m.Scaling)+" "+m.Side]++
		if !m.OK || m.MedianUS <= 0 || m.Commit != "abc" || m.Machine == "" || m.Wrong != nil && *m.Wrong != 0 {
			t.Errorf("%+v", m)
		}
		if m.App == "cost" && m.Side == measure.Ours && (m.StartupMS <= 0 || m.PeakMiB <= 0 || m.USPerRank <= 0) {
			t.Errorf("%+v", m)
		}
	}
	const sweeps = 2*9 + 2*10 // sizes by operations: on 1 rank there is no ping-pong
	for name, want := range map[string]int{
		"sweep " + measure.Ours: sweeps, "sweep MPI from C": sweeps, "cost " + measure.Ours: 1,
		"cost MPI from C": 1, "reduce strong " + measure.Ours: 2, "reduce weak " + measure.Ours: 2,
		"matvec strong " + measure.Ours: 2, "matvec weak " + measure.Ours: 2,
		"stencil strong " + measure.Ours: 2, "stencil weak " + measure.Ours: 2,
		"stencil strong " + "MPI from C, and OpenMP": 2, "stencil weak " + "MPI from C, and OpenMP": 2,
		"train strong " + measure.Ours: 2, "train weak " + measure.Ours: 2,
	} {
		if !testkit.AllCases() && (strings.Contains(name, "strong") || strings.Contains(name, "weak")) {
			want = 0
		}
		if count[name] != want {
			t.Errorf("%s: %d lines, want %d", name, count[name], want)
		}
	}
	rows, err := measure.ReadRows(filepath.Join(out, "host-ratios.jsonl"))
	ratios, figures := sweeps+1, 10+9+1
	if testkit.AllCases() {
		ratios, figures = ratios+3, figures+5 // stencil on 1 rank, and on 2 in both ways
	}
	if err != nil || len(rows) != ratios {
		t.Errorf("%d rows, want %d: %v", len(rows), ratios, err)
	}
	for _, r := range rows {
		if r.Peer == nil || !strings.HasPrefix(*r.Peer, "MPI from C") ||
			!strings.HasPrefix(r.Command, "bin/bench sweep --device=host ") {
			t.Errorf("%+v", r)
		}
	}
	plots, err := filepath.Glob(filepath.Join(out, "*.svg"))
	if err != nil || len(plots) != figures {
		t.Errorf("%d plots, want %d: %v", len(plots), figures, err)
	}
	for _, p := range plots {
		if text, err := os.ReadFile(p); err != nil || !strings.Contains(string(text), "</svg>") {
			t.Errorf("%s is no figure: %v", p, err)
		}
	}
}
