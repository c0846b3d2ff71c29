package main

import (
	"math"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// Program needs it: the test binary is then the program.
func TestMain(m *testing.M) { spmdtest.Main(m, main) }

// TestKernelsCompile fails where kernels_spmd.go is older than the kernels. Then it compiles the
// CUDA, which needs NVRTC but no GPU.
func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }

// TestSolves runs the function on several ranks. Each is a process of its own, started by mpirun.
func TestSolves(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3}, func(t *testing.T, w *spmd.World) {
		for _, side := range []int{3, 4, 33} {
			r, err := run(w, config{Side: side, Tolerance: 1e-10, MaxSteps: 1000})
			if err != nil || r.Residual > 1e-10 {
				t.Errorf("side %d on %d ranks: residual %g, %v", side, w.Size(), r.Residual, err)
			}
		}
		_, err := run(w, config{Side: 33, Tolerance: 1e-10, MaxSteps: 5})
		if err == nil || !strings.Contains(err.Error(), "after 5 steps the residual is") {
			t.Errorf("five steps: %v", err)
		}
	})
}

// TestApply compares with the sum over neighbours, each looked up by its place. Each launch runs
// the CUDA, too, on copies of the buffers, and fails where it computes something else: that needs
// a C++ compiler.
func TestApply(t *testing.T) {
	spmdtest.CompareKernels(t)
	spmdtest.Run(t, []int{1, 2, 3}, func(t *testing.T, w *spmd.World) {
		const side = 5
		p := func(row, column int) float64 { // of the whole grid, and 0 around it
			if row < 0 || row >= side || column < 0 || column >= side {
				return 0
			}
			return float64(1 + (7*row+3*column)%11)
		}
		mine := spmd.ShardOf(side, w.Rank(), w.Size())
		v, err := newSolver(w, side, mine.Len)
		spmdtest.Must(t, err)
		right := make([]float64, v.n)
		for i := range right {
			right[i] = p(mine.Off+i/side, i%side)
		}
		// One step begins with p as the right side.
		if _, _, err := v.solve(right, math.SmallestNonzeroFloat64, 1); err == nil {
			t.Error("one step is enough")
		}
		q := make([]float64, v.n)
		spmdtest.Must(t, v.q.CopyTo(q))
		for i, got := range q {
			row, column := mine.Off+i/side, i%side
			want := 4*p(row, column) - p(row-1, column) - p(row+1, column) - p(row, column-1) - p(row, column+1)
			if got != want {
				t.Errorf("row %d, column %d: %v, want %v", row, column, got, want)
			}
		}
	})
}

// TestProgram starts the program itself, as a user does.
func TestProgram(t *testing.T) {
	p := spmdtest.Program(t, 2, nil, "--side", "40", "--json", "-")
	var r result
	err := p.Result(&r) // beside the lines of steps
	if err != nil || p.Status != 0 || r.App != "anapp" || r.Ranks != 2 || !r.OK {
		t.Fatalf("status %d, %v: %s\n%s", p.Status, err, p.Stdout, p.Stderr)
	}
	p = spmdtest.Program(t, 2, nil, "--side", "1")
	if want := "--side 1: fewer rows than the 2 ranks"; p.Status != 2 || !strings.Contains(p.Stderr, want) {
		t.Errorf("status %d, want 2 and %q:\n%s", p.Status, want, p.Stderr)
	}
}
