package trainer

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/text"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// wordTokens returns n random words as tokens.
func wordTokens(n int) *text.File { return text.InMemory(1, traintest.RandomWords(n)) }

// testConfig is a small model with 7 sequences a step, which no number of ranks but 1 divides.
func testConfig(steps int) Config {
	adam := DefaultAdam
	return Config{
		Model: layout.Config{Layers: 2, Heads: 2, Channels: 32, SeqMax: 24, Vocab: 256},
		Adam:  adam, Rate: Schedule{Peak: 3e-3, Final: 3e-4, Warmup: 2, Steps: steps},
		Batch: 2, Seq: 24, GlobalBatch: 7, Steps: steps, ValBatches: 2,
	}
}

// start returns a trainer that is ready for step 0.
func start(t *testing.T, w *spmd.World, c spmd.Comm, cfg Config, f *text.File) *Trainer {
	t.Helper()
	data, err := NewDataset(f, cfg.Seq, cfg.GlobalBatch, 5)
	spmdtest.Must(t, err)
	tr, err := New(w, c, cfg, data)
	spmdtest.Must(t, err)
	spmdtest.Must(t, tr.Begin(5))
	return tr
}

// step runs one step and returns its loss and norm.
func step(t *testing.T, tr *Trainer, n int) (loss, norm float64) {
	t.Helper()
	spmdtest.Must(t, tr.Enqueue(n))
	loss, norm, _, err := tr.Read(n)
	spmdtest.Must(t, err)
	return loss, norm
}

// stepAll runs the first steps. It returns the loss and the norm of each, and the
// loss of validation after them.
func stepAll(t *testing.T, tr *Trainer, steps int) (all [][2]float64, validation float64) {
	t.Helper()
	for i := range steps {
		loss, norm := step(t, tr, i)
		all = append(all, [2]float64{loss, norm})
	}
	validation, err := tr.Validate()
	spmdtest.Must(t, err)
	return all, validation
}

// The same global batch is trained on 1, 2, 3 and 4 ranks. Every rank also trains a model of its
// own on whole batches, and the two must go the same way.
func TestLossDoesNotDependOnRanks(t *testing.T) {
	traintest.OnBothQuickly(t, []int{1, 2, 3, 4}, []int{4}, testLossDoesNotDependOnRanks[float32],
		testLossDoesNotDependOnRanks[spmd.BF16])
}

func testLossDoesNotDependOnRanks[A ops.Act](t *testing.T, w *spmd.World) {
	const steps = 20
	cfg := testConfig(steps)
	cfg.Half = ops.IsHalf[A]()
	// Unequal parts make sums of unequal lengths. A difference in the last bit
	// may round to another bfloat16.
	bound, normBound, kind := 1e-4, 1e-2, "loss"
	switch {
	case cfg.Half:
		bound, kind = 1e-3, "bfloat16 loss"
	case w.OnHost():
		bound, normBound = 1e-5, 1e-3
	}
	own, err := w.Comm().Split(w.Rank(), 0)
	spmdtest.Must(t, err)
	f := wordTokens(4000)
	together, alone := start(t, w, w.Comm(), cfg, f), start(t, w, own, cfg, f)
	worst := 0.0
	for i := range steps {
		a, an := step(t, together, i)
		b, bn := step(t, alone, i)
		if !traintest.CloseTo(a, b, bound) || !traintest.CloseTo(an, bn, normBound*bn) {
			t.Fatalf("step %d: loss %.7f, norm %g on %d ranks, but %.7f, %g on one", i, a, an, w.Size(), b, bn)
		}
		worst = max(worst, math.Abs(a-b))
		spmdtest.Must(t, together.Audit(i+1))
		if i == 0 && !traintest.CloseTo(a, math.Log(256), 0.1) {
			t.Errorf("loss at the start %g, want ln 256", a)
		}
	}
	a, err := together.Validate()
	spmdtest.Must(t, err)
	b, err := alone.Validate()
	spmdtest.Must(t, err)
	if !traintest.CloseTo(a, b, bound) {
		t.Errorf("validation loss %.7f on %d ranks, %.7f on one", a, w.Size(), b)
	}
	traintest.Measured(t, "largest difference of a "+kind+" on 1, 2, 3 and 4 ranks over 20 steps",
		max(worst, math.Abs(a-b)))
	for _, tr := range []*Trainer{together, alone} {
		spmdtest.Must(t, tr.Close())
	}
}

// The ranks' parts of a step together are its sequences 0, 1, 2, ...
func TestDataOrderDoesNotDependOnRanks(t *testing.T) {
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		tr := start(t, w, w.Comm(), testConfig(3), wordTokens(4000))
		var mine []byte
		for starts := range tr.trainBatches(0) {
			for _, at := range starts {
				mine = fmt.Appendf(mine, "%d ", at)
			}
		}
		all, err := text.Among(w, w.Comm()).Gather(mine, nil)
		spmdtest.Must(t, err)
		var want []string
		for s := range 3 {
			for j := range 7 {
				want = append(want, fmt.Sprint(tr.Data.Start(s, j)))
			}
		}
		got := make([]string, 0, len(want))
		parts := make([][]string, len(all))
		for r := range all {
			parts[r] = strings.Fields(string(all[r]))
		}
		for range 3 {
			for r := range parts {
				n := spmd.ShardOf(7, r, w.Size()).Len
				got, parts[r] = append(got, parts[r][:n]...), parts[r][n:]
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("order %v, want %v", got, want)
		}
		spmdtest.Must(t, tr.Close())
	})
}

// Micro-batches of any size give the same step.
func TestAccumulation(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		bound := traintest.BoundsOf(w, false).Loss
		var losses [3][]float64
		for k, batch := range []int{7, 3, 1} {
			cfg := testConfig(5)
			cfg.Batch = batch
			tr := start(t, w, w.Comm(), cfg, wordTokens(4000))
			for i := range 5 {
				loss, _ := step(t, tr, i)
				losses[k] = append(losses[k], loss)
			}
			spmdtest.Must(t, tr.Close())
		}
		for i, want := range losses[0] {
			if !traintest.CloseTo(losses[1][i], want, bound) || !traintest.CloseTo(losses[2][i], want, bound) {
				t.Errorf("step %d: losses %.7f, %.7f, %.7f with 7, 3, 1 sequences at a time",
					i, want, losses[1][i], losses[2][i])
			}
		}
	})
}

// A model that has seen one sentence often enough writes it.
func TestLearnsAndWrites(t *testing.T) {
	traintest.OnBoth(t, []int{2}, testLearnsAndWrites[float32], testLearnsAndWrites[spmd.BF16])
}

func testLearnsAndWrites[A ops.Act](t *testing.T, w *spmd.World) {
	const sentence = "abcdefghijklmnop\n"
	body := []byte(strings.Repeat(sentence, 100))
	cfg := testConfig(80)
	cfg.Half = ops.IsHalf[A]()
	cfg.Rate = Schedule{Peak: 1e-2, Final: 1e-3, Warmup: 5, Steps: cfg.Steps}
	tr := start(t, w, w.Comm(), cfg, text.InMemory(1, body))
	var loss float64
	for i := range cfg.Steps {
		loss, _ = step(t, tr, i)
	}
	if loss > 0.2 {
		t.Errorf("loss %g after %d steps, want below 0.2", loss, cfg.Steps)
	}
	text, err := tr.Generate(t.Context(), text.Bytes{}, sentence+"abc", 30, 0, 1)
	spmdtest.Must(t, err)
	if want := strings.Repeat(sentence, 3)[:len(sentence)+3+30]; string(text) != want {
		t.Errorf("wrote %q, want %q", text, want)
	}
	spmdtest.Must(t, tr.Close())
}
