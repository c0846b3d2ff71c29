package main

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

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestByteSize(t *testing.T) {
	for _, tc := range []struct {
		text string
		want int
		back string
	}{
		{"8B", 8, "8B"}, {"8", 8, "8B"}, {"1KiB", 1024, "1KiB"}, {"1024B", 1024, "1KiB"}, {"1536B", 1536, "1536B"}, {"64MiB", 67108864, "64MiB"}, {"1024GiB", 1 << 40, "1024GiB"},
	} {
		var b byteSize
		if err := b.Set(tc.text); err != nil || int(b) != tc.want || b.String() != tc.back {
			t.Errorf("%s: %d, %s, %v", tc.text, b, &b, err)
		}
	}
	for _, bad := range []string{"", "B", "0B", "-8B", "1.5KiB", "8b", "8MB", "1025GiB", "9223372036854775807GiB", "x"} {
		var b byteSize
		if b.Set(bad) == nil {
			t.Errorf("%q is accepted as %d", bad, b)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, tc := range []struct {
		from, to, factor int
		want             []int
	}{
		{8, 64, 2, []int{8, 16, 32, 64}},
		{8, 63, 2, []int{8, 16, 32}},
		{10, 1000, 10, []int{10, 100, 1000}},
		{8, 8, 2, []int{8}},
		{1, mostBytes, 1 << 20, []int{1, 1 << 20, 1 << 40}},
		{8, 7, 2, nil},
		{8, 64, 1, nil},
		{8, 64, 0, nil},
	} {
		got, err := sizes(tc.from, tc.to, tc.factor)
		if !slices.Equal(got, tc.want) || (err == nil) != (tc.want != nil) {
			t.Errorf("%d to %d by %d: %v, %v", tc.from, tc.to, tc.factor, got, err)
		}
	}
}

// What a rank sends and receives, counted by hand for 4 ranks of nccl-tests' formulas, and one of its lines: 64 MiB
// reduced over 4 GPUs in 320.9 us is a bus bandwidth of 314 GB/s.
func TestBandwidths(t *testing.T) {
	for name, want := range map[string][2]float64{ // on 2 and 4 ranks
		"allreduce": {1, 1.5}, "reducescatter": {0.5, 0.75}, "allgather": {0.5, 0.75}, "alltoall": {0.5, 0.75}, "gather": {0.5, 0.75}, "scatter": {0.5, 0.75},
		"broadcast": {1, 1}, "reduce": {1, 1}, "sendrecv": {1, 1}, "pingpong": {1, 1},
	} {
		op, err := operationOf(name)
		if err != nil || op.bus(2) != want[0] || op.bus(4) != want[1] {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := measured{kind: kind{Op: "allreduce", Ranks: 4, Bytes: 64 << 20}}
	m.MedianUS = 320.9
	if got := middle([]measured{m}); math.Round(got.BusGBps) != 314 || math.Round(got.GBps) != 209 {
		t.Errorf("%v and %v GB/s", got.GBps, got.BusGBps)
	}
}

// Cases survive the way to a rank; parts are equal and as nccl-tests cuts them; no size comes twice.
func TestCases(t *testing.T) {
	gather, float := operations[3], dtypes[0]
	for _, tc := range []struct{ bytes, ranks, want int }{
		{8, 1, 2}, {8, 2, 2}, {8, 3, 0}, {16, 3, 3}, {64, 4, 16}, {100, 3, 24}, {1 << 20, 3, 262140}, {1 << 20, 4, 1 << 18},
	} {
		if got := fitted(gather, float, tc.bytes, tc.ranks); got != tc.want {
			t.Errorf("%s of %d bytes on %d ranks: %d elements, want %d", gather.name, tc.bytes, tc.ranks, got, tc.want)
		}
	}
	list := cases(operations, dtypes, []int{8, 9, 1 << 10, 1 << 20}, 3, func(bytes int) int { return 3 * bytes })
	for i, c := range list {
		back, err := parseCase(c.String(), 3)
		if err != nil || back.String() != c.String() || c.calls%3 != 0 || c.calls < 3*c.bytes() || c.calls > 4*c.bytes() {
			t.Fatalf("%v: %v, %v", c, back, err)
		}
		if i > 0 && list[i-1].op.name == c.op.name && list[i-1].dtype.name == c.dtype.name && list[i-1].elements >= c.elements {
			t.Errorf("%v after %v", c, list[i-1])
		}
	}
	if n := len(cases(operations, dtypes[:1], []int{8, 1 << 10}, 1, func(int) int { return 2 })); n != 2*(len(operations)-1) {
		t.Errorf("%d cases on 1 rank, want 2 of each operation but ping-pong", n)
	}
	for _, bad := range []string{"", "allreduce:float32:8", "allreduce:float32:8:1:1", "scan:float32:8:1", "allreduce:half:8:1", "allreduce:float32:0:1",
		"allreduce:float32:8:0", "allgather:float32:8:1", "allreduce:float32:x:1"} {
		if _, err := parseCase(bad, 3); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	if _, err := parseCase("pingpong:float32:8:1", 1); err == nil {
		t.Error("a ping-pong of one rank is accepted")
	}
	if _, err := parseCase("allreduce:int8:8:1", 128); err == nil {
		t.Error("a sum of 128 ranks in an int8 is accepted")
	}
}

// Every collective, type and way of calling is measured, with no wrong element.
func TestSweepRank(t *testing.T) {
	for _, n := range spmdtest.Ranks(t, 1, 2, 3) {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			list := cases(operations, dtypes, []int{256, 5000}, n, func(int) int { return graphCalls + 1 })
			p := spmdtest.Program(t, n, nil, append([]string{"--device=" + spmdtest.Device(), "--json=-", "--log-level=warn",
				"--iters=2", "--warmup=1", "--graph=both", "--in-place=both", "--stream=on"}, caseArgs(list)...)...)
			if p.Status != 0 {
				t.Fatalf("status %d\n%s", p.Status, p.Stderr)
			}
			all, err := lines[measured](p.Stdout)
			if err != nil {
				t.Fatal(err)
			}
			want := 0
			for _, c := range list {
				want += 2 * len(c.op.places)
			}
			kinds := map[kind]bool{}
			for _, m := range all {
				kinds[m.kind] = true
				calls := graphCalls + 1
				if m.Graph { // two launches
					calls = 2 * graphCalls
				}
				if m.Wrong == nil || *m.Wrong != 0 || !m.OK || m.MedianUS <= 0 || m.Iters != 2 || m.Calls != calls || m.Ranks != n {
					t.Errorf("%+v", m)
				}
			}
			if len(all) != want || len(kinds) != want {
				t.Errorf("%d lines, %d kinds, want %d", len(all), len(kinds), want)
			}
		})
	}
}

// A wrong element is counted, wherever it is: before the call all that a rank is to receive is wrong, after it
// nothing is, and then what is spoilt.
func TestWrong(t *testing.T) {
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("copies")
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range operations {
			c := kase{op: op, dtype: dtypes[0], elements: 2 * period, calls: 1}
			b, err := newBuffers[float32](w, s, c, variant{inPlace: !slices.Contains(op.places, false)})
			if err != nil {
				t.Fatal(err)
			}
			if err := b.fill(); err != nil {
				t.Fatal(err)
			}
			count := func(when string, want int) {
				t.Helper()
				if got, err := b.wrong(); err != nil || got != want {
					t.Fatalf("%s, %s: %d wrong elements, want %d: %v", op.name, when, got, want, err)
				}
			}
			received := map[string]int{"reduce": 2 * period, "gather": 2 * period, "broadcast": 2 * period, "reducescatter": 2 * period, "scatter": 2 * period}[op.name]
			if received == 0 {
				received = 4 * period // on both ranks
			}
			count("before the call", received)
			if err := b.call(w.Comm())(); err != nil {
				t.Fatal(err)
			}
			count("after it", 0)
			if w.Rank() == root {
				for i := range 3 {
					b.dst.Set(i*100, 99)
				}
			}
			count("spoilt", 3)
			if err := b.dst.SetAll(0); err != nil { // as if nothing had been sent but noughts
				t.Fatal(err)
			}
			if got, err := b.wrong(); err != nil || got < received/2 {
				t.Errorf("%s: of %d noughts only %d are wrong: %v", op.name, received, got, err)
			}
			b.free()
		}
	})
}

// What is longer than a tile is filled and checked to its end.
func TestTiles(t *testing.T) {
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("copies")
		if err != nil {
			t.Fatal(err)
		}
		n := 4*tile + 6
		b, err := newBuffers[float32](w, s, kase{op: operations[3], dtype: dtypes[0], elements: n, calls: 1}, variant{})
		if err != nil {
			t.Fatal(err)
		}
		defer b.free()
		if err := b.fill(); err != nil {
			t.Fatal(err)
		}
		got := make([]float32, n/2) // all-gather: the other rank has as many
		if err := b.src.CopyTo(got); err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			if want := b.pattern.values[w.Rank()][i%period]; v != want {
				t.Fatalf("element %d is %v, want %v", i, v, want)
			}
		}
		if err := b.call(w.Comm())(); err != nil {
			t.Fatal(err)
		}
		for spoilt, i := range []int{n, 0, tile - 1, tile, 2*tile + 1, n - 1} { // n: nothing yet
			if w.Rank() == root && i < n {
				b.dst.Set(i, -1)
			}
			if wrong, err := b.wrong(); err != nil || wrong != spoilt {
				t.Fatalf("%d wrong elements, want %d: %v", wrong, spoilt, err)
			}
		}
	})
}

// Sums are exact in every type up to the ranks that parseCase lets pass.
func TestPattern(t *testing.T) {
	for _, ranks := range []int{1, 64, 127} {
		p := newPattern[int8](ranks, 127)
		for i := range period {
			sum := 0
			for r := range ranks {
				sum += int(p.values[r][i])
			}
			if sum > 127 || int(p.sums[i]) != sum {
				t.Fatalf("%d ranks: the sum is %d, held as %d", ranks, sum, p.sums[i])
			}
		}
	}
	if q := newPattern[spmd.BF16](100, 256); q.sums[0].Float32() != float32(int(q.sums[0].Float32())) || slices.Equal(q.values[0], q.values[1]) {
		t.Error("ranks hold the same, or sums are rounded")
	}
}

// line is a measurement for tests.
func line(side string, ranks int, us float64, wrong int) measured {
	m := measured{kind: kind{App: "sweep", Op: "allreduce", Dtype: "float32", Elements: 2, Bytes: 8}, Wrong: &wrong, OK: wrong == 0}
	m.Side, m.Ranks, m.MinUS, m.MedianUS, m.P99US, m.MaxUS = side, ranks, us, us, us, us
	return m
}

func testSweep(set string) *sweep {
	s := &sweep{harness: harness{rounds: 3, gpus: []string{"H200"}, set: set, group: collectivesPart, line: "bin/bench sweep"}, goal: 1.05}
	s.graph, s.symmetric, s.inPlace, s.stream, s.iters = choice{false}, choice{false}, choice{false}, "auto", 2
	return s
}

// Sides run in turn; medians count, wrong elements add up, and a side that fails is left alone.
func TestTurnsOf(t *testing.T) {
	s, order := testSweep(hostSet), ""
	times := map[string][]float64{"a": {3, 1, 2}, "b": {9, 8, 10}}
	of := func(name string, wrong int) side {
		return side{name, 2, func() ([]measured, error) {
			order += name
			us := times[name][0]
			times[name] = times[name][1:]
			m := line(name, 2, us, wrong)
			m.Slow = []json.RawMessage{[]byte(fmt.Sprintf(`{"us":%v}`, us))}
			return []measured{m}, nil
		}}
	}
	bad := side{"c", 2, func() ([]measured, error) { order += "c"; return nil, errors.New("no such library") }}
	all, err := s.turnsOf([]side{of("a", 0), bad, of("b", 1)})
	if order != "acbabab" || err == nil || !strings.Contains(err.Error(), "c on 2 ranks: no such library") {
		t.Errorf("%s, %v", order, err)
	}
	if len(all) != 2 || all[0].MedianUS != 2 || all[0].MinUS != 1 || all[0].MaxUS != 3 || all[0].Rounds != 3 || !all[0].OK ||
		all[1].MedianUS != 9 || *all[1].Wrong != 3 || all[1].OK {
		t.Errorf("%+v", all)
	}
	if slow, err := json.Marshal(all[0].Slow); string(slow) != `[{"us":3},{"us":1},{"us":2}]` || err != nil { // of all turns
		t.Errorf("slow times %s, %v", slow, err)
	}
	s.out, s.parts, s.all = t.TempDir(), nil, all
	if err := s.run(); err == nil || !strings.Contains(err.Error(), "allreduce of 8B, float32 on 2 ranks: b is wrong") || strings.Contains(err.Error(), ": a is wrong") {
		t.Errorf("a wrong result: %v", err)
	}
}

// After --limit no turn begins, and what was measured before counts.
func TestLimit(t *testing.T) {
	s, order := testSweep(hostSet), ""
	s.begun, s.within = time.Now(), time.Minute
	of := func(name string) side {
		return side{name, 2, func() ([]measured, error) {
			if order += name; order == "ab" {
				s.begun = s.begun.Add(-time.Hour)
			}
			return []measured{line(name, 2, 1, 0)}, nil
		}}
	}
	all, err := s.turnsOf([]side{of("a"), of("b"), of("c")})
	if order != "ab" || len(all) != 2 || err != nil {
		t.Errorf("%s, %v, %v", order, all, err)
	}
}

// An interrupt ends the turn that it meets, and what was measured before counts.
func TestInterrupt(t *testing.T) {
	ctx, interrupt := context.WithCancel(context.Background())
	interrupted = ctx
	t.Cleanup(func() { interrupted = context.Background() })
	s, order := testSweep(hostSet), ""
	of := func(name string) side {
		return side{name, 2, func() ([]measured, error) {
			if order += name; order == "ab" {
				interrupt()
				_, err := output("sleep", "60")
				return nil, err
			}
			return []measured{line(name, 2, 1, 0)}, nil
		}}
	}
	all, err := s.turnsOf([]side{of("a"), of("b"), of("c")})
	if order != "ab" || len(all) != 1 || all[0].Side != "a" || err != nil {
		t.Errorf("%s, %v, %v", order, all, err)
	}
	s.out, s.all = t.TempDir(), all
	if err := s.run(); err == nil || !strings.Contains(err.Error(), "interrupted: what had been measured before is in "+s.out) {
		t.Errorf("%v", err)
	}
}

// Calls are as many on GPUs as nccl-tests can do in few runs; on the host, and where each is waited for, as the clock wants.
func TestCallsOf(t *testing.T) {
	all, err := sizes(8, 1<<30, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, set, collectives string
		calls                  int
		want                   map[int]int // at a size
		runs                   int         // of nccl-tests; 0 where it has no part
	}{
		{"GPUs", gpuSet, "auto", 0, map[int]int{8: 1000, 8 << 20: 1000, 16 << 20: 60, 1 << 30: 60}, 2},
		{"what a caller waits", gpuSet, "auto", 1, map[int]int{8: 1, 1 << 30: 1}, 1},
		{"given", gpuSet, "nccl", 100, map[int]int{8: 100, 8 << 20: 100, 1 << 30: 60}, 2},
		{"GPUs through MPI, staged", gpuSet, "mpi-staged", 0, map[int]int{8: 200, 1 << 30: 1}, 0},
		{"GPUs through MPI", gpuSet, "mpi", 0, map[int]int{8: 200, 1 << 20: 64, 64 << 20: 1, 1 << 30: 1}, 0},
		{"host", hostSet, "auto", 0, map[int]int{8: 200, 256 << 10: 200, 1 << 20: 64, 1 << 30: 1}, 0},
	} {
		s := testSweep(tc.set)
		s.collectives, s.calls, s.sizes = tc.collectives, tc.calls, all
		for bytes, want := range tc.want {
			if got := s.callsOf(bytes); got != want {
				t.Errorf("%s, %s: %d calls, want %d", tc.name, sizeText(bytes), got, want)
			}
		}
		runs := s.ncclRuns()
		if !slices.Equal(slices.Concat(runs...), all) || tc.runs > 0 && len(runs) != tc.runs {
			t.Errorf("%s: %d runs, want %d: %v", tc.name, len(runs), tc.runs, runs)
		}
	}
	for calls, want := range map[int][2]int{1: {1, 1}, 20: {20, 1}, 21: {20, 2}, 1000: {20, 50}} {
		if each, launches := inGraph(calls); each != want[0] || launches != want[1] {
			t.Errorf("%d calls: a graph of %d, launched %d times, want %v", calls, each, launches, want)
		}
	}
}

// Where nothing else is said iterations and the goal are those of the device.
func TestPlace(t *testing.T) {
	given := func(flags ...string) func(string) bool {
		return func(f string) bool { return slices.Contains(flags, f) }
	}
	for _, tc := range []struct {
		set           string
		given         []string
		iters, warmup int
		goal          float64
	}{{hostSet, nil, 20, 5, 1.05}, {gpuSet, nil, 4, 1, 1.03}, {gpuSet, []string{"iters", "warmup"}, 2, 0, 1.03}} {
		s := testSweep(tc.set)
		s.device, s.goal, s.ranks, s.costRanks = map[string]string{hostSet: "host", gpuSet: "cuda"}[tc.set], 0, []int{4, 1, 4}, []int{1, 4}
		if err := s.place(given(tc.given...)); err != nil {
			t.Fatal(err)
		}
		if s.iters != tc.iters || s.warmup != tc.warmup || s.goal != tc.goal || !slices.Equal(s.ranks, []int{1, 4}) {
			t.Errorf("%s, given %v: %d iterations after %d, goal %v, ranks %v", tc.set, tc.given, s.iters, s.warmup, s.goal, s.ranks)
		}
		if want := map[string]int{hostSet: 2, gpuSet: 1}[tc.set]; len(s.costRanks) != want { // there is one GPU
			t.Errorf("%s: cost on %v", tc.set, s.costRanks)
		}
	}
}

func TestSpeedUps(t *testing.T) {
	of := func(scaling string, ranks int, us float64) measured {
		m := line(ours, ranks, us, 0)
		m.kind = kind{App: "matvec", Side: ours, Scaling: scaling, Ranks: ranks}
		return m
	}
	all := []measured{of(strong, 1, 800), of(strong, 4, 250), of(weak, 1, 800), of(weak, 4, 1000)}
	speedUps(all)
	for i, want := range [][2]float64{{1, 1}, {3.2, 0.8}, {1, 1}, {3.2, 0.8}} {
		if all[i].SpeedUp != want[0] || all[i].Efficiency != want[1] {
			t.Errorf("%s on %d: %v and %v, want %v", all[i].Scaling, all[i].Ranks, all[i].SpeedUp, all[i].Efficiency, want)
		}
	}
}

// The goals without a peer hold for the sizes that they were set for, and on GPUs.
func TestAppGoals(t *testing.T) {
	m := line(ours, 4, 17, 0)
	m.kind = kind{App: "reduce", Side: ours, Scaling: strong, Ranks: 4, Elements: 30_000_000, Dtype: "float32"}
	m.P99US, m.MaxUS = 34, 51
	small := m
	small.Elements = 1000
	for _, tc := range []struct {
		set  string
		m    measured
		want []bool // met
	}{{gpuSet, m, []bool{true, false, true}}, {gpuSet, small, []bool{false, true}}, {hostSet, m, nil}} {
		s := testSweep(tc.set)
		s.appGoals([]measured{tc.m})
		var got []bool
		for _, r := range s.rows {
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
		{"collectives", func(s *sweep) { s.collectives = "mpi-fast" }, "--collectives mpi-fast: want auto, nccl, mpi, "},
		{"a way of MPI", func(s *sweep) { s.collectives = "mpi-peer" }, ""},
		{"ranks", func(s *sweep) { s.ranks = []int{2, 0} }, "--ranks 0"},
		{"rounds", func(s *sweep) { s.rounds = 0 }, "--rounds 0"},
		{"limit", func(s *sweep) { s.within = -1 }, "--limit -1ns"},
		{"sizes", func(s *sweep) { s.to = 4 }, "--to 4B"},
		{"iterations", func(s *sweep) { s.iters = 0 }, "--iters 0"},
		{"stream", func(s *sweep) { s.stream = "yes" }, "--stream yes"},
		{"application", func(s *sweep) { s.app.apps = []string{"hello"} }, "--apps hello"},
		{"steps", func(s *sweep) { s.app.steps = 2 }, "--steps 2"},
		{"goal", func(s *sweep) { s.goal = math.NaN() }, "--goal NaN"},
		{"negative goal", func(s *sweep) { s.goal = -1 }, "--goal -1: must not be negative"},
	} {
		s := testSweep(hostSet)
		s.opNames, s.typeNames, s.parts, s.device, s.collectives, s.from, s.to, s.factor = operationNames(), dtypeNames(), sweepParts, "auto", "auto", 8, 64, 2
		s.app = appFlags{elements: 1, iters: 1, globalBatch: 1, steps: 3}
		tc.change(s)
		err := s.check(nil)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}
