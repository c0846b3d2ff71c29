package main

import (
	"math"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/spmdtest"
)

// Program needs it: the test binary is then the program.
func TestMain(m *testing.M) { spmdtest.Main(m, main) }

// TestKernelsCompile fails where kernels_spmd.go is older than the kernels. Then it compiles the
// CUDA, which needs NVRTC but no GPU.
func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }

// lossOf is the mean loss of a net, in float64 and without the kernels.
func lossOf(p []float64, inputs []float32) float64 {
	sum := 0.0
	for _, in := range inputs {
		x := float64(in)
		y := p[3*hidden]
		for j := range hidden {
			y += p[2*hidden+j] * math.Tanh(p[j]*x+p[hidden+j])
		}
		off := y - math.Sin(4*x)
		sum += off * off / 2
	}
	return sum / float64(len(inputs))
}

// TestGradient compares the gradient with differences of the loss. Each launch runs the CUDA, too,
// on copies of the buffers, and fails where it computes something else: that needs a C++ compiler.
func TestGradient(t *testing.T) {
	spmdtest.CompareKernels(t)
	spmdtest.Run(t, []int{1, 2, 3}, func(t *testing.T, w *spmd.World) {
		const batch = 10
		n, err := newNet(w, batch)
		spmdtest.Must(t, err)
		before := make([]float32, params)
		spmdtest.Must(t, n.p.CopyTo(before))
		spmdtest.Must(t, n.step(w.Comm().On(n.s), 1, 0.01))
		got, mine := make([]float32, params+1), make([]float32, n.mine.Len)
		spmdtest.Must(t, n.both.CopyTo(got))
		spmdtest.Must(t, n.x.CopyTo(mine))
		inputs := make([]float32, batch)
		copy(inputs[n.mine.Off:], mine)
		spmdtest.Must(t, hostdata.AllReduceSlice(w.Comm(), inputs, inputs, spmd.Sum))

		p := make([]float64, params)
		for i, v := range before {
			p[i] = float64(v)
		}
		if want := batch * lossOf(p, inputs); math.Abs(float64(got[params])-want) > 1e-4*want {
			t.Errorf("rank %d: loss %v, want %v", w.Rank(), got[params], want)
		}
		for i := range p {
			const h = 1e-4
			at := p[i]
			p[i] = at + h
			above := lossOf(p, inputs)
			p[i] = at - h
			want := (above - lossOf(p, inputs)) / (2 * h)
			p[i] = at
			if math.Abs(float64(got[i])-want) > 1e-4 {
				t.Errorf("rank %d: parameter %d has gradient %v, want %v", w.Rank(), i, got[i], want)
			}
		}
	})
}

// TestGoesOn stops a run on every number of ranks and goes on with it: the result is that of one
// that was not stopped.
func TestGoesOn(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3}, func(t *testing.T, w *spmd.World) {
		c := config{Steps: 600, Batch: 64, Rate: 0.02, SaveEvery: 100}
		want, err := run(t.Context(), w, c)
		spmdtest.Must(t, err)
		c.Checkpoint = spmdtest.TempDir(t, w)
		for _, c.Steps = range []int{250, 600, 600} { // the last has nothing left to do
			got, err := run(t.Context(), w, c)
			spmdtest.Must(t, err)
			if c.Steps == 600 && (got != want || got > 0.03) {
				t.Errorf("rank %d: loss %v, want %v, and little", w.Rank(), got, want)
			}
		}
	})
}

// TestProgram starts the program itself, as a user does.
func TestProgram(t *testing.T) {
	p := spmdtest.Program(t, 2, nil, "--steps", "60", "--json", "-")
	if p.Status != 0 || strings.Count(p.Stdout, `"loss":`) != 2 || !strings.Contains(p.Stderr, " INF done loss=") {
		t.Errorf("status %d: %s\n%s", p.Status, p.Stdout, p.Stderr)
	}
	p = spmdtest.Program(t, 2, nil, "--batch", "1")
	if want := "--batch 1: fewer examples than the 2 ranks"; p.Status != 2 || !strings.Contains(p.Stderr, want) {
		t.Errorf("status %d, want 2 and %q:\n%s", p.Status, want, p.Stderr)
	}
}
