package trainer

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/text"
	"lockstep/apps/train/traintest"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

var shardModes = []layout.ShardMode{layout.ShardOptimizer, layout.ShardGradients, layout.ShardParameters}

// wholeOf returns an arena of a trainer by its tensors' names. It combines the parts of all
// ranks. Every rank calls it.
func wholeOf(t *testing.T, tr *Trainer, a gpt.Arena) map[string][]float32 {
	t.Helper()
	whole := map[string][]float32{}
	for _, p := range tr.State.Params {
		skip, have := tr.State.Of(a, p)
		x := make([]float32, p.Len)
		if !a.Shared {
			copy(x, traintest.ValuesOf(t, have))
			whole[p.Name] = x
			continue
		}
		sum, err := spmd.Alloc[float32](tr.World, p.Len)
		spmdtest.Must(t, err)
		copy(x[skip:], traintest.ValuesOf(t, have))
		spmdtest.Must(t, sum.CopyFrom(x))
		if err := spmd.AllReduce(tr.c, sum, sum, spmd.Sum); err != nil { // the other ranks have 0 there
			t.Fatal(err)
		}
		whole[p.Name] = traintest.ValuesOf(t, sum)
		spmdtest.Must(t, sum.Free())
	}
	return whole
}

// compareArenas fails if the weights or moments of two trainers differ by more than a bound. A
// bound of 0 asks for equal bits.
func compareArenas(t *testing.T, what string, got, want *Trainer, bound float64) {
	t.Helper()
	for _, tr := range []*Trainer{got, want} {
		spmdtest.Must(t, tr.sums.gather())
		spmdtest.Must(t, tr.Stream.Synchronize())
	}
	for i, a := range got.arenas() {
		g, w := wholeOf(t, got, a), wholeOf(t, want, want.arenas()[i])
		for name, x := range w {
			for k, v := range x {
				if d := math.Abs(float64(g[name][k]) - float64(v)); !(d <= bound) {
					t.Fatalf("%s: %s%s[%d] is %v, want %v", what, a.Prefix, name, k, g[name][k], v)
				}
			}
		}
	}
}

// Every mode trains as plain data parallel does, over uneven parts of a batch and several kinds of
// micro-steps. On two ranks, where a sum has one order, it has the same bits as long as the order
// of micro-steps and ranks is the same.
func TestSharded(t *testing.T) {
	testkit.More(t, 44, "steps of sharded training")
	traintest.OnBothQuickly(t, []int{1, 2, 3, 4}, []int{4}, testSharded[float32], testSharded[spmd.BF16])
}

func testSharded[A ops.Act](t *testing.T, w *spmd.World) {
	bound := 1e-4
	if ops.IsHalf[A]() {
		bound = 1e-3
	}
	for _, batch := range []int{2, 1, 7} { // with a batch of 1, one of 3 ranks has a micro-step less
		steps := 6
		if batch == 2 && !ops.IsHalf[A]() && testkit.AllCases() {
			steps = 50
		}
		cfg := testConfig(steps)
		cfg.Half, cfg.Batch, cfg.Graph = ops.IsHalf[A](), batch, "off"
		plain := start(t, w, w.Comm(), cfg, wordTokens(4000))
		wants, wantVal := stepAll(t, plain, steps)
		for _, mode := range shardModes {
			cfg.Model.Shard.Mode = mode
			split := start(t, w, w.Comm(), cfg, wordTokens(4000))
			worst := 0.0
			what := fmt.Sprintf("--shard %v, %d ranks, micro-batches of %d", mode, w.Size(), batch)
			exact := w.OnHost() && w.Size() <= 2 &&
				(mode == layout.ShardOptimizer || split.microSteps(cfg.GlobalBatch) == 1)
			for i, want := range wants {
				loss, norm := step(t, split, i)
				if !traintest.CloseTo(loss, want[0], bound) || !traintest.CloseTo(norm, want[1], 100*bound*want[1]) ||
					exact && want != [2]float64{loss, norm} {
					t.Fatalf("%s, step %d: loss %.8f, norm %.8f; without %.8f", what, i, loss, norm, want)
				}
				worst = max(worst, math.Abs(loss-want[0]))
				if err := split.Audit(i + 1); err != nil {
					t.Fatalf("%s, step %d: %v", what, i, err)
				}
			}
			switch {
			case exact:
				compareArenas(t, what, split, plain, 0)
			case w.OnHost(): // where the noise in gradients that are 0 is small enough for AdamW
				compareArenas(t, what, split, plain, 2e-3)
			}
			if steps == 50 {
				traintest.Measured(t, "largest difference of a loss over 50 steps with --shard "+mode.String(), worst)
			}
			endsLike(t, what, split, wantVal, bound)
		}
		spmdtest.Must(t, plain.Close())
	}
}

// endsLike compares the validation loss of a run at its end, and closes it.
func endsLike(t *testing.T, what string, tr *Trainer, want, bound float64) {
	t.Helper()
	got, err := tr.Validate()
	spmdtest.Must(t, err)
	if !traintest.CloseTo(got, want, bound) {
		t.Errorf("%s: validation loss %.8f, without %.8f", what, got, want)
	}
	spmdtest.Must(t, tr.Close())
}

// Graphs of sharded steps have the bits of their commands, and of other runs' graphs.
func TestShardedGraphs(t *testing.T) {
	traintest.OnBothQuickly(t, []int{2, 3}, nil, testShardedGraphs[float32], testShardedGraphs[spmd.BF16])
}

func testShardedGraphs[A ops.Act](t *testing.T, w *spmd.World) {
	const steps = 5
	if w.Comm().Capturable() != nil {
		return
	}
	for _, mode := range shardModes {
		cfg := testConfig(steps)
		cfg.Half, cfg.Model.Shard.Mode, cfg.Batch = ops.IsHalf[A](), mode, 1
		cfg.Graph = "off"
		plain := start(t, w, w.Comm(), cfg, wordTokens(4000))
		cfg.Graph = "on"
		graphs := start(t, w, w.Comm(), cfg, wordTokens(4000))
		for i := range steps {
			loss, norm := step(t, plain, i)
			gloss, gnorm := step(t, graphs, i)
			if loss != gloss || norm != gnorm {
				t.Fatalf("--shard %v, step %d: loss %v, norm %v; as a graph %v, %v", mode, i, loss, norm, gloss, gnorm)
			}
			if i == 2 { // what comes between steps does not disturb them
				if _, err := graphs.Validate(); err != nil {
					t.Fatal(err)
				}
			}
		}
		compareArenas(t, fmt.Sprint("--shard ", mode), graphs, plain, 0)
		for _, g := range graphs.graphs.made {
			if g == nil {
				t.Errorf("--shard %v: a kind of micro-step has no graph", mode)
			}
		}
		for _, tr := range []*Trainer{plain, graphs} {
			spmdtest.Must(t, tr.Close())
		}
	}
}

// A bad number is found on the rank that has it. The step changes nothing on any rank, and
// skipped steps leave no trace.
func TestShardedBadSteps(t *testing.T) {
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		for _, mode := range shardModes {
			cfg := testConfig(6)
			cfg.Model.Shard.Mode, cfg.SkipBad = mode, 10
			skips, passes := start(t, w, w.Comm(), cfg, wordTokens(4000)), start(t, w, w.Comm(), cfg, wordTokens(4000))
			for i := range 4 {
				if i != 1 {
					step(t, skips, i)
					step(t, passes, i)
					continue
				}
				for range passes.microSteps(cfg.GlobalBatch) {
					if _, err := passes.feeds.steps.Next(passes.Stream); err != nil {
						t.Fatal(err)
					}
				}
				// This is the last element of the last rank's part of the vectors.
				weights := skips.arenas()[0]
				name, at := lastVector(skips, weights)
				was := weights.At(at)
				if w.Rank() == w.Size()-1 {
					weights.Set(at, float32(math.Inf(1)))
				}
				if loss, norm := step(t, skips, i); !Bad(loss, norm) {
					t.Fatalf("--shard %v: loss %g, norm %g of a step that is to be bad", mode, loss, norm)
				}
				where, err := skips.firstBad(i)
				spmdtest.Must(t, err)
				want := fmt.Sprintf("rank %d has the first number that is not finite in the weight %s",
					w.Size()-1, name)
				if w.Rank() == w.Size()-1 && where != want {
					t.Errorf("--shard %v: %s, want %s", mode, where, want)
				}
				// The product with a finite weight overflows: no rank has a bad weight,
				// and all have a bad gradient.
				if w.Rank() == w.Size()-1 {
					weights.Set(at, math.MaxFloat32)
				}
				where, err = skips.firstBad(i)
				if err != nil || !strings.Contains(where,
					"rank 0 has the first number that is not finite in the gradient of ") {
					t.Errorf("--shard %v: %s, error %v, want one of rank 0's gradients", mode, where, err)
				}
				weights.Set(at, was)
			}
			compareArenas(t, fmt.Sprint("--shard ", mode), skips, passes, 0)
			for _, tr := range []*Trainer{skips, passes} {
				spmdtest.Must(t, tr.Close())
			}
		}
	})
}

// lastVector returns the last vector with elements that this rank updates, and the place of the
// last of these in an arena of weights.
func lastVector(tr *Trainer, weights gpt.Arena) (name string, at int) {
	st := tr.State
	at = -1
	for _, p := range st.Params {
		skip, own, n := st.Sharded.Own(p.Group, p.Off, p.Off+p.Len)
		if p.Decay || n == 0 {
			continue
		}
		last := own + n - 1
		if !weights.Shared {
			last = p.Off + skip + n - 1
		}
		if last > at {
			name, at = p.Name, last
		}
	}
	return name, at
}

// Drawn weights, and weights of a folder, are the same in every mode.
func TestShardedStart(t *testing.T) {
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		for _, mode := range shardModes {
			cfg := testConfig(2)
			plain := start(t, w, w.Comm(), cfg, wordTokens(4000))
			cfg.Model.Shard.Mode = mode
			split := start(t, w, w.Comm(), cfg, wordTokens(4000))
			compareArenas(t, fmt.Sprint("--shard ", mode), split, plain, 0)
			for _, tr := range []*Trainer{plain, split} {
				spmdtest.Must(t, tr.Close())
			}
		}
	})
}

// After the last step all modes write the text that one rank with all weights writes.
func TestShardedGenerate(t *testing.T) {
	spmdtest.Run(t, []int{3}, func(t *testing.T, w *spmd.World) {
		var texts []string
		for _, mode := range append([]layout.ShardMode{layout.ShardOff}, shardModes...) {
			cfg := testConfig(8)
			cfg.Model.Shard.Mode = mode
			tr := start(t, w, w.Comm(), cfg, wordTokens(4000))
			for i := range cfg.Steps {
				step(t, tr, i)
			}
			together, err := tr.ToGenerate()
			if err != nil || together != (mode == layout.ShardParameters) {
				t.Fatalf("--shard %v: all ranks write: %v, error %v", mode, together, err)
			}
			if w.Rank() == 0 || together {
				text, err := tr.Generate(t.Context(), text.Bytes{}, "func", 40, 0, 1)
				spmdtest.Must(t, err)
				texts = append(texts, string(text))
			}
			spmdtest.Must(t, tr.Close())
		}
		// Rounding on a GPU may change which of two tokens is more likely.
		if w.Rank() == 0 && w.OnHost() && len(slices.Compact(texts)) != 1 {
			t.Errorf("texts %q, want four equal ones", texts)
		}
	})
}

// Recomputed activations have the bits of kept ones, in plain steps and in every mode,
// over micro-steps and in graphs.
func TestRecompute(t *testing.T) {
	traintest.OnBothQuickly(t, []int{1, 3}, nil, testRecompute[float32], testRecompute[spmd.BF16])
}

func testRecompute[A ops.Act](t *testing.T, w *spmd.World) {
	const steps = 4
	for _, mode := range append([]layout.ShardMode{layout.ShardOff}, shardModes...) {
		for _, graph := range []string{"off", "on"} {
			if graph == "on" && w.Comm().Capturable() != nil {
				continue
			}
			cfg := testConfig(steps)
			cfg.Half, cfg.Graph, cfg.Model.Shard.Mode, cfg.Model.Layers = ops.IsHalf[A](), graph, mode, 4
			keeps := start(t, w, w.Comm(), cfg, wordTokens(4000))
			var wants [steps][2]float64 // loss and norm
			for _, recompute := range []layout.Recomputation{layout.RecomputeGELU, layout.RecomputeBlock} {
				cfg.Model.Recompute = recompute
				again := start(t, w, w.Comm(), cfg, wordTokens(4000))
				if less, all := bytesOfState(t, again), bytesOfState(t, keeps); less >= all {
					t.Errorf("--recompute %v takes %d bytes, off %d", recompute, less, all)
				}
				for i := range steps {
					loss, norm := step(t, again, i)
					if recompute == layout.RecomputeGELU {
						wants[i][0], wants[i][1] = step(t, keeps, i)
					}
					if want := wants[i]; loss != want[0] || norm != want[1] {
						t.Fatalf("--recompute %v --shard %v --graph %s, step %d: loss %v, norm %v; kept %v",
							recompute, mode, graph, i, loss, norm, want)
					}
				}
				compareArenas(t, fmt.Sprint("--recompute ", recompute), again, keeps, 0)
				spmdtest.Must(t, again.Close())
			}
			spmdtest.Must(t, keeps.Close())
		}
	}
}

// bytesOfState returns how many bytes of the device a trainer's model takes.
func bytesOfState(t *testing.T, tr *Trainer) int {
	t.Helper()
	n, err := gpt.MemoryNeeded(tr.State.Cfg, tr.Batch, tr.Seq, tr.Half)
	spmdtest.Must(t, err)
	return n
}
