package trainer

import (
	"slices"
	"testing"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/traintest"
	"lockstep/internal/testkit"
	"lockstep/spmd"
)

// One batch is learned by heart; and the same steps from a graph give the same bits.
func TestOverfit(t *testing.T) {
	traintest.OnBoth(t, []int{1}, testOverfit[float32], testOverfit[spmd.BF16])
}

func testOverfit[A ops.Act](t *testing.T, w *spmd.World) {
	const batch, T, steps = 2, 16, 60
	cfg := traintest.Small
	adam := AdamConfig{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1}
	ib := traintest.BufferOf(t, w, traintest.RandomTokens(batch*T, cfg.Vocab, 2))
	tb := traintest.BufferOf(t, w, traintest.RandomTokens(batch*T, cfg.Vocab, 3))
	rows := make([]int32, ops.SortedLen(batch*T, cfg.Vocab))
	new(ops.Sorter).Sort(rows, traintest.RandomTokens(batch*T, cfg.Vocab, 2), cfg.Vocab)
	part := gpt.Batch{In: ib, Targets: tb, Sorted: traintest.BufferOf(t, w, rows), B: batch, T: T}
	var weights [2][]float32
	for graphed := range weights {
		m, s := modelWith[A](t, w, cfg, traintest.RandomParams(cfg, 1), batch)
		testkit.Must(t, m.Init(1))
		testkit.Must(t, m.Refresh(s))
		o, err := NewAdamW(&m.State, w.Comm(), adam)
		testkit.Must(t, err)
		body := func() error {
			if err := m.ForwardBackward(s, part, 1./(batch*T), true, nil); err != nil {
				return err
			}
			return o.Apply(s)
		}
		run := body
		if graphed == 1 {
			g, err := s.Capture(body)
			testkit.Must(t, err)
			run = func() error { return g.Launch(s) }
		}
		for range steps {
			testkit.Must(t, o.Prepare(s, 1e-2))
			testkit.Must(t, run())
		}
		testkit.Must(t, s.Synchronize())
		t.Logf("loss %.4f", m.Loss.At(0))
		if loss := m.Loss.At(0); !(loss < 0.1) {
			t.Errorf("loss after %d steps on one batch is %v", steps, loss)
		}
		weights[graphed] = traintest.ValuesOf(t, m.Weights)
	}
	if !slices.Equal(weights[0], weights[1]) {
		t.Error("the steps of a graph differ from those enqueued")
	}
}
