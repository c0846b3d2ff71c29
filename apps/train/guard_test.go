package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// weight returns the place of a weight that passes read as float32, whatever the type
// of the activations: of the last LayerNorm.
func weight(tr *trainer) spmd.Buffer[float32] {
	p := tr.state.Params[0]
	return tr.state.Weights.Slice(p.Off, p.Off+p.Len)
}

// A number that is not finite, on one rank, ends the run of all: the step, the rank and
// the tensor are named, and the weights stay as they were before that step, though the
// next one runs already.
func TestBadStepEnds(t *testing.T) {
	onBoth(t, []int{1, 3}, testBadStepEnds[float32], testBadStepEnds[spmd.BF16])
}

func testBadStepEnds[A Act](t *testing.T, w *spmd.World) {
	for _, tc := range []struct {
		value float32
		want  string
	}{
		{float32(math.NaN()), "in the weight ln_f.weight"},
		{math.MaxFloat32, "in the gradient of ln_f.weight"},
	} {
		cfg := testConfig(4)
		cfg.half = isHalf[A]()
		tr := start(t, w, w.Comm(), cfg, wordTokens(4000))
		step(t, tr, 0)
		last := w.Size() - 1
		was := weight(tr).At(1)
		if w.Rank() == last {
			weight(tr).Set(1, tc.value)
		}
		before, moments := floatsOf(t, tr.state.Weights), floatsOf(t, tr.adam.V)
		if err := tr.enqueue(1); err != nil {
			t.Fatal(err)
		}
		if err := tr.s.Synchronize(); err != nil {
			t.Fatal(err)
		}
		weight(tr).Set(1, was) // the next step is a good one
		if err := tr.enqueue(2); err != nil {
			t.Fatal(err)
		}
		if err := tr.s.Synchronize(); err != nil {
			t.Fatal(err)
		}
		if loss := tr.results[0].totals.At(0); !finite(loss) {
			t.Fatalf("the step after has loss %g", loss)
		}
		if w.Rank() == last {
			weight(tr).Set(1, tc.value)
		}
		_, _, _, err := tr.read(1)
		for _, want := range []string{"step 2: loss ", fmt.Sprintf("rank %d has the first", last), tc.want} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q in it", err, want)
			}
		}
		same := func(a, b float32) int { return int(int64(math.Float32bits(a)) - int64(math.Float32bits(b))) }
		if slices.CompareFunc(floatsOf(t, tr.state.Weights), before, same) != 0 || !slices.Equal(floatsOf(t, tr.adam.V), moments) {
			t.Error("the step, or the one after it, has changed the weights or the moments")
		}
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Where no rank has such a number, and the sums over the ranks overflow, the error says so.
func TestBadSum(t *testing.T) {
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		tr := start(t, w, w.Comm(), testConfig(2), wordTokens(4000))
		if err := tr.enqueue(0); err != nil {
			t.Fatal(err)
		}
		if err := tr.s.Synchronize(); err != nil {
			t.Fatal(err)
		}
		err := tr.blame(0, 1, math.Inf(1))
		if err == nil || !strings.Contains(err.Error(), "a sum over them overflowed") {
			t.Errorf("error %v", err)
		}
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A step that is skipped is as if it had not been: the weights and moments are, bit for
// bit, those of a run that has passed over its sequences.
func TestSkipBadStep(t *testing.T) {
	onBoth(t, []int{1, 3}, testSkipBadStep[float32], testSkipBadStep[spmd.BF16])
}

func testSkipBadStep[A Act](t *testing.T, w *spmd.World) {
	const steps, wrong = 5, 2
	cfg := testConfig(steps)
	cfg.half, cfg.skipBad = isHalf[A](), true
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
		for range passes.microSteps(cfg.globalBatch) {
			if _, err := passes.train.next(passes.s); err != nil {
				t.Fatal(err)
			}
		}
		was := weight(skips).At(1)
		if w.Rank() == w.Size()-1 {
			weight(skips).Set(1, float32(math.Inf(-1)))
		}
		if loss, norm := step(t, skips, i); !bad(loss, norm) {
			t.Fatalf("loss %g, norm %g of a step that is to be bad", loss, norm)
		}
		weight(skips).Set(1, was)
	}
	for i, a := range skips.replicas() {
		if !slices.Equal(floatsOf(t, a.Buffer), floatsOf(t, passes.replicas()[i].Buffer)) {
			t.Errorf("%s differs after a skipped step", a.prefix)
		}
	}
	for _, tr := range []*trainer{skips, passes} {
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A loss that is infinite with a gradient that is not changes nothing either.
func TestBadLoss(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		m, s := modelWith[float32](t, w, small, randomParams(small, 1), 1)
		o, err := NewAdamW(&m.State, DefaultAdam)
		if err != nil {
			t.Fatal(err)
		}
		before := floatsOf(t, m.Weights)
		if err := m.Grads.SetAll(0.1); err != nil {
			t.Fatal(err)
		}
		for _, loss := range []float64{math.Inf(1), math.NaN(), 1} {
			o.SkipBad = loss == 1
			if err := m.Loss.SetAll(loss); err != nil {
				t.Fatal(err)
			}
			if err := o.Step(s, 0.1); err != nil {
				t.Fatal(err)
			}
			if err := s.Synchronize(); err != nil {
				t.Fatal(err)
			}
			if same := slices.Equal(floatsOf(t, m.Weights), before); same == finite(loss) {
				t.Errorf("loss %g: the weights are as before: %v", loss, same)
			}
		}
	})
}

// The program: a rate that no model survives.
func TestRunDiverges(t *testing.T) {
	besideOthers(t)
	spmdtest.Ranks(t, 3)
	args := smallRun(t, 4, "--dtype", "float32", "--lr", "1e30", "--warmup-steps", "0", "--val-batches", "0")
	p := train(t, 3, args...)
	for _, want := range []string{"step 2: loss ", "rank 0 has the first number that is not finite in", "--skip-bad-steps"} {
		if p.Status != 1 || !strings.Contains(p.Stderr, want) {
			t.Errorf("status %d, want 1 and %q in:\n%s", p.Status, want, p.Stderr)
		}
	}
	if n := strings.Count(p.Stdout, `"step":`); n != 1 {
		t.Errorf("%d steps told, want 1:\n%s", n, p.Stdout)
	}
	// Skipping, the run goes on, and remembers from one start to the next.
	dir := t.TempDir()
	args = append(args, "--skip-bad-steps", "--checkpoint", dir)
	for _, steps := range []string{"4", "6"} {
		r, log := finish(t, 3, append(args, "--steps", steps)...)
		if r.summary == nil || fmt.Sprint(r.summary.Skipped+1) != steps || r.summary.LossLast != r.summary.LossFirst {
			t.Errorf("of %s steps the summary tells %+v, want all but 1 skipped", steps, r.summary)
		}
		if !strings.Contains(log, "is left out") {
			t.Errorf("no line tells of a step that was left out:\n%s", log)
		}
	}
}
