package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/random"
	"lockstep/spmd/spmdtest"
)

// Program needs it: the test binary is then the program.
func TestMain(m *testing.M) { spmdtest.Main(m, main) }

// TestKernelsCompile fails where kernels_spmd.go is older than the kernel. Then it compiles the
// CUDA, which needs NVRTC but no GPU.
func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }

// alone computes all jobs one after the other, without groups and without the kernel.
func alone(c config, starts []float64) (all []result) {
	for job := range c.Jobs {
		above := 0
		for _, x := range starts {
			for range c.Steps {
				if x = c.value(job) * x * (1 - x); x > 0.5 {
					above++
				}
			}
		}
		all = append(all, result{c.value(job), float64(above) / float64(c.Starts*c.Steps)})
	}
	return all
}

// TestSweep has the same results whatever the ranks and groups are. Each launch runs the CUDA, too,
// on copies of the buffers, and fails where it computes something else: that needs a C++ compiler.
func TestSweep(t *testing.T) {
	spmdtest.CompareKernels(t)
	spmdtest.Run(t, []int{1, 2, 3}, func(t *testing.T, w *spmd.World) {
		c := config{From: 2.5, To: 4, Jobs: 5, Starts: 7, Steps: 20}
		s, starts := spmdtest.Stream(t, w, "test"), spmdtest.Alloc[float64](t, w, c.Starts)
		spmdtest.Must(t, random.Uniform(s, starts, w.Seed(), 0))
		all := make([]float64, c.Starts)
		spmdtest.Must(t, starts.CopyTo(all))
		want := alone(c, all)
		for c.Group = 1; c.Group <= w.Size(); c.Group++ {
			if got, err := run(w, c); err != nil || !slices.Equal(got, want) {
				t.Errorf("rank %d, groups of %d: %v, %v, want %v", w.Rank(), c.Group, got, err, want)
			}
		}
	})
}

// TestProgram starts the program itself, as a user does. Up to a rate of 3 all samples come to rest
// at 1 - 1/rate.
func TestProgram(t *testing.T) {
	p := spmdtest.Program(t, 3, nil, "--from", "1.9", "--to", "2.9", "--jobs", "2", "--group", "2", "--json", "-")
	lines := strings.Split(p.Stdout, "\n")
	if p.Status != 0 || len(lines) != 3 {
		t.Fatalf("status %d: %s\n%s", p.Status, p.Stdout, p.Stderr)
	}
	for i, want := range []float64{0, 1} { // almost: a few steps go by before
		var r result
		if err := json.Unmarshal([]byte(lines[i]), &r); err != nil || max(r.Above-want, want-r.Above) > 0.02 {
			t.Errorf("%v: %s, want %v", err, lines[i], want)
		}
	}
	p = spmdtest.Program(t, 3, nil, "--group", "4")
	if want := "--group 4: must be 1 to the 3 ranks"; p.Status != 2 || !strings.Contains(p.Stderr, want) {
		t.Errorf("status %d, want 2 and %q:\n%s", p.Status, want, p.Stderr)
	}
}
