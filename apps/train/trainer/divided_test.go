package trainer

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/traintest"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// Divided layers, a pipeline of stages, and both beside replicas train as plain data parallel does.
// This holds over uneven parts of a batch and micro-batches, with every mode of sharing.
func TestDivided(t *testing.T) {
	testkit.More(t, 2*2*(9*4-12), "divisions of a model, by type, micro-batch and mode of sharing")
	traintest.OnBothQuickly(t, []int{2, 3, 4}, nil, testDivided[float32](4, 2, 1), testDivided[spmd.BF16](4, 2, 1))
}

// The first steps of 4 processes do the same, with messages through MPI.
func TestDividedProcesses(t *testing.T) {
	spmdtest.HostOnly(t, "all ranks of TestDivided are processes there")
	spmdtest.Run(t, []int{4}, testDivided[float32](2, 1))
}

// Losses stay close over many steps.
func TestDividedLong(t *testing.T) {
	testkit.Only(t, "run of 50 steps in each division of a model")
	ranks := []int{2, 3, 4}
	if spmdtest.Device() == "host" {
		ranks = ranks[1:] // 4 ranks have the forms of 2
	}
	traintest.RunQuickly(t, ranks, nil, testDivided[float32](50, 2))
}

// eachForm calls fn with every division of so many ranks into parts of each layer and stages,
// except the trivial one. make test has all divisions of 3 ranks, halves of layers on 2, and halves
// of the layers of two stages on 4.
func eachForm(ranks int, fn func(tensor, stages int)) {
	for tensor := 1; tensor <= ranks; tensor++ {
		for stages := 1; stages <= ranks; stages++ {
			if tensor*stages > 1 && ranks%(tensor*stages) == 0 &&
				(testkit.AllCases() || ranks == 3 || tensor == 2 && stages*2 == ranks) {
				fn(tensor, stages)
			}
		}
	}
}

// eachMode calls fn with every mode of sharing, first with none. make test has the mode that shares
// most, and on 3 ranks all modes.
func eachMode(ranks int, fn func(layout.ShardMode)) {
	for mode := layout.ShardOff; mode <= layout.ShardParameters; mode++ {
		if testkit.AllCases() || ranks == 3 || mode == layout.ShardOff || mode == layout.ShardParameters {
			fn(mode)
		}
	}
}

// testDivided tests some steps with micro-batches of these sizes.
func testDivided[A ops.Act](steps int, batches ...int) func(t *testing.T, w *spmd.World) {
	return func(t *testing.T, w *spmd.World) {
		for _, batch := range batches {
			testDividedFor[A](t, w, steps, batch)
		}
	}
}

func testDividedFor[A ops.Act](t *testing.T, w *spmd.World, steps, batch int) {
	bound := 1e-4
	if ops.IsHalf[A]() {
		bound = 1e-3
	}
	const layers, heads, channels = 5, 12, 24
	cfg := testConfig(steps)
	cfg.Model.Vocab = map[int]int{2: 203, 1: 130}[batch] // the last of 4 ranks has few tokens, or none
	cfg.Seq, cfg.Half, cfg.Batch, cfg.Graph, cfg.Model.Layers = 16, ops.IsHalf[A](), batch, "off", layers
	cfg.Model.Heads, cfg.Model.Channels = heads, channels
	plain := start(t, w, w.Comm(), cfg, wordTokens(4000))
	wants, wantVal := stepAll(t, plain, steps)
	spmdtest.Must(t, plain.Close())
	eachForm(w.Size(), func(tensor, stages int) {
		var unshared [][2]float64
		eachMode(w.Size(), func(mode layout.ShardMode) {
			cfg.Model.Shard.Mode, cfg.Model.Tensor.Ranks, cfg.Model.Stage.Stages = mode, tensor, stages
			split := start(t, w, w.Comm(), cfg, wordTokens(4000))
			what := fmt.Sprintf("--tp %d --pp %d --shard %v, %d ranks, micro-batches of %d",
				tensor, stages, mode, w.Size(), batch)
			worst := 0.0
			exact := mode > layout.ShardOff && w.OnHost() && split.c.Size() <= 2 &&
				(mode == layout.ShardOptimizer || split.microSteps(cfg.GlobalBatch) == 1)
			for i, want := range wants {
				loss, norm := step(t, split, i)
				if mode == layout.ShardOff {
					unshared = append(unshared, [2]float64{loss, norm})
				} else if exact && unshared[i] != [2]float64{loss, norm} {
					t.Fatalf("%s, step %d: loss %v, norm %v; with --shard off %v", what, i, loss, norm, unshared[i])
				}
				if !traintest.CloseTo(loss, want[0], bound) || !traintest.CloseTo(norm, want[1], 100*bound*want[1]) {
					t.Fatalf("%s, step %d: loss %.8f, norm %.8f; without %v", what, i, loss, norm, want)
				}
				worst = max(worst, math.Abs(loss-want[0]))
				if i%10 == 0 || i == steps-1 {
					if err := split.Audit(i + 1); err != nil {
						t.Fatalf("%s, step %d: %v", what, i, err)
					}
				}
			}
			if steps == 50 {
				traintest.Measured(t, fmt.Sprintf(
					"largest difference of a loss over 50 steps with --tp %d --pp %d --shard %v", tensor, stages, mode),
					worst)
			}
			endsLike(t, what, split, wantVal, bound)
		})
	})
}

// Stages have the bits of the model on one rank if sums have the same order. This is so in all of a
// first step, except the gradient of the embeddings, which the first and the last stage share.
func TestStagesBits(t *testing.T) {
	for _, fn := range []func(*testing.T, *spmd.World){testStagesBits[float32], testStagesBits[spmd.BF16]} {
		spmdtest.RunInProcess(t, []int{2, 3, 4}, fn)
	}
}

func testStagesBits[A ops.Act](t *testing.T, w *spmd.World) {
	cfg := testConfig(1)
	cfg.Half, cfg.Batch, cfg.Graph, cfg.Model.Layers = ops.IsHalf[A](), 7, "off", 5 // one micro-batch
	own, err := w.Comm().Split(w.Rank(), 0)
	spmdtest.Must(t, err)
	alone := start(t, w, own, cfg, wordTokens(4000))
	cfg.Model.Stage.Stages = w.Size()
	staged := start(t, w, w.Comm(), cfg, wordTokens(4000))
	loss, norm := step(t, staged, 0)
	if want, wantNorm := step(t, alone, 0); loss != want || norm != wantNorm {
		t.Errorf("loss %v, norm %v in %d stages; %v, %v in one", loss, norm, w.Size(), want, wantNorm)
	}
	have := map[string][]float32{}
	for _, p := range alone.State.Params {
		have[p.Name] = traintest.ValuesOf(t, alone.State.Weights.Slice(p.Off, p.Off+p.Len))
	}
	for _, p := range staged.State.Params {
		got := traintest.ValuesOf(t, staged.State.Weights.Slice(p.Off, p.Off+p.Len))
		if p.Name != "wte.weight" && !slices.Equal(got, have[p.Name]) {
			t.Errorf("stage %d: %s differs from that of one rank", w.Rank(), p.Name)
		}
	}
	for _, tr := range []*Trainer{staged, alone} {
		spmdtest.Must(t, tr.Close())
	}
}

// An audit finds a rank that differs in something that others also have.
func TestDividedAudit(t *testing.T) {
	spmdtest.Run(t, []int{2, 4}, func(t *testing.T, w *spmd.World) {
		// parts of layers; stages; whether the embeddings differ
		for _, form := range [][3]int{{2, 1, 0}, {1, 2, 1}} {
			cfg := testConfig(1)
			cfg.Model.Tensor.Ranks, cfg.Model.Stage.Stages = form[0], form[1]
			tr := start(t, w, w.Comm(), cfg, wordTokens(4000))
			name := "h.1.ln_1.bias"
			if form[2] == 1 {
				name = "wpe.weight"
			}
			spmdtest.Must(t, tr.Audit(0))
			// The last rank of each replica differs, so that replicas agree.
			if tr.parts.Rank() == form[0]-1 && tr.stages.Rank() == form[1]-1 {
				for _, p := range tr.State.Params {
					if p.Name == name {
						tr.State.Weights.Set(p.Off, 3)
					}
				}
			}
			if err := tr.Audit(1); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%v: %v, want %s", form, err, name)
			}
			spmdtest.Must(t, tr.Close())
		}
	})
}

// A divided step as a graph has the bits of its commands. So has recomputation.
func TestDividedGraphs(t *testing.T) {
	modes := testkit.Some(t, "modes of sharing of divided graphs",
		[]layout.ShardMode{layout.ShardOff, layout.ShardOptimizer, layout.ShardGradients, layout.ShardParameters},
		func(m layout.ShardMode) bool { return m == layout.ShardOff || m == layout.ShardParameters })
	ranks := testkit.Some(t, "numbers of ranks of divided graphs", []int{2, 3}, func(n int) bool { return n == 3 })
	traintest.RunQuickly(t, ranks, nil, func(t *testing.T, w *spmd.World) {
		for _, mode := range modes {
			testDividedGraphs(t, w, mode, 1, w.Size())
			testDividedGraphs(t, w, mode, w.Size(), 1)
		}
	})
}

func testDividedGraphs(t *testing.T, w *spmd.World, mode layout.ShardMode, tensor, stages int) {
	const steps = 4
	cfg := testConfig(steps)
	cfg.Seq, cfg.Batch, cfg.Model.Layers, cfg.Model.Heads, cfg.Model.Channels = 16, 1, 5, 6, 24
	cfg.Model.Shard.Mode, cfg.Model.Tensor.Ranks, cfg.Model.Stage.Stages = mode, tensor, stages
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
				t.Fatalf("--shard %v, step %d: loss %v, norm %v; as a graph, recompute %v: %v, %v",
					mode, i, loss, norm, layout.Recomputation(k), gloss, gnorm)
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
		spmdtest.Must(t, tr.Close())
	}
}
