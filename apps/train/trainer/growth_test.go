package trainer

import (
	"slices"
	"testing"

	"lockstep/apps/train/traintest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// Growing steps go the same way on any number of ranks, and have the bits of graphs. A micro-step
// has a graph for each size of a step.
func TestGrowth(t *testing.T) {
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		own, err := w.Comm().Split(w.Rank(), 0)
		traintest.NoError(t, err)
		run := func(c spmd.Comm, graph string) (all [][2]float64) {
			cfg := testConfig(12)
			cfg.Graph = graph
			data, err := NewDataset(wordTokens(4000), cfg.Seq, cfg.GlobalBatch, 5)
			traintest.NoError(t, err)
			data.Growth = Growth{First: 3, Last: cfg.GlobalBatch, Steps: cfg.Steps}
			tr, err := New(w, c, cfg, data)
			traintest.NoError(t, err, tr.Begin(5))
			all, _ = stepAll(t, tr, cfg.Steps)
			traintest.NoError(t, tr.Close())
			return all
		}
		together, alone := run(w.Comm(), "off"), run(own, "off")
		bound := traintest.BoundsOf(w, false).Loss
		for i := range alone {
			if !traintest.CloseTo(together[i][0], alone[i][0], bound) {
				t.Errorf("step %d: loss %.7f on %d ranks, %.7f on one", i, together[i][0], w.Size(), alone[i][0])
			}
		}
		if w.Comm().Capturable() == nil && !slices.Equal(run(w.Comm(), "on"), together) {
			t.Error("graphs have other bits")
		}
	})
}
