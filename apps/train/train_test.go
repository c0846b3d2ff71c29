package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// wordTokens is n random words as tokens.
func wordTokens(n int) *tokenFile { return inMemory(1, randomWords(n)) }

// randomWords is n bytes of random words: there is something to learn in it.
func randomWords(n int) []byte {
	rng := rand.New(rand.NewPCG(3, 4))
	words := strings.Fields("func return if else for range int string error nil := == package import")
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(words[rng.IntN(len(words))] + " ")
	}
	return []byte(b.String()[:n])
}

// testConfig is a small model that takes 7 sequences a step: no number of ranks
// but 1 divides them.
func testConfig(steps int) trainConfig {
	adam := DefaultAdam
	return trainConfig{
		model: Config{Layers: 2, Heads: 2, Channels: 32, SeqMax: 24, Vocab: 256},
		adam:  adam, rate: Schedule{Peak: 3e-3, Final: 3e-4, Warmup: 2, Steps: steps},
		batch: 2, seq: 24, globalBatch: 7, steps: steps, valBatches: 2,
	}
}

// start returns a trainer that is ready for step 0.
func start(t *testing.T, w *spmd.World, c spmd.Comm, cfg trainConfig, f *tokenFile) *trainer {
	t.Helper()
	data, err := newDataset(f, cfg.seq, cfg.globalBatch, 5)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := newTrainer(w, c, cfg, data)
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.begin(5); err != nil {
		t.Fatal(err)
	}
	return tr
}

// step runs one step and returns its loss and norm.
func step(t *testing.T, tr *trainer, n int) (loss, norm float64) {
	t.Helper()
	if err := tr.enqueue(n); err != nil {
		t.Fatal(err)
	}
	loss, norm, _, err := tr.read(n)
	if err != nil {
		t.Fatal(err)
	}
	return loss, norm
}

func closeTo(a, b, bound float64) bool { return math.Abs(a-b) <= bound } // false for NaN

// The same global batch on 1, 2, 3 and 4 ranks: every rank also trains a model of
// its own on whole batches, and the two must go the same way.
func TestLossDoesNotDependOnRanks(t *testing.T) {
	onBoth(t, []int{1, 2, 3, 4}, testLossDoesNotDependOnRanks[float32], testLossDoesNotDependOnRanks[spmd.BF16])
}

func testLossDoesNotDependOnRanks[A Act](t *testing.T, w *spmd.World) {
	const steps = 20
	cfg := testConfig(steps)
	cfg.half = isHalf[A]()
	// Unequal parts make sums of unequal lengths; what differs in the last bit
	// may round to another bfloat16.
	bound, normBound, kind := 1e-4, 1e-2, "loss"
	switch {
	case cfg.half:
		bound, kind = 1e-3, "bfloat16 loss"
	case w.OnHost():
		bound, normBound = 1e-5, 1e-3
	}
	own, err := w.Comm().Split(w.Rank(), 0)
	if err != nil {
		t.Fatal(err)
	}
	f := wordTokens(4000)
	together, alone := start(t, w, w.Comm(), cfg, f), start(t, w, own, cfg, f)
	worst := 0.0
	for i := range steps {
		a, an := step(t, together, i)
		b, bn := step(t, alone, i)
		if !closeTo(a, b, bound) || !closeTo(an, bn, normBound*bn) {
			t.Fatalf("step %d: loss %.7f, norm %g on %d ranks, but %.7f, %g on one", i, a, an, w.Size(), b, bn)
		}
		worst = max(worst, math.Abs(a-b))
		if err := together.audit(i + 1); err != nil {
			t.Fatal(err)
		}
		if i == 0 && !closeTo(a, math.Log(256), 0.1) {
			t.Errorf("loss at the start %g, want ln 256", a)
		}
	}
	a, err := together.validate()
	if err != nil {
		t.Fatal(err)
	}
	b, err := alone.validate()
	if err != nil {
		t.Fatal(err)
	}
	if !closeTo(a, b, bound) {
		t.Errorf("validation loss %.7f on %d ranks, %.7f on one", a, w.Size(), b)
	}
	measured(t, "largest difference of a "+kind+" on 1, 2, 3 and 4 ranks over 20 steps", max(worst, math.Abs(a-b)))
	for _, tr := range []*trainer{together, alone} {
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// The ranks' parts of a step, put together, are the sequences 0, 1, 2, ... of it.
func TestDataOrderDoesNotDependOnRanks(t *testing.T) {
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		tr := start(t, w, w.Comm(), testConfig(3), wordTokens(4000))
		var mine []byte
		for starts := range tr.trainBatches(0) {
			for _, at := range starts {
				mine = fmt.Appendf(mine, "%d ", at)
			}
		}
		all, err := commGroup(w, w.Comm()).gather(mine, nil)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for s := range 3 {
			for j := range 7 {
				want = append(want, fmt.Sprint(tr.data.start(s, j)))
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
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Micro-batches of any size give the same step.
func TestAccumulation(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		bound := boundsOf(w, false).loss
		var losses [3][]float64
		for k, batch := range []int{7, 3, 1} {
			cfg := testConfig(5)
			cfg.batch = batch
			tr := start(t, w, w.Comm(), cfg, wordTokens(4000))
			for i := range 5 {
				loss, _ := step(t, tr, i)
				losses[k] = append(losses[k], loss)
			}
			if err := tr.Close(); err != nil {
				t.Fatal(err)
			}
		}
		for i, want := range losses[0] {
			if !closeTo(losses[1][i], want, bound) || !closeTo(losses[2][i], want, bound) {
				t.Errorf("step %d: losses %.7f, %.7f, %.7f with 7, 3, 1 sequences at a time", i, want, losses[1][i], losses[2][i])
			}
		}
	})
}

// A model that has seen one sentence often enough writes it.
func TestLearnsAndWrites(t *testing.T) {
	onBoth(t, []int{2}, testLearnsAndWrites[float32], testLearnsAndWrites[spmd.BF16])
}

func testLearnsAndWrites[A Act](t *testing.T, w *spmd.World) {
	const sentence = "abcdefghijklmnop\n"
	body := []byte(strings.Repeat(sentence, 100))
	cfg := testConfig(80)
	cfg.half = isHalf[A]()
	cfg.rate = Schedule{Peak: 1e-2, Final: 1e-3, Warmup: 5, Steps: cfg.steps}
	tr := start(t, w, w.Comm(), cfg, inMemory(1, body))
	var loss float64
	for i := range cfg.steps {
		loss, _ = step(t, tr, i)
	}
	if loss > 0.2 {
		t.Errorf("loss %g after %d steps, want below 0.2", loss, cfg.steps)
	}
	text, err := tr.generate(t.Context(), byteTokens{}, sentence+"abc", 30, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Repeat(sentence, 3)[:len(sentence)+3+30]; string(text) != want {
		t.Errorf("wrote %q, want %q", text, want)
	}
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
}

// A feed gives the micro-batches in their order, can be left early, and says when
// there are no more.
func TestLoader(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		const seq = 4
		data := &dataset{file: flatFile(1000), train: span{0, 1000}, seq: seq}
		l, err := newLoader(w, data, 3, 1000)
		if err != nil {
			t.Fatal(err)
		}
		s, err := w.NewStream("test")
		if err != nil {
			t.Fatal(err)
		}
		batches := slices.Values([][]int{{0, 40, 80}, {7}, {100, 200}, {300}, {400, 500, 600}})
		for _, take := range []int{2, 0, 5} {
			f := l.feed(batches)
			i := 0
			for starts := range batches {
				if i++; i > take {
					break
				}
				b, err := f.next(s)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Synchronize(); err != nil {
					t.Fatal(err)
				}
				if n := len(starts) * seq; b.B != len(starts) || b.T != seq || b.In.Len() != n || b.Targets.Len() != n {
					t.Fatalf("micro-batch %d: %d sequences in %d tokens, want %d", i, b.B, b.In.Len(), len(starts))
				}
				for j, at := range starts {
					for k := range seq {
						if got := b.In.At(j*seq + k); got != int32(at+k) {
							t.Fatalf("micro-batch %d: token %d, want %d", i, got, at+k)
						}
						if got := b.Targets.At(j*seq + k); got != int32(at+k+1) {
							t.Fatalf("micro-batch %d: target %d, want %d", i, got, at+k+1)
						}
					}
				}
			}
			if take == 5 {
				if _, err := f.next(s); err == nil {
					t.Errorf("a sixth micro-batch of five")
				}
			}
			f.stop()
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Byte strings of any lengths reach every rank, and one rank's error all of them.
func TestCommGroup(t *testing.T) {
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		g := commGroup(w, w.Comm())
		all, err := g.gather([]byte(strings.Repeat("x", 5*w.Rank())), nil)
		if err != nil {
			t.Fatal(err)
		}
		for r := range w.Size() {
			if len(all[r]) != 5*r {
				t.Errorf("rank %d gave %d bytes, want %d", r, len(all[r]), 5*r)
			}
		}
		var mine error
		if w.Rank() == w.Size()-1 {
			mine = badInput("no such thing")
		}
		if _, err := g.gather(nil, mine); err == nil || err.Error() != "no such thing" {
			t.Errorf("error %v, want the last rank's", err)
		}
	})
}

func TestTrainEndsWithItsContext(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		cfg := runConfig(1000)
		tr := trainerOf(t, w, cfg)
		ctx, cancel := context.WithCancelCause(context.Background())
		cause := fmt.Errorf("told to stop")
		cancel(cause)
		o := optionsOf(cfg)
		if _, err := o.train(ctx, w, tr, nil, nil); err != cause {
			t.Errorf("error %v, want %v", err, cause)
		}
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// optionsOf returns options that train as cfg says.
func optionsOf(cfg trainConfig) *options {
	o := newOptions()
	o.steps, o.globalBatch, o.seq, o.cfg, o.tok, o.rate = cfg.steps, cfg.globalBatch, cfg.seq, cfg.model, byteTokens{}, cfg.rate
	o.logEvery = cfg.steps
	return o
}

func TestDraw(t *testing.T) {
	logits := []float32{1, 3, float32(math.Inf(-1)), 2}
	if i := draw(logits, 0, 0.99); i != 1 {
		t.Errorf("temperature 0 draws %d, want 1", i)
	}
	// At temperature 2: weights e^0.5, e^1.5, 0, e^1.
	sum := math.Exp(0.5) + math.Exp(1.5) + math.Exp(1)
	for _, c := range []struct {
		u    float64
		want int
	}{{0, 0}, {math.Exp(0.5)/sum - 1e-9, 0}, {math.Exp(0.5)/sum + 1e-9, 1}, {1 - math.Exp(1)/sum + 1e-9, 3}, {math.Nextafter(1, 0), 3}} {
		if i := draw(logits, 2, c.u); i != c.want {
			t.Errorf("u %g draws %d, want %d", c.u, i, c.want)
		}
	}
}
