package run

import (
	"slices"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/text"
	"lockstep/apps/train/trainer"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
)

// A checkpoint holds the scales of the next step. A resumed run uses them unless its
// settings need other scales.
func TestFP8Checkpoint(t *testing.T) {
	traintest.On8(t, []int{1}, func(t *testing.T, w *spmd.World) {
		const steps, half = 12, 5
		dir := t.TempDir()
		open := func(level layout.FP8Level, globalBatch int, found *saved) (*trainer.Trainer, *saver) {
			t.Helper()
			cfg := runConfig(steps)
			cfg.Half, cfg.Graph, cfg.Model.FP8, cfg.GlobalBatch = true, "off", level, globalBatch
			tr := newTrainerOf(t, w, cfg)
			o, err := New(), error(nil)
			o.Tok, err = text.NewTokenizer("bytes")
			traintest.NoError(t, err)
			o.Checkpoint, o.Cfg, o.Seq, o.FP8, o.DType = dir, cfg.Model, cfg.Seq, level.String(), "bfloat16"
			o.GlobalBatch, o.Given = globalBatch, func(string) bool { return true }
			c, err := checkpoint.Open(w, dir, checkpoint.Config{Keep: 3})
			traintest.NoError(t, err)
			s := &saver{Manager: c, o: o, w: w, key: []byte{1}, found: found}
			if found == nil {
				traintest.NoError(t, tr.Begin(5))
			} else {
				traintest.NoError(t, s.start(tr))
			}
			return tr, s
		}
		tr, s := open(layout.FP8All, 7, nil)
		var losses []float64
		for i := range steps {
			if i == half {
				traintest.NoError(t, s.save(tr, half, record{}), s.Wait())
			}
			loss := lossOf(t, tr, i)
			losses = append(losses, loss)
		}
		traintest.NoError(t, tr.Close(), s.Close())

		tr, s = open(layout.FP8All, 7, new(saved))
		if tr.First != half || len(tr.Scales) != layout.HeadSites+2*layout.LayerSites {
			t.Errorf("it goes on after %d steps with scales %v", tr.First, tr.Scales)
		}
		for i := half; i < steps; i++ {
			if loss := lossOf(t, tr, i); loss != losses[i] {
				t.Errorf("step %d: loss %v, uninterrupted %v", i, loss, losses[i])
			}
		}
		traintest.NoError(t, tr.Close(), s.Close())
		for name, other := range map[string]func() (*trainer.Trainer, *saver){
			"other products":       func() (*trainer.Trainer, *saver) { return open(layout.FP8Head, 7, new(saved)) },
			"another global batch": func() (*trainer.Trainer, *saver) { return open(layout.FP8All, 3, new(saved)) },
		} {
			tr, s := other()
			exps, err := tr.State.FP8.Scales()
			traintest.NoError(t, err)
			if tr.Scales != nil || !slices.ContainsFunc(exps, func(e int) bool { return e != 0 }) {
				t.Errorf("%s: scales %v of the checkpoint, %v found", name, tr.Scales, exps)
			}
			lossOf(t, tr, half)
			traintest.NoError(t, tr.Close(), s.Close())
		}
	})
}
