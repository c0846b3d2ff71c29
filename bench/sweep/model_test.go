package sweep

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/bench/measure"
)

// points returns points of a model with known parameters, each off by up to noise, the
// same every time.
func points(m model, ranks []int, noise float64) []sample {
	var all []sample
	for _, p := range ranks {
		for n := 8; n <= 1<<30; n *= 4 {
			us, _ := m.us(float64(n), float64(p))
			off := float64(len(all)*7919%201)/100 - 1
			all = append(all, sample{float64(n), float64(p), us * (1 + noise*off)})
		}
	}
	return all
}

// known returns a model whose terms start alike.
func known(start float64, terms ...fittedTerm) model {
	for i := range terms {
		terms[i].startUS = start
	}
	return model{terms: terms}
}

// A fit finds the algorithms and the parameters of the points.
func TestFit(t *testing.T) {
	for _, tc := range []struct {
		name  string
		m     model
		ranks []int
		noise float64
		near  float64 // how far parameters may be off
	}{
		{"GPUs: small ones at once, large ones in a ring",
			known(2.5, fittedTerm{algorithm: oneShot, stepUS: 0.4, gbps: 120},
				fittedTerm{algorithm: ring, stepUS: 2, gbps: 340}), []int{2, 3, 4}, 0, 0.01},
		{"the same with noise", known(2.5, fittedTerm{algorithm: oneShot, stepUS: 0.4, gbps: 120},
			fittedTerm{algorithm: ring, stepUS: 2, gbps: 340}), []int{2, 3, 4, 6, 8}, 0.01, 0.1},
		{"host: doubling", known(0.3, fittedTerm{algorithm: doubling, stepUS: 0.5, gbps: 2}),
			[]int{2, 4, 8, 16, 32, 64}, 0, 0.01},
		{"host: a ring with noise", known(1, fittedTerm{algorithm: ring, stepUS: 5, gbps: 3}),
			[]int{2, 4, 8, 16, 32, 64}, 0.02, 0.1},
		{"small ones doubling, large ones in a ring",
			known(0.5, fittedTerm{algorithm: doubling, stepUS: 1, gbps: 4},
				fittedTerm{algorithm: ring, stepUS: 3, gbps: 12}), []int{2, 4, 8, 16}, 0.01, 0.1},
		{"a tree", known(4, fittedTerm{algorithm: tree, stepUS: 2, gbps: 50}), []int{2, 4, 8, 16}, 0, 0.01},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := fit(points(tc.m, tc.ranks, tc.noise))
			if err != nil {
				t.Fatal(err)
			}
			if len(got.terms) != len(tc.m.terms) || got.rms > 0.005+tc.noise || got.worst < got.rms {
				t.Fatalf("%+v, want %+v", got, tc.m)
			}
			off := func(name string, a, b float64) {
				if math.Abs(math.Log(a/b)) > tc.near {
					t.Errorf("%s: %v, want %v", name, a, b)
				}
			}
			decided := 0
			for _, want := range tc.m.terms {
				i := slices.IndexFunc(got.terms, func(f fittedTerm) bool { return f.name == want.name })
				if i < 0 {
					t.Fatalf("no %s in %+v", want.name, got)
				}
				off(want.name+": start", got.terms[i].startUS, want.startUS)
				off(want.name+": step", got.terms[i].stepUS, want.stepUS)
				off(want.name+": bandwidth", got.terms[i].gbps, want.gbps)
				decided += got.terms[i].points
			}
			if n := len(points(tc.m, tc.ranks, 0)); decided != n {
				t.Errorf("%d points decided, want %d", decided, n)
			}
		})
	}
}

// On one number of ranks start and steps are one, and the likeliest algorithm is taken.
func TestFitOneNumberOfRanks(t *testing.T) {
	m := known(2, fittedTerm{algorithm: ring, stepUS: 1.5, gbps: 300})
	got, err := fit(points(m, []int{4}, 0))
	if err != nil || len(got.terms) != 1 || got.terms[0].name != "ring" || got.terms[0].startUS != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	if f := got.terms[0]; math.Abs(f.stepUS-(2+9)/6.0) > 0.02 || math.Abs(f.gbps-300) > 3 {
		t.Errorf("%+v", f)
	}
}

// Points of one size, as cost measures them, give a time by ranks, but no bandwidth, and no
// prediction of other sizes. The report says if points follow no such model.
func TestModelOfCost(t *testing.T) {
	of := func(us func(p float64) float64) string {
		var all []measure.Measured
		for _, p := range []int{1, 2, 4, 8, 16, 32, 64} {
			m := timeOf(measure.Ours, p, us(float64(p)), 0)
			m.App, m.Device = "cost", "host"
			all = append(all, m)
		}
		f := modelFlags{side: measure.Ours, fitRanks: []int{2, 4, 16, 32, 64}, ranks: []int{48, 1024},
			sizes: []string{"1MiB"}, out: t.TempDir(), network: network{gbps: 50, stepUS: 5}}
		if err := f.check(); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := f.run(&out, all); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	// It takes 3 us, and 1.5 for each further rank. The 8 ranks, which are left out, take any time.
	text := of(func(p float64) float64 { return map[bool]float64{true: 1000, false: 3 + 1.5*(p-1)}[p == 8] })
	for _, want := range []string{
		"5 points, 8B to 8B, on 2 4 16 32 64 ranks\n  T(n, p) = the least of\n" +
			"    3 us + 0.75 us 2(p-1)   (ring; decides 5 points)\n", "  8B\n     48           73.5\n   1024  ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	text = of(func(p float64) float64 { return map[bool]float64{true: 1, false: 1000}[p < 10] * p })
	if !strings.Contains(text, "do not follow the model") || strings.Contains(text, "expected") {
		t.Errorf("a poor fit:\n%s", text)
	}
}

// The time over nodes is counted by hand: 8 ranks a node, 64 ranks, 64 MiB. Within a node it is a
// ring of 8. Between nodes it is 8 MiB over 8 nodes.
func TestExpect(t *testing.T) {
	m := known(2, fittedTerm{algorithm: ring, stepUS: 1, gbps: 300})
	w := network{perNode: 8, gbps: 50, stepUS: 5}
	const n = 64 << 20
	within := 2 + 14 + 1.75*n/300e3
	ringOver, treeOver := 14*5+1.75*n/8/50e3, 6*5+2.0*n/8/50e3
	for _, tc := range []struct {
		ranks        int
		best, worst  float64
		bytes        int
		explanations string
	}{
		{8, within, within, n, "one node"},
		{4, 2 + 6 + 1.5*n/300e3, 2 + 6 + 1.5*n/300e3, n, "half a node"},
		{64, within, within + min(ringOver, treeOver), n, "8 nodes: within a node it takes longer"},
		{64, 30 + 2.0/50e3, 16 + 1.75*8/300e3 + 30 + 2.0/50e3, 8, "8 nodes, 8 bytes: the tree's 6 steps"},
		{1024, 70 + 2.0/50e3, 16 + 1.75*8/300e3 + 70 + 2.0/50e3, 8, "128 nodes, 8 bytes: the tree's 14 steps"},
	} {
		best, worst := w.expect(m, tc.bytes, tc.ranks)
		if math.Abs(best-tc.best) > 1e-9*tc.best || math.Abs(worst-tc.worst) > 1e-9*tc.worst {
			t.Errorf("%s: %v to %v, want %v to %v", tc.explanations, best, worst, tc.best, tc.worst)
		}
	}
}

// The command's text has the model, the error and the predictions, for each way of calling. The
// host's nodes are as large as the measured ones.
func TestModelReport(t *testing.T) {
	var all []measure.Measured
	add := func(device string, graph bool, m model, ranks ...int) {
		for _, p := range points(m, ranks, 0) {
			l := timeOf(measure.Ours, int(p.ranks), p.us, 0)
			l.Bytes, l.Elements, l.Graph, l.Device = int(p.bytes), int(p.bytes)/4, graph, device
			all = append(all, l)
		}
	}
	add("NVIDIA H200", true, known(1, fittedTerm{algorithm: ring, stepUS: 1, gbps: 300}), 1, 2, 4)
	add("host", false, known(1, fittedTerm{algorithm: ring, stepUS: 5, gbps: 3}), 2, 16)
	few := timeOf(measure.Ours, 2, 3, 0)
	few.Symmetric, few.Device = true, "NVIDIA H200"
	other := timeOf("nccl-tests -R 0", 2, 3, 0)
	all = append(all, few, other)
	f := modelFlags{side: measure.Ours, ranks: []int{8, 64, 1024}, sizes: []string{"8B", "64MiB"}, out: t.TempDir(),
		network: network{gbps: 50, stepUS: 5}}
	if err := f.check(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := f.run(&out, all); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"lockstep: allreduce, float32, in a graph on NVIDIA H200\n28 points, 8B to 512MiB, on 2 4 ranks\n" +
			"  T(n, p) = the least of\n    1 us + 1 us 2(p-1) + n 2(p-1)/p / 300 GB/s   (ring; decides 28 points)\n",
		// 45 = 1 + 14 + 6 steps of 5
		"nodes of 8 ranks, a network of 50 GB/s", "nodes of 16 ranks, a network", "30 to 45",
		"lockstep: allreduce, float32, symmetric on NVIDIA H200: 1 points on 2 ranks or more are too few for a " +
			"model, which wants 4", "Assumed: ", "Left out: ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "nccl-tests") {
		t.Errorf("another side's points are taken:\n%s", &out)
	}
	plots, err := filepath.Glob(filepath.Join(f.out, "*.svg"))
	if err != nil || len(plots) != 2 {
		t.Fatalf("%q, %v", plots, err)
	}
	for _, p := range plots {
		text := checkSVG(t, p)
		if !strings.Contains(text, "measured, 2 ranks") || !strings.Contains(text, "expected of 64MiB") {
			t.Errorf("%s lacks a line", p)
		}
	}
	if err := f.run(&out, []measure.Measured{few}); err == nil ||
		!strings.Contains(err.Error(), `no all-reduces of "lockstep"`) {
		t.Errorf("too few points for any model: %v", err)
	}
}

func TestModelCheck(t *testing.T) {
	for _, tc := range []struct {
		change func(*modelFlags)
		want   string
	}{
		{func(*modelFlags) {}, ""},
		{func(f *modelFlags) { f.ranks = []int{64, 1} }, "--ranks 1"},
		{func(f *modelFlags) { f.perNode = 1 }, "--per-node 1"},
		{func(f *modelFlags) { f.gbps = 0 }, "--network-gbps 0"},
		{func(f *modelFlags) { f.gbps = math.NaN() }, "--network-gbps NaN"},
		{func(f *modelFlags) { f.stepUS = math.Inf(1) }, "--network-us +Inf"},
		{func(f *modelFlags) { f.sizes = []string{"8"} }, ""},
		{func(f *modelFlags) { f.sizes = []string{"8 bytes"} }, "--sizes 8 bytes"},
	} {
		f := modelFlags{ranks: []int{64}, sizes: []string{"8B"}, network: network{perNode: 8, gbps: 50, stepUS: 5}}
		tc.change(&f)
		err := f.check()
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%v, want %q", err, tc.want)
		}
	}
}

// timeOf returns a measurement of one time.
func timeOf(side string, ranks int, us float64, wrong int) measure.Measured {
	m := measure.Measured{Kind: measure.Kind{App: "sweep", Op: "allreduce", Dtype: "float32", Elements: 2,
		Bytes: 8}, Wrong: &wrong, OK: wrong == 0}
	m.Side, m.Ranks, m.MedianUS = side, ranks, us
	return m
}
