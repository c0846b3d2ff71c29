package trainer

import (
	"fmt"
	"math"
	"testing"

	"lockstep/apps/train/kernels"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// A pipeline of any number of stages trains as plain data parallel does, over uneven parts of a
// batch and micro-batches, with every mode of sharing beside it.
func TestPipelined(t *testing.T) {
	traintest.OnBoth(t, []int{2, 3, 4}, testPipelined[float32], testPipelined[spmd.BF16])
}

func testPipelined[A kernels.Act](t *testing.T, w *spmd.World) {
	bound := 1e-4
	if kernels.IsHalf[A]() {
		bound = 1e-3
	}
	for stages := 2; stages <= w.Size(); stages++ {
		if w.Size()%stages != 0 {
			continue
		}
		for mode := layout.ShardOff; mode <= layout.ShardParameters; mode++ {
			for _, batch := range []int{2, 1} {
				steps := 4
				if batch == 2 && !kernels.IsHalf[A]() {
					steps = 50
				}
				cfg := testConfig(steps)
				cfg.Half, cfg.Batch, cfg.Graph, cfg.Model.Layers = kernels.IsHalf[A](), batch, "off", 5
				plain := start(t, w, w.Comm(), cfg, wordTokens(4000))
				cfg.Model.Shard.Mode, cfg.Model.Stage.Stages = mode, stages
				split := start(t, w, w.Comm(), cfg, wordTokens(4000))
				what := fmt.Sprintf("--pp %d --shard %v, %d ranks, micro-batches of %d", stages, mode, w.Size(), batch)
				worst := 0.0
				for i := range steps {
					want, wantNorm := step(t, plain, i)
					loss, norm := step(t, split, i)
					if !traintest.CloseTo(loss, want, bound) || !traintest.CloseTo(norm, wantNorm, 100*bound*wantNorm) {
						t.Fatalf("%s, step %d: loss %.8f, norm %.8f; without %.8f, %.8f", what, i, loss, norm, want, wantNorm)
					}
					worst = max(worst, math.Abs(loss-want))
					if err := split.Audit(i + 1); err != nil {
						t.Fatalf("%s, step %d: %v", what, i, err)
					}
				}
				if steps == 50 {
					traintest.Measured(t, fmt.Sprintf("largest difference of a loss over 50 steps with --pp %d --shard %v", stages, mode), worst)
				}
				want, err := plain.Validate()
				if err != nil {
					t.Fatal(err)
				}
				got, err := split.Validate()
				if err != nil {
					t.Fatal(err)
				}
				if !traintest.CloseTo(got, want, bound) {
					t.Errorf("%s: validation loss %.8f, without %.8f", what, got, want)
				}
				for _, tr := range []*Trainer{plain, split} {
					if err := tr.Close(); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
}

// A pipelined step as a graph has the bits of its commands, and so has recomputation.
func TestPipelinedGraphs(t *testing.T) {
	spmdtest.Run(t, []int{2, 3}, func(t *testing.T, w *spmd.World) {
		const steps = 5
		for mode := layout.ShardOff; mode <= layout.ShardParameters; mode++ {
			cfg := testConfig(steps)
			cfg.Batch, cfg.Model.Layers, cfg.Model.Shard.Mode, cfg.Model.Stage.Stages = 1, 5, mode, w.Size()
			cfg.Graph = "off"
			plain := start(t, w, w.Comm(), cfg, wordTokens(4000))
			others := []*Trainer{}
			for _, recompute := range []layout.Recomputation{layout.RecomputeOff, layout.RecomputeGELU, layout.RecomputeBlock} {
				if cfg.Graph = "on"; w.Comm().Capturable() != nil {
					cfg.Graph = "off"
				}
				cfg.Model.Recompute = recompute
				others = append(others, start(t, w, w.Comm(), cfg, wordTokens(4000)))
			}
			for i := range steps {
				loss, norm := step(t, plain, i)
				for k, other := range others {
					if gloss, gnorm := step(t, other, i); loss != gloss || norm != gnorm {
						t.Fatalf("--shard %v, step %d: loss %v, norm %v; as a graph, recompute %v: %v, %v", mode, i, loss, norm, layout.Recomputation(k), gloss, gnorm)
					}
					if i == 2 { // what comes between steps does not disturb them
						if _, err := other.Validate(); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			for _, tr := range append(others, plain) {
				if tr != plain {
					compareArenas(t, fmt.Sprint("--shard ", mode), tr, plain, 0)
				}
				if err := tr.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
