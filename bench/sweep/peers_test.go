package sweep

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/bench/measure"
	"lockstep/launch/inspect"
	"lockstep/spmd/spmdtest"
)

// ncclSample is a double of a table in the format of nccl-tests' writeBenchmarkLine functions. The
// numbers are made up.
const ncclSample = `# nccl-tests version 2.19.0 nccl-headers=22803 nccl-library=22803
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 4 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid   1234 on       node device  0 [0000:19:00] NVIDIA H200
#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong 
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         
           0             0     float     sum      -1     4.11    0.00    0.00       0     4.02    0.00    0.00       0
           8             2     float     sum      -1     8.20    0.00    0.00       0     8.10    0.00    0.00     N/A
    67108864      16777216     float     sum      -1    320.9  209.13  313.70       0    321.5  208.74  313.11       3
# Out of bounds values : 3 FAILED
# Avg bus bandwidth    : 156.851 
#
`

func TestNCCLTable(t *testing.T) {
	op, float := measure.Operations[0], measure.DTypes[0]
	all, err := ncclTable(ncclSample, op, float)
	if err != nil || len(all) != 4 {
		t.Fatalf("%d lines, %v", len(all), err)
	}
	for i, want := range []struct {
		bytes, wrong int // -1: nobody looked
		us           float64
		inPlace, ok  bool
	}{
		{8, 0, 8.2, false, true}, {8, -1, 8.1, true, true}, {64 << 20, 0, 320.9, false, true},
		{64 << 20, 3, 321.5, true, false},
	} {
		m, wrong := all[i], -1
		if m.Wrong != nil {
			wrong = *m.Wrong
		}
		if m.Bytes != want.bytes || m.Elements != want.bytes/4 || wrong != want.wrong || m.MedianUS != want.us ||
			m.InPlace != want.inPlace || m.OK != want.ok {
			t.Errorf("line %d: %+v", i, m)
		}
	}
	for _, bad := range []string{
		"", "# nothing\n", strings.ReplaceAll(ncclSample, "float", "half"),
		strings.Replace(ncclSample, "8.20", "fast", 1), strings.Replace(ncclSample, "N/A", "some", 1),
	} {
		if _, err := ncclTable(bad, op, float); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// nccl-tests runs on plain and symmetric memory, in and out of a graph, with its own numbers of
// iterations. The program is a double: a script that notes its flags and prints the sample.
func TestNCCLSides(t *testing.T) {
	s, dir := testSweep(measure.GPUSet), t.TempDir()
	flags := filepath.Join(dir, "flags")
	// The first of three cycles is the warm-up. Each is slower than the one before, from 8.2 us.
	right := strings.Replace(ncclSample, "313.11       3", "313.11       0", 1)
	script := "#!/bin/sh\necho \"$@\" >> " + flags + "\ncat <<'END'\n" + right +
		strings.Replace(right, "8.20", "8.40", 1) + strings.Replace(right, "8.20", "8.80", 1) + "END\n"
	spmdtest.Must(t, os.WriteFile(filepath.Join(dir, "all_reduce_perf"), []byte(script), 0o777))
	s.ncclTests, s.peers, s.ops = dir, []string{"nccl-tests"}, measure.Operations
	s.types, s.factor, s.Graph, s.Rounds = measure.DTypes[:1], 2, measure.Choice{false, true}, 1
	s.sizes, s.calls, s.Warmup = []int{8, 16, 128 << 20}, 100, 1
	sides := s.collectiveSides(4, measure.Cases(s.ops, s.types, s.sizes, 4, s.callsOf))
	if len(sides) != 3 {
		t.Fatalf("%d sides, want ours and two of nccl-tests", len(sides))
	}
	all, err := s.turnsOf(sides[1:])
	if err != nil || len(all) != 2*2*2 { // places are one: out of place
		t.Errorf("%d lines, %v: %+v", len(all), err, all)
	}
	for _, m := range all {
		if m.Symmetric != (m.Side == "nccl-tests -R 2") || m.InPlace || m.Ranks != 4 || m.Device != "H200" ||
			m.Iters != 2 {
			t.Errorf("%+v", m)
		}
		if m.Bytes == 8 && (m.MinUS != 8.4 || m.MaxUS != 8.8 || math.Abs(m.MedianUS-8.6) > 1e-9) {
			t.Errorf("8 bytes: %+v, want the second and the third cycle", m.Stats)
		}
	}
	got, err := os.ReadFile(flags)
	want := ""
	for _, r := range []string{"0", "2"} {
		// These are small and large sizes, without a graph and in one.
		for _, n := range [][2]string{{"-n 100", "-n 60"}, {"-n 20 -G 5", "-n 20 -G 3"}} {
			want += "-b 8 -e 16 -f 2 -d float -w 1 -c 1 -a 3 -R " + r + " -N 3 " + n[0] + " -g 4\n"
			want += "-b 134217728 -e 134217728 -f 2 -d float -w 1 -c 1 -a 3 -R " + r + " -N 3 " + n[1] + " -g 4\n"
		}
	}
	if err != nil || string(got) != want {
		t.Errorf("flags %s, want %s: %v", got, want, err)
	}
}

// Each cycle of nccl-tests has every size once. Sizes that became one through the division among
// the ranks are one line. A missing one is an error.
func TestCycles(t *testing.T) {
	of := func(bytes int, us ...float64) []measure.Measured {
		var all []measure.Measured
		for _, u := range us {
			m := line("", 2, u, 1)
			m.Bytes = bytes
			all = append(all, m)
		}
		return all
	}
	all, err := cycles(slices.Concat(of(8, 9, 1, 3), of(16, 20, 21, 10, 11, 12, 14)), 1, 2)
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	for i, want := range [][4]float64{{2, 1, 2, 3}, {4, 10, 11.5, 14}} {
		if m := all[i]; float64(m.Iters) != want[0] || m.MinUS != want[1] || m.MedianUS != want[2] ||
			m.MaxUS != want[3] || m.OK || *m.Wrong != []int{3, 6}[i] {
			t.Errorf("%d bytes: %+v", m.Bytes, m)
		}
	}
	if all, err := cycles(of(8, 1, 2), 1, 2); err == nil ||
		!strings.Contains(err.Error(), "2 lines of 8 bytes, want one for each of 3 cycles") {
		t.Errorf("%+v, %v", all, err)
	}
}

// twice is the number of calls of a timed iteration.
func twice(int) int { return 2 }

// Peers that this machine lacks, or that do not fit the device, are left out.
func TestPresent(t *testing.T) {
	s := testSweep(measure.GPUSet)
	s.peers, s.python = peerNames(), "/nonexistent/python3"
	if p := s.present(); len(p) != 0 {
		t.Errorf("%d peers: %+v", len(p), p)
	}
	for flag, want := range map[string]string{
		"torch": "/nonexistent/python3 cannot import torch", "mpi4py": "cannot import mpi4py",
		"nccl-tests": "--nccl-tests", "c": "host memory",
	} {
		i := slices.IndexFunc(peers, func(p peer) bool { return p.flag == flag })
		if err := peers[i].missing(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", flag, err, want)
		}
	}
}

// The Python programs are valid.
func TestPythonCompiles(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	programs, err := filepath.Glob("../peers/*.py")
	if err != nil || len(programs) == 0 {
		t.Fatalf("%v, %v", programs, err)
	}
	cmd := exec.CommandContext(t.Context(), python, append([]string{"-m", "py_compile"}, programs...)...)
	cmd.Env = append(os.Environ(), "PYTHONPYCACHEPREFIX="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// pythonWith is a Python that can import a module.
func pythonWith(t *testing.T, module string) string {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.CommandContext(t.Context(), python, "-c", "import "+module).Run() == nil {
			return python
		}
	}
	t.Skipf("no Python here can import %s", module)
	return ""
}

// mpi4py measures the same cases as the framework, with right results.
func TestMPI4Py(t *testing.T) {
	spmdtest.HostOnly(t, "mpi4py's buffers are the host's")
	s := testSweep(measure.HostSet)
	s.python, s.pythonDir, s.Rounds = pythonWith(t, "mpi4py"), "../peers", 1
	list := measure.Cases(measure.Operations, []measure.DType{measure.DTypes[0], measure.DTypes[4]},
		[]int{64, 5000}, 3, twice)
	all, err := s.turnsOf(s.mpi4pySides(3, list))
	spmdtest.Must(t, err)
	checkPeer(t, all, list)
}

// The C program measures the same cases as the framework, with right results.
func TestCProgram(t *testing.T) {
	spmdtest.HostOnly(t, "the C program's buffers are the host's")
	s := testSweep(measure.HostSet)
	s.CSources, s.Dir, s.Rounds, s.InPlace = "../c", t.TempDir(), 1, measure.Choice{false, true}
	list := measure.Cases(measure.Operations,
		[]measure.DType{measure.DTypes[0], measure.DTypes[1], measure.DTypes[6], measure.DTypes[8]},
		[]int{64, 5000}, 3, twice)
	all, err := s.turnsOf(s.cSides(3, list))
	spmdtest.Must(t, err)
	checkPeer(t, slices.DeleteFunc(slices.Clone(all),
		func(m measure.Measured) bool { return m.InPlace && m.Op != "broadcast" }), list)
	both := 0
	for _, c := range list {
		both += len(c.Op.Places)
	}
	if len(all) != both {
		t.Errorf("%d lines, want %d", len(all), both)
	}
	if _, _, err := measure.Outputs(nil,
		measure.MPIRun(1, filepath.Join(s.Dir, "collectives"), "1", "0", "off", "scan:float32:1:1")...); err == nil ||
		!strings.Contains(err.Error(), "scan:float32:1:1: is no case") {
		t.Errorf("a case that is none: %v", err)
	}
}

// checkPeer checks that each case has one right line, under the key of our own line.
func checkPeer(t *testing.T, all []measure.Measured, list []measure.Case) {
	t.Helper()
	if len(all) != len(list) {
		t.Fatalf("%d lines for %d cases", len(all), len(list))
	}
	for i, m := range all {
		c := list[i]
		if m.Op != c.Op.Name || m.Dtype != c.DType.Name || m.Elements != c.Elements || m.Bytes != c.Bytes() ||
			m.InPlace != (m.Op == "broadcast") || m.Wrong == nil || *m.Wrong != 0 || !m.OK || m.MedianUS <= 0 {
			t.Errorf("%v: %+v", c, m)
		}
	}
}

func TestPlots(t *testing.T) {
	dir := t.TempDir()
	of := func(side string, samples []float64) measure.Measured {
		m := line(side, 4, 40, 0)
		m.Kind = measure.Kind{App: "reduce", Side: side, Scaling: strong, Ranks: 4}
		m.MinUS, m.P99US, m.MaxUS, m.SamplesUS = 30, 55, 1300, samples
		return m
	}
	for _, tc := range []struct {
		name   string
		panels []inspect.Panel
		want   []string // texts; nil if there is nothing to draw
	}{
		{"times", []inspect.Panel{distribution([]measure.Measured{of(measure.Ours, nil),
			of("PyTorch", []float64{30, 40, 1300})}, "a machine")},
			[]string{"lockstep, 4 ranks: p50 40.0 us, p99 55.0 us, max 1300.0 us", "PyTorch, 4 ranks",
				"times of reduce; a machine"}},
		// no bus bandwidth: one panel
		{"one point", bySize([]measure.Measured{line(measure.Ours, 2, 3, 0)}, "allreduce", "a machine"),
			[]string{"time of a call, us", "8B"}},
		{"ranks", byRanks("reduce", []measure.Measured{of(measure.Ours, nil)}), nil}, // no speed-up yet
		{"nothing", bySize(nil, "allreduce", ""), nil},
	} {
		file := filepath.Join(dir, tc.name+".svg")
		if err := inspect.WriteFigure(file, false, tc.panels...); err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if tc.want == nil {
			if _, err := os.Stat(file); err == nil {
				t.Errorf("%s: a plot of nothing", tc.name)
			}
			continue
		}
		text, err := os.ReadFile(file)
		for _, want := range append(tc.want, "</svg>") {
			if err != nil || !strings.Contains(string(text), want) || strings.Contains(string(text), "NaN") {
				t.Errorf("%s: the plot lacks %q, or has NaN: %v", tc.name, want, err)
			}
		}
	}
}

// Few of many equal times are drawn, and the curve goes where it would go with all of them.
func TestDistributionOfMany(t *testing.T) {
	m := line(measure.Ours, 1, 4, 0)
	m.Scaling = strong
	for i := range 9000 {
		m.SamplesUS = append(m.SamplesUS, 30+float64(i)*1e-6) // within 0.3 %
	}
	m.SamplesUS = append(m.SamplesUS, slices.Repeat([]float64{60}, 1000)...)
	points := distribution([]measure.Measured{m}, "").Curves[0].Points
	last := points[len(points)-1]
	if len(points) > 20 || points[0].X != 30 || points[0].Y != 0 || last.X != 60 || last.Y != 1 {
		t.Fatalf("%v", points)
	}
	for i, p := range points {
		switch {
		case p.X < 31 && p.Y > 0.9 || p.X == 60 && p.Y < 0.9:
			t.Errorf("a point at %v", p)
		case p.X == 60 && points[i-1].X < 31 && points[i-1].Y != 0.9:
			t.Errorf("the curve leaves the place of 9 of 10 times at %v", points[i-1])
		}
	}
}
