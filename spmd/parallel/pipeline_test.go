package parallel_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/schedule"
	"lockstep/spmd"
	"lockstep/spmd/parallel"
	"lockstep/spmd/spmdtest"
)

// affine sets y = a·x + b, of n elements.
var affine = spmd.NewKernel("affine_f32", `
extern "C" __global__ void affine_f32(float *y, const float *x, long long n, float a, float b) {
	long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x, step = gridDim.x * (long long)blockDim.x;
	for (long long i = first; i < n; i += step) {
		y[i] = a * x[i] + b;
	}
}`, func(a spmd.Args) error {
	y, x := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1)
	for i, v := range x {
		y[i] = a.F32(3)*v + a.F32(4)
	}
	return nil
})

// Micro-batch m goes through stages that multiply by r+2 and add m, and its gradient through stages
// that multiply by r+2. Each stage sees small whole numbers, other ones for every stage,
// micro-batch and element.
func TestPipeline(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		testPipeline(t, w, 5, []int{1, 2, 3, 5, 8})
		testPipeline(t, w, 50_001, []int{3}) // messages that wait for their receiver
	})
}

func testPipeline(t *testing.T, w *spmd.World, n int, runs []int) {
	rank, last := w.Rank(), w.Size()-1
	factor := func(r int) float32 { return float32(r + 2) }
	data, ones := spmdtest.Alloc[float32](t, w, n), spmdtest.Alloc[float32](t, w, n)
	for i := range n {
		data.Set(i, float32(i))
		ones.Set(i, float32(i+1))
	}
	s := spmdtest.Stream(t, w, "compute")
	for _, micro := range runs {
		p, err := parallel.NewPipeline[float32](w.Comm(), n, micro)
		spmdtest.Must(t, err)
		inFlight := min(w.Size()-rank, micro)
		var order []string
		ins, outs, dins := make([]spmd.Buffer[float32], micro), make([]spmd.Buffer[float32], micro),
			make([]spmd.Buffer[float32], micro)
		for m := range micro {
			ins[m], outs[m], dins[m] = spmdtest.Alloc[float32](t, w, n), spmdtest.Alloc[float32](t, w, n),
				spmdtest.Alloc[float32](t, w, n)
		}
		launch := func(y, x spmd.Buffer[float32], a, b float32) error {
			return affine.Launch(s, spmd.Cover1D(n, 32), y.Arg(), x.Arg(), spmd.I64(n), spmd.F32(a), spmd.F32(b))
		}
		stage := parallel.Stage[float32]{
			Forward: func(m, slot int, in, out spmd.Buffer[float32]) error {
				order = append(order, fmt.Sprint("F", m))
				if (in.Len() == 0) != (rank == 0) || (out.Len() == 0) != (rank == last) || slot != m%inFlight {
					return fmt.Errorf("micro-batch %d in slot %d: %d elements in, %d out", m, slot, in.Len(), out.Len())
				}
				if rank == 0 {
					in = data
				}
				if err := launch(outs[m], in, factor(rank), float32(m)); err != nil || rank == last {
					return err
				}
				return spmd.Copy(s, out, outs[m])
			},
			Backward: func(m, slot int, in, dout, din spmd.Buffer[float32]) error {
				order = append(order, fmt.Sprint("B", m))
				if rank > 0 { // still that of this micro-batch
					if err := spmd.Copy(s, ins[m], in); err != nil {
						return err
					}
				}
				if rank == last {
					dout = ones
				}
				if err := launch(dins[m], dout, factor(rank), 0); err != nil || rank == 0 {
					return err
				}
				return spmd.Copy(s, din, dins[m])
			},
		}
		check := func() {
			t.Helper()
			spmdtest.Must(t, s.Synchronize())
			for m := range micro {
				for i := 0; i < n; i += 1 + n/9 {
					x, d := float32(i), float32(i+1)
					for r := range rank {
						x = factor(r)*x + float32(m)
					}
					for r := last; r >= rank; r-- {
						d *= factor(r)
					}
					if rank > 0 && ins[m].At(i) != x || outs[m].At(i) != factor(rank)*x+float32(m) ||
						dins[m].At(i) != d {
						t.Fatalf("%d micro-batches, stage %d, micro-batch %d, element %d: in %v, out %v, "+
							"gradient %v; want in %v, gradient %v",
							micro, rank, m, i, ins[m].At(i), outs[m].At(i), dins[m].At(i), x, d)
					}
				}
			}
		}
		spmdtest.Must(t, p.Run(s, stage))
		check()
		// First those that fill the stages behind, then one forward and one backward in turn.
		var want []string
		ahead := min(last-rank, micro-1)
		for m := range ahead {
			want = append(want, fmt.Sprint("F", m))
		}
		for m := range micro {
			if ahead+m < micro {
				want = append(want, fmt.Sprint("F", ahead+m))
			}
			want = append(want, fmt.Sprint("B", m))
		}
		if !slices.Equal(order, want) {
			t.Errorf("stage %d of %d: order %v, want %v", rank, w.Size(), order, want)
		}
		if w.Comm().Capturable() == nil {
			graph, err := s.Capture(func() error { return p.Run(s, stage) })
			spmdtest.Must(t, err)
			for range 2 {
				for m := range micro {
					spmdtest.Must(t, dins[m].SetAll(0))
				}
				spmdtest.Must(t, graph.Launch(s))
				check()
			}
			spmdtest.Must(t, graph.Close())
		}
		var tasks []string
		for _, task := range schedule.Tasks(w.Size(), rank, micro) {
			if task.Backward {
				tasks = append(tasks, fmt.Sprint("B", task.Micro))
			} else {
				tasks = append(tasks, fmt.Sprint("F", task.Micro))
			}
		}
		if !slices.Equal(tasks, want) {
			t.Errorf("stage %d of %d: order %v is said, want %v", rank, w.Size(), tasks, want)
		}
		// Forward alone, of other numbers of micro-batches.
		for _, some := range []int{0, micro - 1, micro} {
			for m := range micro {
				spmdtest.Must(t, outs[m].SetAll(-1))
			}
			spmdtest.Must(t, p.Forward(s, some, func(m int, in, out spmd.Buffer[float32]) error {
				return stage.Forward(m, m%inFlight, in, out)
			}))
			spmdtest.Must(t, s.Synchronize())
			for m := range micro {
				x, i := float32(-1), n-1
				if m < some {
					x = float32(i)
					for r := range rank + 1 {
						x = factor(r)*x + float32(m)
					}
				}
				if got := outs[m].At(i); got != x {
					t.Fatalf("%d micro-batches forward, stage %d, micro-batch %d: %v, want %v", some, rank, m, got, x)
				}
			}
		}
		spmdtest.Must(t, p.Close())
	}
	if _, err := parallel.NewPipeline[float32](w.Comm(), n, 0); err == nil ||
		!strings.Contains(err.Error(), "0 micro-batches") {
		t.Errorf("no micro-batches: %v", err)
	}
}
