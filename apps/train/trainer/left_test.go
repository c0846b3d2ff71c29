package trainer

import (
	"errors"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// A trainer that closes in the middle of an epoch, after a step and a loss, leaves nothing behind.
func TestNothingIsLeft(t *testing.T) {
	rounds := testkit.Few(t, "trainers", 100, 10_000)
	spmdtest.RunInProcess(t, []int{3}, func(t *testing.T, w *spmd.World) {
		cfg := testConfig(10)
		cfg.Model.Layers, cfg.Model.Channels, cfg.Model.SeqMax, cfg.Seq = 1, 8, 4, 4
		cfg.GlobalBatch, cfg.ValBatches, cfg.Graph = 4, 1, "on"
		data, err := NewDataset(wordTokens(1000), cfg.Seq, cfg.GlobalBatch, 5)
		spmdtest.Must(t, err)
		spmdtest.NothingIsLeft(t, w, rounds, func() error {
			tr, err := New(w, w.Comm(), cfg, data)
			if err != nil {
				return err
			}
			err = errors.Join(tr.Begin(5), tr.Enqueue(0))
			if err == nil {
				_, _, _, err = tr.Read(0)
			}
			if err == nil {
				_, err = tr.Validate()
			}
			return errors.Join(err, tr.Close())
		})
	})
}
