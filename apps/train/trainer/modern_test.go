package trainer

import (
	"fmt"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
)

// modernConfig is testConfig for a modern model by Muon.
func modernConfig(steps int) Config {
	cfg := testConfig(steps)
	cfg.Model.Layers, cfg.Model.Channels, cfg.Model.Parts = 3, 32, layout.Presets["modern"].Parts
	cfg.Adam = DefaultMuonAdam
	muon := DefaultMuon
	cfg.Adam.Muon, cfg.Rate = &muon, Schedule{Peak: muon.Peak, Final: muon.Peak / 20, Steps: steps, Stable: true}
	return cfg
}

// A modern model by Muon trains with shared state and recomputed activations as it does
// with neither. This holds over uneven parts of a batch and micro-steps, with equal
// bits if sums have one order.
func TestModernSharded(t *testing.T) {
	traintest.OnBothQuickly(t, []int{1, 2, 3}, nil, testModernSharded[float32], testModernSharded[spmd.BF16])
}

func testModernSharded[A ops.Act](t *testing.T, w *spmd.World) {
	bound := 1e-4
	if ops.IsHalf[A]() {
		bound = 5e-3
	}
	cfg := modernConfig(4)
	cfg.Half = ops.IsHalf[A]()
	rows := []sharedRow{
		{layout.ShardOff, layout.RecomputeGELU, "off"},
		{layout.ShardOff, layout.RecomputeBlock, "on"},
		{layout.ShardOptimizer, layout.RecomputeOff, "off"},
		{layout.ShardGradients, layout.RecomputeGELU, "off"},
		{layout.ShardParameters, layout.RecomputeBlock, "on"},
	}
	testShared(t, w, cfg, 7, bound, rows)
	// Parts of 3 ranks are as long, so they exchange rows of the tables'
	// gradients if each has all weights.
	testShared(t, w, cfg, 6, bound, append(rows[3:], rows[1]))
}

// The same holds for a model with products of 8-bit floats.
func TestModernFP8Sharded(t *testing.T) {
	traintest.On8Quickly(t, []int{1, 2, 3}, nil, func(t *testing.T, w *spmd.World) {
		cfg := modernConfig(3)
		cfg.Half, cfg.Model.FP8 = true, layout.FP8All
		testShared(t, w, cfg, 7, 5e-3, []sharedRow{{layout.ShardOptimizer, layout.RecomputeBlock, "off"},
			{layout.ShardParameters, layout.RecomputeBlock, "off"}})
	})
}

type sharedRow struct {
	mode  layout.ShardMode
	again layout.Recomputation
	graph string
}

func testShared(t *testing.T, w *spmd.World, cfg Config, global int, bound float64, rows []sharedRow) {
	cfg.Batch, cfg.GlobalBatch, cfg.Graph = 2, global, "off"
	plain := start(t, w, w.Comm(), cfg, wordTokens(4000))
	wants, wantVal := stepAll(t, plain, cfg.Steps)
	if gathers := plain.sums.(*replicas).tables.gathersRows(global); gathers != (global == 6 && w.Size() == 3) {
		t.Errorf("steps of %d sequences on %d ranks gather rows: %v", global, w.Size(), gathers)
	}
	for _, x := range rows {
		if x.graph == "on" && w.Comm().Capturable() != nil {
			x.graph = "off"
		}
		cfg.Model.Shard.Mode, cfg.Model.Recompute, cfg.Graph = x.mode, x.again, x.graph
		split := start(t, w, w.Comm(), cfg, wordTokens(4000))
		what := fmt.Sprintf("--fp8 %v --shard %v --recompute %v, %d ranks", cfg.Model.FP8, x.mode, x.again, w.Size())
		exact := w.OnHost() && (w.Size() == 1 && (x.mode <= layout.ShardOptimizer || cfg.Model.FP8 != layout.FP8Off) ||
			x.mode == layout.ShardOff)
		for i, want := range wants {
			loss, norm := step(t, split, i)
			if !traintest.CloseTo(loss, want[0], bound) || !traintest.CloseTo(norm, want[1], 100*bound*want[1]) ||
				exact && want != [2]float64{loss, norm} {
				t.Fatalf("%s, step %d: loss %.8f, norm %.8f; without %.8f", what, i, loss, norm, want)
			}
			if err := split.Audit(i + 1); err != nil {
				t.Fatalf("%s, step %d: %v", what, i, err)
			}
		}
		if exact && x.mode <= layout.ShardOptimizer {
			compareArenas(t, what, split, plain, 0)
		}
		endsLike(t, what, split, wantVal, bound)
	}
	traintest.NoError(t, plain.Close())
}

// Muon in a pipeline of GPT-2's layers, and a third decoder in any division, train as on ranks that
// have the whole model, and save as many tensors. Muon's stages have whole matrices.
func TestOthersDivided(t *testing.T) {
	traintest.RunQuickly(t, []int{2, 4}, nil, func(t *testing.T, w *spmd.World) {
		const steps = 3
		for _, x := range []struct {
			muon           bool
			tensor, stages int
			mode           layout.ShardMode
			recompute      layout.Recomputation
		}{
			{true, 1, 2, layout.ShardOff, layout.RecomputeOff},
			{true, 1, 2, layout.ShardGradients, layout.RecomputeOff},
			{false, 2, 1, layout.ShardOff, layout.RecomputeGELU},
			{false, 1, 2, layout.ShardParameters, layout.RecomputeBlock},
			{false, 2, w.Size() / 2, layout.ShardGradients, layout.RecomputeOff},
		} {
			cfg := modernConfig(steps)
			if cfg.Model.Parts = 0; !x.muon {
				cfg = testConfig(steps)
				cfg.Model.Layers, cfg.Model.Parts = 3, traintest.SmallThird.Parts
			}
			cfg.GlobalBatch, cfg.Graph = 8, "off"
			plain := start(t, w, w.Comm(), cfg, wordTokens(4000))
			wants, wantVal := stepAll(t, plain, steps)
			cfg.Model.Shard.Mode, cfg.Model.Recompute = x.mode, x.recompute
			cfg.Model.Tensor.Ranks, cfg.Model.Stage.Stages = x.tensor, x.stages
			split := start(t, w, w.Comm(), cfg, wordTokens(4000))
			what := fmt.Sprintf("%+v, %d ranks", x, w.Size())
			for i, want := range wants {
				loss, norm := step(t, split, i)
				if !traintest.CloseTo(loss, want[0], 1e-4) || !traintest.CloseTo(norm, want[1], 1e-2*want[1]) {
					t.Fatalf("%s, step %d: loss %.8f, norm %.8f; without %.8f", what, i, loss, norm, want)
				}
				traintest.NoError(t, split.Audit(i+1))
			}
			if got, want := len(split.ItemsToSave()), len(plain.ItemsToSave()); got != want {
				t.Errorf("%s saves %d tensors, without %d", what, got, want)
			}
			endsLike(t, what, split, wantVal, 1e-4)
			traintest.NoError(t, plain.Close())
		}
	})
}
