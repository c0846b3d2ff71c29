package main

import (
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// Program needs it: the test binary is then the program.
func TestMain(m *testing.M) { spmdtest.Main(m, main) }

// TestKernelsCompile fails where kernels_spmd.go is older than flow. Then it compiles the CUDA,
// which needs NVRTC but no GPU.
func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }

// TestHeat runs the function on several ranks. Each is a process of its own, started by mpirun.
func TestHeat(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		for _, graph := range []bool{false, true} {
			for _, points := range []int{4, 5, 1001, 20_003} {
				if _, err := run(w, config{Points: points, Iters: 20, Graph: graph}); err != nil {
					t.Errorf("%d points on %d ranks, graph %v: %v", points, w.Size(), graph, err)
				}
			}
		}
	})
}

// TestStep knows the answer by hand: a quarter of the heat of the middle point flows to either
// side. Each launch runs the CUDA, too, on copies of the buffers, and fails where it computes
// something else or leaves them: that needs a C++ compiler.
func TestStep(t *testing.T) {
	spmdtest.CompareKernels(t)
	spmdtest.Run(t, []int{1, 2, 3}, func(t *testing.T, w *spmd.World) {
		before, after := []float64{0, 0, 8, 0, 0, 0}, []float64{0, 2, 4, 2, 0, 0}
		mine := spmd.ShardOf(len(before), w.Rank(), w.Size())
		s, err := w.NewStream("test")
		spmdtest.Must(t, err)
		u, err := newRod(w, mine.Len)
		spmdtest.Must(t, err)
		next, err := newRod(w, mine.Len)
		spmdtest.Must(t, err)
		spmdtest.Must(t, u.Slice(1, 1+mine.Len).CopyFrom(before[mine.Off:mine.Off+mine.Len]))
		spmdtest.Must(t, step(w.Comm().On(s), s, next, u))
		if err := s.Synchronize(); err != nil { // waits, and returns the errors of the stream
			t.Fatal(err)
		}
		got := make([]float64, mine.Len)
		spmdtest.Must(t, next.Slice(1, 1+mine.Len).CopyTo(got))
		if want := after[mine.Off : mine.Off+mine.Len]; !slices.Equal(got, want) {
			t.Errorf("rank %d of %d has %v, want %v", w.Rank(), w.Size(), got, want)
		}
	})
}

// TestErrorIsSeen: one wrong point on one rank is an error on all of them.
func TestErrorIsSeen(t *testing.T) {
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		c := config{Points: 4}
		u, err := newRod(w, 2)
		spmdtest.Must(t, err)
		for _, off := range []float64{0, 2, math.NaN()} {
			u.Set(1, off*float64(w.Rank()))
			got, err := rmsError(w, c, u, []float64{0, 0})
			spmdtest.Must(t, err)
			want := off / 2 // the root of off*off over 4 points
			if got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
				t.Errorf("a point off by %v: error %v on rank %d, want %v", off, got, w.Rank(), want)
			}
		}
	})
}

// TestProgram starts the program itself, as a user does.
func TestProgram(t *testing.T) {
	p := spmdtest.Program(t, 2, nil, "--points", "1000", "--json", "-")
	var r result
	spmdtest.Must(t, p.Result(&r))
	if r.App != "anapp" || r.Ranks != 2 || r.Elements != 1000 || r.Iters != 100 || r.MedianUS <= 0 || !r.OK {
		t.Errorf("%s", p.Stdout)
	}
}

func TestBadInput(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"--points 2", "--points 2: fewer than the 3 ranks"},
		{"--points 9223372036854775807", "more bytes than can be addressed"},
		{"--iters 0", "--iters 0: must be at least 1"},
		{"--point 3", "unknown flag: --point"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			t.Parallel()
			p := spmdtest.Program(t, 3, nil, strings.Fields(tc.args)...)
			if p.Status != 2 || !strings.Contains(p.Stderr, tc.want) {
				t.Errorf("status %d, want 2 and a line with %q:\n%s", p.Status, tc.want, p.Stderr)
			}
		})
	}
}
