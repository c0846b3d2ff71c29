package trainer

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/apps/train/ops"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// weight returns the place of a weight that passes read as float32, whatever the type of the
// activations: it belongs to the last LayerNorm.
func weight(tr *Trainer) spmd.Buffer[float32] {
	p := tr.State.Params[0]
	return tr.State.Weights.Slice(p.Off, p.Off+p.Len)
}

// A number on one rank that is not finite ends the run on all ranks. The error names the step, the
// rank and the tensor. The weights stay as before that step, though the next step already runs.
func TestBadStepEnds(t *testing.T) {
	traintest.OnBoth(t, []int{1, 3}, testBadStepEnds[float32], testBadStepEnds[spmd.BF16])
}

func testBadStepEnds[A ops.Act](t *testing.T, w *spmd.World) {
	for _, tc := range []struct {
		value float32
		want  string
	}{
		{float32(math.NaN()), "in the weight ln_f.weight"},
		{math.MaxFloat32, "in the gradient of ln_f.weight"},
	} {
		cfg := testConfig(4)
		cfg.Half = ops.IsHalf[A]()
		tr := start(t, w, w.Comm(), cfg, wordTokens(4000))
		step(t, tr, 0)
		last := w.Size() - 1
		was := weight(tr).At(1)
		if w.Rank() == last {
			weight(tr).Set(1, tc.value)
		}
		before, moments := traintest.ValuesOf(t, tr.State.Weights), traintest.ValuesOf(t, tr.Optimizer.V)
		spmdtest.Must(t, tr.Enqueue(1))
		spmdtest.Must(t, tr.Stream.Synchronize())
		weight(tr).Set(1, was) // the next step is a good one
		spmdtest.Must(t, tr.Enqueue(2))
		spmdtest.Must(t, tr.Stream.Synchronize())
		if loss := tr.results.steps[0].totals.At(0); !ops.Finite(loss) {
			t.Fatalf("the step after has loss %g", loss)
		}
		if w.Rank() == last {
			weight(tr).Set(1, tc.value)
		}
		_, _, _, err := tr.Read(1)
		for _, want := range []string{"step 2: loss ", fmt.Sprintf("rank %d has the first", last), tc.want} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q in it", err, want)
			}
		}
		same := func(a, b float32) int { return int(int64(math.Float32bits(a)) - int64(math.Float32bits(b))) }
		if slices.CompareFunc(traintest.ValuesOf(t, tr.State.Weights), before, same) != 0 ||
			!slices.Equal(traintest.ValuesOf(t, tr.Optimizer.V), moments) {
			t.Error("the step, or the one after it, has changed the weights or the moments")
		}
		spmdtest.Must(t, tr.Close())
	}
}

// If only the sums over the ranks overflow, the error says so.
func TestBadSum(t *testing.T) {
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		tr := start(t, w, w.Comm(), testConfig(2), wordTokens(4000))
		spmdtest.Must(t, tr.Enqueue(0))
		spmdtest.Must(t, tr.Stream.Synchronize())
		err := tr.blame(0, 1, math.Inf(1))
		if err == nil || !strings.Contains(err.Error(), "a sum over them overflowed") {
			t.Errorf("error %v", err)
		}
		spmdtest.Must(t, tr.Close())
	})
}

// A skipped step leaves no trace: weights and moments have the bits of a run that
// has passed over its sequences.
func TestSkipBadStep(t *testing.T) {
	traintest.OnBothQuickly(t, []int{1, 3}, nil, testSkipBadStep[float32], testSkipBadStep[spmd.BF16])
}

func testSkipBadStep[A ops.Act](t *testing.T, w *spmd.World) {
	const steps, wrong = 5, 2
	cfg := testConfig(steps)
	cfg.Half, cfg.SkipBad = ops.IsHalf[A](), 1
	f := wordTokens(4000)
	skips, passes := start(t, w, w.Comm(), cfg, f), start(t, w, w.Comm(), cfg, f)
	for i := range steps {
		if i != wrong {
			a, an := step(t, skips, i)
			b, bn := step(t, passes, i)
			if a != b || an != bn {
				t.Errorf("step %d: loss %v, norm %v; without the bad step %v, %v", i, a, an, b, bn)
			}
			continue
		}
		for range passes.microSteps(cfg.GlobalBatch) {
			if _, err := passes.feeds.steps.Next(passes.Stream); err != nil {
				t.Fatal(err)
			}
		}
		was := weight(skips).At(1)
		if w.Rank() == w.Size()-1 {
			weight(skips).Set(1, float32(math.Inf(-1)))
		}
		if loss, norm := step(t, skips, i); !Bad(loss, norm) {
			t.Fatalf("loss %g, norm %g of a step that is to be bad", loss, norm)
		}
		weight(skips).Set(1, was)
	}
	for i, a := range skips.replicas() {
		if !slices.Equal(traintest.ValuesOf(t, a.Buffer), traintest.ValuesOf(t, passes.replicas()[i].Buffer)) {
			t.Errorf("%s differs after a skipped step", a.Prefix)
		}
	}
	for _, tr := range []*Trainer{skips, passes} {
		spmdtest.Must(t, tr.Close())
	}
}
