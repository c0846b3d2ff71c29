package main

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// flip changes one bit of one element.
func flip(b spmd.Buffer[float32], i, bit int) {
	b.Set(i, math.Float32frombits(math.Float32bits(b.At(i))^1<<bit))
}

// One bit of one tensor on one rank: every rank says which tensor, and which rank.
func TestAudit(t *testing.T) {
	spmdtest.Run(t, []int{2, 3}, func(t *testing.T, w *spmd.World) {
		tr := start(t, w, w.Comm(), testConfig(3), wordTokens(4000))
		step(t, tr, 0)
		if err := tr.audit(1); err != nil {
			t.Fatal(err)
		}
		last := w.Size() - 1
		for _, a := range tr.replicas() {
			for _, p := range []Param{tr.state.Params[0], tr.state.Params[5], tr.state.Params[len(tr.state.Params)-1]} {
				tensor := a.Slice(p.Off, p.Off+p.Len)
				was := tensor.At(p.Len / 2)
				if w.Rank() == last {
					flip(tensor, p.Len/2, 0)
				}
				err := tr.audit(7)
				for _, want := range []string{a.prefix + p.Name + " after 7 steps", fmt.Sprintf("rank %d has", last)} {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("error %v, want %q in it", err, want)
					}
				}
				tensor.Set(p.Len/2, was)
			}
		}
		if err := tr.audit(1); err != nil {
			t.Error(err)
		}
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// The loop audits after every so many steps, and at its end.
func TestTrainAudits(t *testing.T) {
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		for _, tc := range []struct {
			every int
			after string
		}{{2, "after 2 steps"}, {0, "after 5 steps"}} {
			cfg := runConfig(5)
			tr := trainerOf(t, w, cfg)
			o, p := optionsOf(cfg), tr.state.Params[3]
			o.audit = tc.every
			if w.Rank() == 1 {
				flip(tr.state.Weights, p.Off, 12) // what it is off by is not lost in rounding
			}
			_, err := o.train(t.Context(), w, tr, nil, nil)
			if err == nil || !strings.Contains(err.Error(), p.Name+" "+tc.after) {
				t.Errorf("--audit %d: error %v, want one that says %s %s", tc.every, err, p.Name, tc.after)
			}
			if err := tr.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// atStep is a context that calls do before a step is enqueued: the loop looks at it
// once before each.
type atStep struct {
	context.Context
	left int
	do   func()
}

func (c *atStep) Err() error {
	if c.left--; c.left == -1 {
		c.do()
	}
	return c.Context.Err()
}

// Where a rank is asked to end before a step, all ranks end together after the next
// one, whichever ranks are asked later.
func TestEndsTogether(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3}, func(t *testing.T, w *spmd.World) {
		for asked := range w.Size() { // the first to be asked; those after it follow step by step
			for _, at := range []int{0, 1, 6} {
				cfg := runConfig(50)
				tr := trainerOf(t, w, cfg)
				stop := make(chan struct{})
				ctx := &atStep{t.Context(), at + (w.Rank()-asked+w.Size())%w.Size(), func() { close(stop) }}
				early, err := optionsOf(cfg).train(ctx, w, tr, nil, stop)
				if err != nil || !early {
					t.Fatalf("ended early: %v, error %v", early, err)
				}
				if n := tr.adam.Steps; n != at+2 {
					t.Errorf("rank %d of %d was asked before step %d, and rank %d ended after %d steps, want %d", asked, w.Size(), at, w.Rank(), n, at+2)
				}
				if err := tr.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// A run whose last steps are under way ends as if it had not been asked.
func TestEndsByItself(t *testing.T) {
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		for _, steps := range []int{1, 2} {
			cfg := runConfig(steps)
			tr := trainerOf(t, w, cfg)
			stop := make(chan struct{})
			close(stop)
			early, err := optionsOf(cfg).train(t.Context(), w, tr, nil, stop)
			if err != nil || early || tr.adam.Steps != steps {
				t.Errorf("%d of %d steps, ended early: %v, error %v", tr.adam.Steps, steps, early, err)
			}
			if err := tr.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// runConfig is a small model that takes 7 sequences a step.
func runConfig(steps int) trainConfig {
	return trainConfig{
		model: Config{Layers: 2, Heads: 2, Channels: 32, SeqMax: 24, Vocab: 256},
		adam:  DefaultAdam, rate: Schedule{Peak: 3e-3, Final: 3e-4, Warmup: 2, Steps: steps},
		batch: 2, seq: 24, globalBatch: 7, steps: steps, valBatches: 2,
	}
}

// newTrainerOf returns a trainer on words.
func newTrainerOf(t *testing.T, w *spmd.World, cfg trainConfig) *trainer {
	t.Helper()
	data, err := newDataset(inMemory(1, randomWords(4000)), cfg.seq, cfg.globalBatch, 5)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := newTrainer(w, w.Comm(), cfg, data)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// trainerOf returns a trainer on words that is ready for step 0.
func trainerOf(t *testing.T, w *spmd.World, cfg trainConfig) *trainer {
	t.Helper()
	tr := newTrainerOf(t, w, cfg)
	if err := tr.begin(5); err != nil {
		t.Fatal(err)
	}
	return tr
}

// lossOf runs one step and returns its loss.
func lossOf(t *testing.T, tr *trainer, n int) float64 {
	t.Helper()
	if err := tr.enqueue(n); err != nil {
		t.Fatal(err)
	}
	loss, _, _, err := tr.read(n)
	if err != nil {
		t.Fatal(err)
	}
	return loss
}
