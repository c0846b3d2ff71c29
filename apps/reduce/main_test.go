package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"lockstep/apps/internal/apptest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
	"lockstep/spmd/telemetry"
)

func TestMain(m *testing.M) { spmdtest.Main(m, main) }

func TestSum(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		for _, parts := range []string{"equal", "unequal"} {
			for _, graph := range []bool{false, true} {
				for _, n := range []int{4, 5, 1001, 1<<20 + 3} {
					r, err := run(w, config{Elements: n, Parts: parts, Iters: 3, Warmup: 1, Graph: graph})
					spmdtest.Must(t, err)
					exact := uint64(0)
					for i := range n {
						exact += uint64(spmd.UniformBits(w.Seed(), uint64(i)))
					}
					if want := float64(exact) / (1 << 24); r.Sum != want || !r.OK {
						t.Errorf("%d elements in %s parts on %d ranks, graph %v: %v, want %v",
							n, parts, w.Size(), graph, r.Sum, want)
					}
				}
			}
		}
	})
}

func TestPartsCoverAllElements(t *testing.T) {
	for _, parts := range []string{"equal", "unequal"} {
		for size := 1; size < 9; size++ {
			for _, n := range []int{size, 100, 30_000_000} {
				at := 0
				for r := range size {
					p := part(config{Elements: n, Parts: parts}, r, size)
					if p.Off != at || p.Len < 0 {
						t.Fatalf("%s parts of %d on %d ranks: rank %d has %v after %d", parts, n, size, r, p, at)
					}
					at += p.Len
				}
				if at != n {
					t.Fatalf("%s parts of %d on %d ranks hold %d", parts, n, size, at)
				}
			}
		}
	}
}

func TestProgram(t *testing.T) {
	spmdtest.Ranks(t, 2)
	line := apptest.Measures(t, 2, "elements", "--elements", "1000", "--iters", "5")
	if _, asked := line["samples_us"]; asked || fmt.Sprint(line["ranks"], line["elements"]) != "2 1000" {
		t.Errorf("%v", line)
	}
}

// With --samples the line has every time, and the other numbers follow from them.
func TestSamples(t *testing.T) {
	spmdtest.Ranks(t, 2)
	p := spmdtest.Program(t, 2, nil, "--elements", "1000", "--iters", "5", "--samples", "--json", "-")
	var r result
	if err := json.Unmarshal([]byte(p.Stdout), &r); err != nil || p.Status != 0 {
		t.Fatalf("status %d, %v\n%s%s", p.Status, err, p.Stdout, p.Stderr)
	}
	us := slices.Sorted(slices.Values(r.SamplesUS))
	if len(us) != 5 || us[0] != r.MinUS || us[2] != r.MedianUS || us[4] != r.MaxUS {
		t.Errorf("%v: least %v, median %v, greatest %v", r.SamplesUS, r.MinUS, r.MedianUS, r.MaxUS)
	}
}

func TestWrongSum(t *testing.T) {
	apptest.Reports(t, "the sum is wrong", func(w *spmd.World, e float64) error {
		return report(w, result{Sum: e, MaxRelErr: e})
	})
}

func TestRanksOfAProcess(t *testing.T) { apptest.InProcess(t, "--elements", "1000", "--iters", "5") }

func TestBadInput(t *testing.T) {
	apptest.Refuses(t, "reduce", [][2]string{
		{"--elements 0", "--elements 0: must be at least 1"},
		{"--elements -3", "--elements -3"},
		{"--elements 2", "fewer than the 3 ranks"},
		{"--elements 9223372036854775807", "--elements 9223372036854775807: more bytes than"},
		{"--iters 0", "--iters 0"},
		{"--warmup -2", "--warmup -2"},
		{"--parts some", "--parts some: want equal or unequal"},
		{"--values all --exact", "--values all: want uniform or wide"},
		{"--values wide", "--values wide wants --exact"},
		{"--element 3", "unknown flag: --element"},
	}...)
}

// The program finds that memory is too small before it does any work for the numbers.
func TestOutOfMemory(t *testing.T) {
	spmdtest.Ranks(t, 2)
	for _, ranks := range []int{0, 2} {
		p := spmdtest.Program(t, ranks, nil, "--elements", "100000000000000000")
		if p.Status != 1 || !strings.Contains(p.Stderr, ": Alloc") {
			t.Errorf("%d ranks: status %d\n%s", ranks, p.Status, p.Stderr)
		}
	}
}

// A result that nobody can see is a failure, on any device.
func TestClosedOutput(t *testing.T) {
	for redirect, want := range map[string]int{
		">/dev/full 2>&-": 1, "2>/dev/full": 1, ">/dev/null 2>/dev/null": 0, ">&- 2>/dev/null": 0,
	} {
		cmd := spmdtest.Command(t.Context(), t, 0, nil, "--device", "host", "--elements", "1000", "--iters", "2")
		sh := exec.CommandContext(t.Context(), "sh",
			append([]string{"-c", `exec "$0" "$@" ` + redirect}, cmd.Args...)...)
		sh.Env = cmd.Env
		_ = sh.Run() // its error is the status
		if got := sh.ProcessState.ExitCode(); got != want {
			t.Errorf("%s: status %d, want %d", redirect, got, want)
		}
	}
	cmd := spmdtest.Command(t.Context(), t, 0, nil, "--device", "host", "--elements", "1000", "--iters", "2", "--json",
		"-")
	sh := exec.CommandContext(t.Context(), "sh", append([]string{"-c", `exec "$0" "$@" >&-`}, cmd.Args...)...)
	sh.Env = cmd.Env
	if out, err := sh.CombinedOutput(); err == nil || !strings.Contains(string(out), "file already closed") {
		t.Errorf("--json - to a closed output: %v\n%s", err, out)
	}
}

// Slow iterations are listed, the slowest first, with their causes.
func TestSlow(t *testing.T) {
	stats := telemetry.StatsOf([]float64{1, 1, 12, 1, 9.9, 1, 40, 1, 1, 30, 1})
	stats.Enqueued = []float64{1, 1, 1, 1, 1, 1, 39, 1, 1, 1, 1}
	stats.Fastest = []float64{1, 1, 11, 1, 1, 1, 40, 1, 1, 2, 1}
	var got []string
	for _, s := range slowOf(stats) {
		got = append(got, fmt.Sprint(s.Iter, " ", s.US, " ", s.Cause))
	}
	want := []string{"6 40 a host enqueued it late", "9 30 a host began late or noticed the end late",
		"2 12 all ranks waited for the devices"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	stats = telemetry.StatsOf(slices.Concat(slices.Repeat([]float64{1}, 100), slices.Repeat([]float64{20}, 50)))
	stats.Enqueued, stats.Fastest = make([]float64, 150), make([]float64, 150)
	if n := len(slowOf(stats)); n != slowMost {
		t.Errorf("%d of 50 are told", n)
	}
}
