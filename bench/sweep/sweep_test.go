package sweep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/bench/measure"
	"lockstep/internal/testkit"
)

// The bytes that a rank sends and receives are counted by hand for 4 ranks, by nccl-tests'
// formulas. One of its lines agrees: 64 MiB reduced over 4 GPUs in 320.9 us is a bus
// bandwidth of 314 GB/s.
func TestBandwidths(t *testing.T) {
	for name, want := range map[string][2]float64{ // on 2 and 4 ranks
		"allreduce": {1, 1.5}, "reducescatter": {0.5, 0.75}, "allgather": {0.5, 0.75}, "alltoall": {0.5, 0.75},
		"gather": {0.5, 0.75}, "scatter": {0.5, 0.75},
		"broadcast": {1, 1}, "reduce": {1, 1}, "sendrecv": {1, 1}, "pingpong": {1, 1},
	} {
		op, err := measure.OperationOf(name)
		if err != nil || op.Bus(2) != want[0] || op.Bus(4) != want[1] {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := measure.Measured{Kind: measure.Kind{Op: "allreduce", Ranks: 4, Bytes: 64 << 20}}
	m.MedianUS = 320.9
	if got := middle([]measure.Measured{m}); math.Round(got.BusGBps) != 314 || math.Round(got.GBps) != 209 {
		t.Errorf("%v and %v GB/s", got.GBps, got.BusGBps)
	}
}

// line returns a measurement for tests.
func line(side string, ranks int, us float64, wrong int) measure.Measured {
	m := measure.Measured{Kind: measure.Kind{App: "sweep", Op: "allreduce", Dtype: "float32", Elements: 2,
		Bytes: 8}, Wrong: &wrong, OK: wrong == 0}
	m.Side, m.Ranks, m.MinUS, m.MedianUS, m.P99US, m.MaxUS = side, ranks, us, us, us, us
	return m
}

func testSweep(set string) *sweep {
	s := &sweep{Harness: measure.Harness{Rounds: 3, GPUs: []string{"H200"}, Set: set, Group: collectivesPart,
		Line: "bin/bench sweep"}, goal: 1.05}
	s.Graph, s.Symmetric = measure.Choice{false}, measure.Choice{false}
	s.InPlace, s.Stream, s.Iters = measure.Choice{false}, "auto", 2
	return s
}

// Sides run in turn. Medians count, wrong elements add up, and a side that fails is not run again.
func TestTurnsOf(t *testing.T) {
	s, order := testSweep(measure.HostSet), ""
	times := map[string][]float64{"a": {3, 1, 2}, "b": {9, 8, 10}}
	of := func(name string, wrong int) side {
		return side{name, 2, func() ([]measure.Measured, error) {
			order += name
			us := times[name][0]
			times[name] = times[name][1:]
			m := line(name, 2, us, wrong)
			m.Slow = []json.RawMessage{[]byte(fmt.Sprintf(`{"us":%v}`, us))}
			return []measure.Measured{m}, nil
		}}
	}
	bad := side{"c", 2, func() ([]measure.Measured, error) {
		order += "c"
		return nil, errors.New("no such library")
	}}
	all, err := s.turnsOf([]side{of("a", 0), bad, of("b", 1)})
	if order != "acbabab" || err == nil || !strings.Contains(err.Error(), "c on 2 ranks: no such library") {
		t.Errorf("%s, %v", order, err)
	}
	if len(all) != 2 || all[0].MedianUS != 2 || all[0].MinUS != 1 || all[0].MaxUS != 3 || all[0].Rounds != 3 ||
		!all[0].OK || all[1].MedianUS != 9 || *all[1].Wrong != 3 || all[1].OK {
		t.Errorf("%+v", all)
	}
	// of all turns
	if slow, err := json.Marshal(all[0].Slow); string(slow) != `[{"us":3},{"us":1},{"us":2}]` || err != nil {
		t.Errorf("slow times %s, %v", slow, err)
	}
	s.Out, s.parts, s.all = t.TempDir(), nil, all
	if err := s.run(); err == nil ||
		!strings.Contains(err.Error(), "allreduce of 8B, float32 on 2 ranks: b is wrong") ||
		strings.Contains(err.Error(), ": a is wrong") {
		t.Errorf("a wrong result: %v", err)
	}
}

// After --limit no turn begins, and an interrupt ends the present one. The measurements before
// count.
func TestEndsEarly(t *testing.T) {
	for _, interrupted := range []bool{false, true} {
		ctx, interrupt := context.WithCancel(context.Background())
		measure.Interrupted = ctx
		t.Cleanup(func() { measure.Interrupted = context.Background() })
		s, order := testSweep(measure.HostSet), ""
		s.begun, s.within = time.Now(), time.Minute
		of := func(name string) side {
			return side{name, 2, func() ([]measure.Measured, error) {
				if order += name; order == "ab" && interrupted {
					interrupt()
					_, err := measure.Output("sleep", "60")
					return nil, err
				} else if order == "ab" {
					s.begun = s.begun.Add(-time.Hour)
				}
				return []measure.Measured{line(name, 2, 1, 0)}, nil
			}}
		}
		all, err := s.turnsOf([]side{of("a"), of("b"), of("c")})
		if order != "ab" || err != nil || len(all) == 0 || all[0].Side != "a" || len(all) == 1 != interrupted {
			t.Errorf("interrupted %v: %s, %v, %v", interrupted, order, all, err)
		}
		s.Out, s.all = t.TempDir(), all
		if err := s.run(); interrupted != (err != nil && strings.Contains(err.Error(),
			"interrupted: what had been measured before is in "+s.Out)) {
			t.Errorf("interrupted %v: %v", interrupted, err)
		}
		interrupt()
	}
}

// On GPUs there are as many calls as nccl-tests can make in few runs. The clock decides on the
// host, and for calls that are waited for one by one.
func TestCallsOf(t *testing.T) {
	all, err := measure.Sizes(8, 1<<30, 2)
	testkit.Must(t, err)
	for _, tc := range []struct {
		name, set, collectives string
		calls                  int
		want                   map[int]int // at a size
		runs                   int         // of nccl-tests; 0 if it has no part
	}{
		{"GPUs", measure.GPUSet, "auto", 0, map[int]int{8: 1000, 8 << 20: 1000, 16 << 20: 60, 1 << 30: 60}, 2},
		{"what a caller waits", measure.GPUSet, "auto", 1, map[int]int{8: 1, 1 << 30: 1}, 1},
		{"given", measure.GPUSet, "nccl", 100, map[int]int{8: 100, 8 << 20: 100, 1 << 30: 60}, 2},
		{"GPUs through MPI, staged", measure.GPUSet, "host-staged", 0, map[int]int{8: 200, 1 << 30: 1}, 0},
		{"GPUs through MPI", measure.GPUSet, "mpi", 0, map[int]int{8: 200, 1 << 20: 64, 64 << 20: 1, 1 << 30: 1}, 0},
		{"host", measure.HostSet, "auto", 0, map[int]int{8: 200, 256 << 10: 200, 1 << 20: 64, 1 << 30: 1}, 0},
	} {
		s := testSweep(tc.set)
		s.collectives, s.calls, s.sizes = tc.collectives, tc.calls, all
		for bytes, want := range tc.want {
			if got := s.callsOf(bytes); got != want {
				t.Errorf("%s, %s: %d calls, want %d", tc.name, measure.SizeText(bytes), got, want)
			}
		}
		runs := s.ncclRuns()
		if !slices.Equal(slices.Concat(runs...), all) || tc.runs > 0 && len(runs) != tc.runs {
			t.Errorf("%s: %d runs, want %d: %v", tc.name, len(runs), tc.runs, runs)
		}
	}
	for calls, want := range map[int][2]int{1: {1, 1}, 20: {20, 1}, 21: {20, 2}, 1000: {20, 50}} {
		if each, launches := measure.InGraph(calls); each != want[0] || launches != want[1] {
			t.Errorf("%d calls: a graph of %d, launched %d times, want %v", calls, each, launches, want)
		}
	}
}

// By default iterations and the goal are those of the device.
func TestPlace(t *testing.T) {
	given := func(flags ...string) func(string) bool {
		return func(f string) bool { return slices.Contains(flags, f) }
	}
	for _, tc := range []struct {
		set           string
		given         []string
		iters, warmup int
		goal          float64
	}{
		{measure.HostSet, nil, 20, 5, 1.05}, {measure.GPUSet, nil, 4, 1, 1.03},
		{measure.GPUSet, []string{"iters", "warmup"}, 2, 0, 1.03},
	} {
		s := testSweep(tc.set)
		s.device, s.goal = map[string]string{measure.HostSet: "host", measure.GPUSet: "cuda"}[tc.set], 0
		s.ranks, s.costRanks = []int{4, 1, 4}, []int{1, 4}
		testkit.Must(t, s.place(given(tc.given...)))
		if s.Iters != tc.iters || s.Warmup != tc.warmup || s.goal != tc.goal || !slices.Equal(s.ranks, []int{1, 4}) {
			t.Errorf("%s, given %v: %d iterations after %d, goal %v, ranks %v",
				tc.set, tc.given, s.Iters, s.Warmup, s.goal, s.ranks)
		}
		want := map[string]int{measure.HostSet: 2, measure.GPUSet: 1}[tc.set]
		if len(s.costRanks) != want { // there is one GPU
			t.Errorf("%s: cost on %v", tc.set, s.costRanks)
		}
	}
}

func TestSpeedUps(t *testing.T) {
	of := func(scaling string, ranks int, us float64) measure.Measured {
		m := line(measure.Ours, ranks, us, 0)
		m.Kind = measure.Kind{App: "matvec", Side: measure.Ours, Scaling: scaling, Ranks: ranks}
		return m
	}
	all := []measure.Measured{of(strong, 1, 800), of(strong, 4, 250), of(weak, 1, 800), of(weak, 4, 1000)}
	speedUps(all)
	for i, want := range [][2]float64{{1, 1}, {3.2, 0.8}, {1, 1}, {3.2, 0.8}} {
		if all[i].SpeedUp != want[0] || all[i].Efficiency != want[1] {
			t.Errorf("%s on %d: %v and %v, want %v",
				all[i].Scaling, all[i].Ranks, all[i].SpeedUp, all[i].Efficiency, want)
		}
	}
}

// The goals without a peer hold on GPUs, for the sizes that they were set for.
func TestAppGoals(t *testing.T) {
	m := line(measure.Ours, 4, 17, 0)
	m.Kind = measure.Kind{App: "reduce", Side: measure.Ours, Scaling: strong, Ranks: 4, Elements: 30_000_000,
		Dtype: "float32"}
	m.P99US, m.MaxUS = 34, 51
	small := m
	small.Elements = 1000
	for _, tc := range []struct {
		set  string
		m    measure.Measured
		want []bool // met
	}{
		{measure.GPUSet, m, []bool{true, false, true}}, {measure.GPUSet, small, []bool{false, true}},
		{measure.HostSet, m, nil},
	} {
		s := testSweep(tc.set)
		s.appGoals([]measure.Measured{tc.m})
		var got []bool
		for _, r := range s.Rows {
			got = append(got, r.Met)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s, %d elements: %v, want %v", tc.set, tc.m.Elements, got, tc.want)
		}
	}
}

func TestSweepCheck(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*sweep)
		want   string // in the error
	}{
		{"good", func(*sweep) {}, ""},
		{"operation", func(s *sweep) { s.opNames = []string{"scan"} }, `--ops: unknown operation "scan"`},
		{"type", func(s *sweep) { s.typeNames = []string{"float"} }, `--types: unknown type "float"`},
		{"part", func(s *sweep) { s.parts = []string{"all"} }, "--only all"},
		{"peer", func(s *sweep) { s.peers = []string{"go"} }, "--peers go"},
		{"device", func(s *sweep) { s.device = "tpu" }, "--device tpu"},
		{"collectives", func(s *sweep) { s.collectives = "mpi-fast" },
			"--collectives mpi-fast: want auto, nccl, mpi, "},
		{"a way of MPI", func(s *sweep) { s.collectives = "mpi-peer" }, ""},
		{"ranks", func(s *sweep) { s.ranks = []int{2, 0} }, "--ranks 0"},
		{"ranks of cost", func(s *sweep) { s.costRanks = []int{2, 0} }, "--cost-ranks 0"},
		{"rounds", func(s *sweep) { s.Rounds = 0 }, "--rounds 0"},
		{"limit", func(s *sweep) { s.within = -1 }, "--limit -1ns"},
		{"sizes", func(s *sweep) { s.to = 4 }, "--to 4B"},
		{"iterations", func(s *sweep) { s.Iters = 0 }, "--iters 0"},
		{"stream", func(s *sweep) { s.Stream = "yes" }, "--stream yes"},
		{"application", func(s *sweep) { s.app.apps = []string{"hello"} }, "--apps hello"},
		{"steps", func(s *sweep) { s.app.steps = 2 }, "--steps 2"},
		{"goal", func(s *sweep) { s.goal = math.NaN() }, "--goal NaN"},
		{"negative goal", func(s *sweep) { s.goal = -1 }, "--goal -1: must not be negative"},
	} {
		s := testSweep(measure.HostSet)
		s.opNames, s.typeNames, s.parts = measure.OperationNames(), measure.DTypeNames(), sweepParts
		s.device, s.collectives, s.from, s.to, s.factor = "auto", "auto", 8, 64, 2
		s.app = appFlags{elements: 1, iters: 1, globalBatch: 1, steps: 3}
		tc.change(s)
		err := s.check()
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}
