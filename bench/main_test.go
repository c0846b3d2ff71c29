package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/spmd/spmdtest"
)

func TestMain(m *testing.M) { spmdtest.Main(m, main) }

// Every measurement runs, checks its own results, and prints what the runner reads.
func TestRank(t *testing.T) {
	for _, n := range spmdtest.Ranks(t, 1, 2) {
		for _, m := range measures {
			if m.name != "pingpong" || n == 2 {
				t.Run(fmt.Sprintf("%s on %d", m.name, n), func(t *testing.T) { testRank(t, "--what", m.name, n) })
			}
		}
	}
}

// What the watch is compared with runs without it.
func TestUnwatched(t *testing.T) {
	spmdtest.HostOnly(t, "the watch is compared on the host")
	testRank(t, unwatched, "step", 2)
}

func testRank(t *testing.T, flag, what string, ranks int) {
	t.Helper()
	p := spmdtest.Program(t, ranks, nil, "--device="+spmdtest.Device(), flag, what, "--json", "-", "--log-level", "warn")
	if p.Status != 0 {
		t.Fatalf("status %d\n%s", p.Status, p.Stderr)
	}
	points, err := lines[struct {
		What  string
		Ranks int
		US    float64 `json:"median_us"`
		MS    float64
	}](p.Stdout)
	if err != nil || len(points) == 0 {
		t.Fatalf("%v: %q", err, p.Stdout)
	}
	for _, x := range points {
		if x.What == "" || x.Ranks != ranks || x.US+x.MS <= 0 {
			t.Errorf("%+v from %q", x, p.Stdout)
		}
	}
}

// A group that failed keeps the rows that were not measured anew; the groups stay
// in their order.
func TestMerge(t *testing.T) {
	old := []row{{Bench: "allreduce", What: "a"}, {Bench: "reduce", What: "b"}, {Bench: "reduce", What: "c"}, {Bench: "train", What: "d"}}
	for _, tc := range []struct {
		name     string
		measured []row
		whole    bool
		want     string
	}{
		{"reduce", []row{{Bench: "reduce", What: "c", Ours: 1}}, true, "a0 c1 d0"},
		{"reduce", []row{{Bench: "reduce", What: "c", Ours: 1}}, false, "a0 b0 c1 d0"},
		{"reduce", nil, false, "a0 b0 c0 d0"},
		{"pingpong", []row{{Bench: "pingpong", What: "e", Ours: 1}}, true, "a0 e1 b0 c0 d0"},
	} {
		got := ""
		for _, r := range merge(old, tc.measured, tc.name, tc.whole) {
			got += " " + r.What + string('0'+rune(r.Ours))
		}
		if got != " "+tc.want {
			t.Errorf("%s, whole %v: rows%s, want %s", tc.name, tc.whole, got, tc.want)
		}
	}
}

func TestCommand(t *testing.T) {
	b := harness{rounds: defaultRounds, llmc: "../llm.c/train_gpt2"}
	if got, want := b.command("train"), "bin/bench --only train --llmc ../llm.c/train_gpt2"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	b.rounds = 9
	if got, want := b.command("reduce"), "bin/bench --only reduce --rounds 9"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWorstMeasured(t *testing.T) {
	worst, err := worstMeasured("1e-7\ta loss\n3e-7\ta loss\n2e-7\ta loss\n5\tb\n")
	if err != nil || worst["a loss"] != 3e-7 || worst["b"] != 5 {
		t.Errorf("%v, %v", worst, err)
	}
	for _, bad := range []string{"NaN\ta\n", "1 a\n", "x\ta\n"} {
		if _, err := worstMeasured(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestCheckRank(t *testing.T) {
	for _, tc := range []struct {
		what  string
		sizes []int
		ranks int
		ok    bool
	}{
		{"allreduce", []int{8, 1 << 20}, 3, true},
		{"pingpong", []int{8}, 2, true},
		{"replay", []int{8}, 4, true},
		{"pingpong", []int{8}, 3, false},
		{"", []int{8}, 2, false},
		{"allreduce", []int{8, 0}, 2, false},
		{"allreduce", []int{4}, 2, false},
		{"allreduce", []int{12}, 2, false},
		{"allreduce", []int{-8}, 2, false},
	} {
		if err := checkRank(tc.what, tc.sizes, tc.ranks); (err == nil) != tc.ok {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

func TestGPUNames(t *testing.T) {
	for _, tc := range []struct {
		list string
		want []string
	}{
		{"GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-2)\n", []string{"NVIDIA H200", "NVIDIA A100-SXM4-80GB"}},
		{"GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g.18gb Device 0: (UUID: MIG-1)\n", []string{"NVIDIA H200"}},
		{"No devices found.\n", nil},
		{"", nil},
	} {
		if got := gpuNames(tc.list); !slices.Equal(got, tc.want) {
			t.Errorf("%q: %q, want %q", tc.list, got, tc.want)
		}
	}
}

func TestStartupParts(t *testing.T) {
	parts, err := startupParts(`a warning
{"level":"warn","message":"x"}
{"level":"info","startup_ms":{"mpi":250,"nccl":1500.5},"message":"start"}
`)
	if err != nil || len(parts) != 2 || parts["mpi"] != 0.25 || parts["nccl"] != 1.5005 {
		t.Errorf("%v, %v", parts, err)
	}
	if _, err := startupParts(`{"message":"start"}`); err == nil || !strings.Contains(err.Error(), "startup_ms") {
		t.Errorf("a log without them: %v", err)
	}
}

var born = time.Now()

// A process is older than its first statement, and younger than the test that
// starts it.
func TestProcessAge(t *testing.T) {
	const tick = 10 * time.Millisecond
	least := time.Since(born)
	age, err := processAge()
	if err != nil || age < least-tick {
		t.Errorf("age %v, but this process was there %v ago: %v", age, least, err)
	}
	start := time.Now()
	p := spmdtest.Program(t, 1, nil, "--device="+spmdtest.Device(), "--what", "startup", "--json", "-", "--log-level", "warn")
	most := time.Since(start)
	all, err := lines[started](p.Stdout)
	if err != nil || len(all) != 1 {
		t.Fatalf("%v: %q\n%s", err, p.Stdout, p.Stderr)
	}
	if ms := all[0].MS; ms <= 0 || all[0].PeakMiB < 1 || ms > float64((most+tick).Milliseconds()) {
		t.Errorf("started %v ms ago, by a program that ran for %v", ms, most)
	}
}

func TestStepLosses(t *testing.T) {
	text := strings.Repeat("{\"step\":1,\"loss\":2.5}\n", lossSteps)
	got, err := stepLosses(text + `{"summary":true,"loss_last":1}`)
	if err != nil || len(got) != lossSteps || got[0] != 2.5 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := stepLosses(text + text); err == nil {
		t.Error("twice as many steps are accepted")
	}
}

// Limits and comparisons are met on their own side of the goal only, in the set's
// words for the device.
func TestRows(t *testing.T) {
	b := harness{machine: "two cores", rounds: defaultRounds, gpus: []string{"H200", "H200"}, set: gpuSet, group: "launch"}
	b.compare(row{What: "slow", Ours: 3, Goal: 1.2}, "C", 2, false)
	b.compare(row{What: "fast", Ours: 3, Goal: 1}, "C", 2, true)
	b.limit(row{What: "zero", Ours: 0, Goal: 0})
	b.limit(row{What: "nan", Ours: math.NaN(), Goal: 1})
	for i, met := range []bool{false, true, true, false} {
		if r := b.rows[i]; r.Met != met || r.Bench != "launch" || r.Device != "H200" || r.Machine != "two cores, 2 x H200" {
			t.Errorf("%+v", r)
		}
	}
}
