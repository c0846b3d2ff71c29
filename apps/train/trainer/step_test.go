package trainer

import (
	"testing"

	"lockstep/apps/train/ops"
	"lockstep/apps/train/traintest"
	"lockstep/internal/testkit"
	"lockstep/spmd"
)

// Steps as graphs have the losses, norms and weights of steps as commands, bit for bit, over
// several kinds of micro-steps.
func TestGraphSteps(t *testing.T) {
	traintest.OnBothQuickly(t, []int{1, 2, 3}, nil, testGraphSteps[float32], testGraphSteps[spmd.BF16])
}

func testGraphSteps[A ops.Act](t *testing.T, w *spmd.World) {
	const steps = 6
	f := wordTokens(4000)
	cfg := testConfig(steps) // 7 sequences, 2 at a time: the last micro-step of one rank has 1
	cfg.Half = ops.IsHalf[A]()
	cfg.Graph = "off"
	plain := start(t, w, w.Comm(), cfg, f)
	cfg.Graph = "on"
	if err := w.Comm().Capturable(); err != nil {
		if _, err := New(w, w.Comm(), cfg, plain.Data); err == nil {
			t.Error("--graph on is taken where collectives cannot be captured")
		}
		return
	}
	graphs := start(t, w, w.Comm(), cfg, f)
	for i := range steps {
		loss, norm := step(t, plain, i)
		gloss, gnorm := step(t, graphs, i)
		if loss != gloss || norm != gnorm {
			t.Fatalf("step %d: loss %v, norm %v; as a graph %v, %v", i, loss, norm, gloss, gnorm)
		}
	}
	made := 0
	for kind, g := range graphs.graphs.made {
		if g == nil {
			t.Errorf("micro-steps of kind %+v have no graph after %d steps", kind, steps)
		}
		made++
	}
	if made == 0 || plain.graphs != nil {
		t.Errorf("%d kinds of micro-steps are graphs, want some; without graphs %v", made, plain.graphs)
	}
	a, b := make([]float32, plain.State.Weights.Len()), make([]float32, graphs.State.Weights.Len())
	testkit.Must(t, plain.State.Weights.CopyTo(a))
	testkit.Must(t, graphs.State.Weights.CopyTo(b))
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("weight %d is %v, as a graph %v", i, a[i], b[i])
		}
	}
}
