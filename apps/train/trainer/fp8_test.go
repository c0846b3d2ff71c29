package trainer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/traintest"
	"lockstep/internal/testkit"
	"lockstep/spmd"
)

// A run with 8-bit floats learns as one with bfloat16. Its graph has the same bits. It resumes from
// a checkpoint with the bits of an uninterrupted run, and all ranks have the same scales.
func TestFP8Steps(t *testing.T) {
	traintest.On8Quickly(t, []int{1, 2, 3}, nil, func(t *testing.T, w *spmd.World) {
		const steps, half = 24, 9
		f := wordTokens(4000)
		for _, parts := range []layout.Parts{0, layout.Presets["modern"].Parts} {
			cfg := testConfig(steps)
			cfg.Half, cfg.Graph, cfg.Model.Parts = true, "off", parts
			plain := start(t, w, w.Comm(), cfg, f)
			cfg.Model.FP8 = layout.FP8All
			eight := start(t, w, w.Comm(), cfg, f)
			if w.Comm().Capturable() == nil {
				cfg.Graph = "on"
			}
			graphs := start(t, w, w.Comm(), cfg, f)
			data, err := NewDataset(f, cfg.Seq, cfg.GlobalBatch, 5)
			traintest.NoError(t, err)
			resumed, err := New(w, w.Comm(), cfg, data)
			traintest.NoError(t, err)
			off := 0.0
			for i := range steps {
				if i == half {
					for _, b := range [][2]spmd.Buffer[float32]{
						{resumed.State.Weights, eight.State.Weights}, {resumed.Optimizer.M, eight.Optimizer.M},
						{resumed.Optimizer.V, eight.Optimizer.V},
					} {
						traintest.NoError(t, b[0].CopyFrom(traintest.ValuesOf(t, b[1])))
					}
					resumed.Scales, err = eight.State.FP8.Scales()
					traintest.NoError(t, err, resumed.StartAt(half))
				}
				want, _ := step(t, plain, i)
				loss, norm := step(t, eight, i)
				again, normAgain := step(t, graphs, i)
				if loss != again || norm != normAgain {
					t.Fatalf("%v, step %d: loss %v, norm %v; as a graph %v, %v",
						parts, i, loss, norm, again, normAgain)
				}
				if i >= half {
					if again, normAgain := step(t, resumed, i); loss != again || norm != normAgain {
						t.Fatalf("%v, step %d: loss %v, norm %v; resumed %v, %v",
							parts, i, loss, norm, again, normAgain)
					}
				}
				if i == 4 { // what is measured in between changes nothing
					_, err := eight.Validate()
					traintest.NoError(t, err)
				}
				off += (loss - want) / steps
			}
			if !traintest.CloseTo(off, 0, 0.02) || off == 0 {
				t.Errorf("%v: losses are off by %v on average", parts, off)
			}
			traintest.NoError(t, eight.Audit(steps))
			if w.Rank() == w.Size()-1 && w.Size() > 1 {
				traintest.NoError(t, eight.State.FP8.Up.Slice(1, 2).SetAll(0.25))
			}
			if w.Size() > 1 {
				if err := eight.Audit(steps); !strings.Contains(fmt.Sprint(err),
					"the scales of 8-bit floats after 24 steps") {
					t.Errorf("%v: other scales on a rank: %v", parts, err)
				}
			}
			traintest.NoError(t, plain.Close(), eight.Close(), graphs.Close(), resumed.Close())
		}
	})
}

// A run with 8-bit floats learns in every division as a run without. All ranks have the
// same scales. Graphs have the bits of commands. Shared weights have the bits of unshared
// ones if sums have one order.
func TestFP8Divided(t *testing.T) {
	levels := testkit.Some(t, "parts of a model in 8-bit floats", []layout.FP8Level{layout.FP8Head, layout.FP8All},
		func(l layout.FP8Level) bool { return l == layout.FP8All })
	ranks := testkit.Some(t, "numbers of ranks of a divided model in 8-bit floats", []int{2, 3, 4},
		func(n int) bool { return n < 4 })
	traintest.On8Quickly(t, ranks, []int{2}, func(t *testing.T, w *spmd.World) {
		const steps = 6
		f := wordTokens(4000)
		losses := func(cfg Config) (all []float64, exps []int) {
			if cfg.Graph == "on" && w.Comm().Capturable() != nil {
				cfg.Graph = "off"
			}
			tr := start(t, w, w.Comm(), cfg, f)
			for i := range steps {
				loss, _ := step(t, tr, i)
				all = append(all, loss)
				if i == 2 {
					val, err := tr.Validate()
					traintest.NoError(t, err)
					all = append(all, val)
				}
			}
			traintest.NoError(t, tr.Audit(steps))
			exps, err := tr.State.FP8.Scales()
			traintest.NoError(t, err, tr.Close())
			return all, exps
		}
		for _, level := range levels {
			cfg := testConfig(steps)
			cfg.Half, cfg.Graph, cfg.Model.FP8, cfg.Seq, cfg.Batch = true, "off", level, 16, 2
			cfg.GlobalBatch = 2 * w.Size()
			cfg.Model.Heads, cfg.Model.Channels, cfg.Model.Layers, cfg.Model.Vocab = w.Size(), 16*w.Size(), 4, 203
			cfg.Rate.Peak, cfg.Rate.Final = 3e-4, 3e-4 // at which rounding does not grow
			want, wantExps := losses(cfg)
			eachForm(w.Size(), func(tensor, stages int) {
				for _, mode := range []layout.ShardMode{layout.ShardOff, layout.ShardParameters} {
					cfg := cfg
					cfg.Model.Tensor.Ranks, cfg.Model.Stage.Stages, cfg.Model.Shard.Mode = tensor, stages, mode
					what := fmt.Sprintf("--fp8 %v --tp %d --pp %d --shard %v on %d ranks",
						level, tensor, stages, mode, w.Size())
					got, exps := losses(cfg)
					for i := range want {
						if !traintest.CloseTo(got[i], want[i], 0.02) {
							t.Fatalf("%s: losses %v, undivided %v", what, got, want)
						}
					}
					far := 0
					for i := range exps {
						if d := exps[i] - wantExps[i]; d > 1 || d < -1 {
							far++
						}
					}
					if far > 0 {
						t.Errorf("%s: %d scales of %d differ by more than a power of two: %v, undivided %v",
							what, far, len(exps), exps, wantExps)
					}
					cfg.Graph = "on"
					if again, _ := losses(cfg); !slices.Equal(again, got) {
						t.Errorf("%s: losses %v, as a graph %v", what, got, again)
					}
				}
			})
			cfg.Model.Shard.Mode = layout.ShardParameters
			if got, exps := losses(cfg); w.Size() == 2 && w.OnHost() &&
				!(slices.Equal(got, want) && slices.Equal(exps, wantExps)) {
				t.Errorf("--fp8 %v: losses %v with --shard parameters, %v without", level, got, want)
			}
		}
	})
}

// Recomputed activations have the copies, and so the bits, of kept ones, and leave the same scales.
// This holds on one rank and in every division, over micro-steps and in graphs.
func TestFP8Recompute(t *testing.T) {
	ranks := testkit.Some(t, "numbers of ranks that recompute in 8-bit floats", []int{1, 2, 3},
		func(n int) bool { return n == 3 })
	traintest.On8Quickly(t, ranks, nil, func(t *testing.T, w *spmd.World) {
		const steps = 4
		cfg := testConfig(steps)
		cfg.Half, cfg.Seq, cfg.Batch, cfg.GlobalBatch = true, 16, 1, 3*w.Size()
		cfg.Model.FP8, cfg.Model.Heads, cfg.Model.Channels, cfg.Model.Layers = layout.FP8All, w.Size(), 16*w.Size(), 4
		if cfg.Graph = "off"; w.Comm().Capturable() == nil {
			cfg.Graph = "on"
		}
		f := wordTokens(4000)
		compare := func(tensor, stages int) {
			for _, mode := range []layout.ShardMode{layout.ShardOff, layout.ShardParameters} {
				cfg := cfg
				cfg.Model.Tensor.Ranks, cfg.Model.Stage.Stages, cfg.Model.Shard.Mode = tensor, stages, mode
				keeps := start(t, w, w.Comm(), cfg, f)
				var want [steps][2]float64 // loss and norm
				for i := range want {
					want[i][0], want[i][1] = step(t, keeps, i)
				}
				wantExps, err := keeps.State.FP8.Scales()
				traintest.NoError(t, err)
				for _, recompute := range []layout.Recomputation{layout.RecomputeGELU, layout.RecomputeBlock} {
					what := fmt.Sprintf("--recompute %v --tp %d --pp %d --shard %v on %d ranks",
						recompute, tensor, stages, mode, w.Size())
					cfg.Model.Recompute = recompute
					again := start(t, w, w.Comm(), cfg, f)
					for i := range want {
						if loss, norm := step(t, again, i); loss != want[i][0] || norm != want[i][1] {
							t.Fatalf("%s, step %d: loss %v, norm %v; kept %v", what, i, loss, norm, want[i])
						}
					}
					exps, err := again.State.FP8.Scales()
					traintest.NoError(t, err)
					if !slices.Equal(exps, wantExps) {
						t.Errorf("%s: scales %v, kept %v", what, exps, wantExps)
					}
					compareArenas(t, what, again, keeps, 0)
					traintest.NoError(t, again.Close())
				}
				traintest.NoError(t, keeps.Close())
			}
		}
		compare(1, 1)
		eachForm(w.Size(), compare)
	})
}
