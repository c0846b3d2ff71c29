package run

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/text"
	"lockstep/apps/train/trainer"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// The loop audits every few steps, and at its end.
func TestTrainAudits(t *testing.T) {
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		for _, tc := range []struct {
			every int
			after string
		}{{2, "after 2 steps"}, {0, "after 5 steps"}} {
			cfg := runConfig(5)
			tr := trainerOf(t, w, cfg)
			o, p := optionsOf(cfg), tr.State.Params[3]
			o.audit = tc.every
			if w.Rank() == 1 {
				traintest.Flip(tr.State.Weights, p.Off, 12) // rounding does not hide this difference
			}
			_, err := o.train(t.Context(), w, tr, nil, nil)
			if err == nil || !strings.Contains(err.Error(), p.Name+" "+tc.after) {
				t.Errorf("--audit %d: error %v, want one that says %s %s", tc.every, err, p.Name, tc.after)
			}
			spmdtest.Must(t, tr.Close())
		}
	})
}

// atStep is a context that calls do before each step. The loop looks at its context once a step.
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

// If a rank is asked to end before a step, all ranks end together after the next one. It does not
// matter which ranks are asked later.
func TestEndsTogether(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3}, func(t *testing.T, w *spmd.World) {
		for asked := range w.Size() { // the first to be asked; the next ones follow step by step
			for _, at := range []int{0, 1, 6} {
				cfg := runConfig(50)
				tr := trainerOf(t, w, cfg)
				stop := make(chan struct{})
				ctx := &atStep{t.Context(), at + (w.Rank()-asked+w.Size())%w.Size(), func() { close(stop) }}
				early, err := optionsOf(cfg).train(ctx, w, tr, nil, stop)
				if err != nil || !early {
					t.Fatalf("ended early: %v, error %v", early, err)
				}
				if n := tr.Optimizer.Steps; n != at+2 {
					t.Errorf("rank %d of %d was asked before step %d, and rank %d ended after %d steps, want %d",
						asked, w.Size(), at, w.Rank(), n, at+2)
				}
				spmdtest.Must(t, tr.Close())
			}
		}
	})
}

// A run that is asked to end during its last steps ends as usual.
func TestEndsByItself(t *testing.T) {
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		for _, steps := range []int{1, 2} {
			cfg := runConfig(steps)
			tr := trainerOf(t, w, cfg)
			stop := make(chan struct{})
			close(stop)
			early, err := optionsOf(cfg).train(t.Context(), w, tr, nil, stop)
			if err != nil || early || tr.Optimizer.Steps != steps {
				t.Errorf("%d of %d steps, ended early: %v, error %v", tr.Optimizer.Steps, steps, early, err)
			}
			spmdtest.Must(t, tr.Close())
		}
	})
}

// runConfig is a small model that takes 7 sequences a step.
func runConfig(steps int) trainer.Config {
	return trainer.Config{
		Model: layout.Config{Layers: 2, Heads: 2, Channels: 32, SeqMax: 24, Vocab: 256},
		Adam:  trainer.DefaultAdam, Rate: trainer.Schedule{Peak: 3e-3, Final: 3e-4, Warmup: 2, Steps: steps},
		Batch: 2, Seq: 24, GlobalBatch: 7, Steps: steps, ValBatches: 2,
	}
}

// newTrainerOf returns a trainer on words.
func newTrainerOf(t *testing.T, w *spmd.World, cfg trainer.Config) *trainer.Trainer {
	t.Helper()
	data, err := trainer.NewDataset(text.InMemory(1, traintest.RandomWords(4000)), cfg.Seq, cfg.GlobalBatch, 5)
	spmdtest.Must(t, err)
	tr, err := trainer.New(w, w.Comm(), cfg, data)
	spmdtest.Must(t, err)
	return tr
}

// trainerOf returns a trainer on words that is ready for step 0.
func trainerOf(t *testing.T, w *spmd.World, cfg trainer.Config) *trainer.Trainer {
	t.Helper()
	tr := newTrainerOf(t, w, cfg)
	spmdtest.Must(t, tr.Begin(5))
	return tr
}

// lossOf runs one step and returns its loss.
func lossOf(t *testing.T, tr *trainer.Trainer, n int) float64 {
	t.Helper()
	spmdtest.Must(t, tr.Enqueue(n))
	loss, _, _, err := tr.Read(n)
	spmdtest.Must(t, err)
	return loss
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
		spmdtest.Must(t, tr.Close())
	})
}

// optionsOf returns the options of a run with the trainer's configuration.
func optionsOf(cfg trainer.Config) *Options {
	o := New()
	o.steps, o.GlobalBatch, o.Seq, o.Cfg = cfg.Steps, cfg.GlobalBatch, cfg.Seq, cfg.Model
	o.Tok, o.rate = text.Bytes{}, cfg.Rate
	o.logEvery = cfg.Steps
	return o
}
