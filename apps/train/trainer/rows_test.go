package trainer

import (
	"fmt"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// Ranks that divide layers share any number of tokens, in micro-batches of different sizes. If
// there are fewer tokens than ranks, some ranks have none.
func TestUnevenRows(t *testing.T) {
	spmdtest.RunInProcess(t, []int{2, 3, 4}, func(t *testing.T, w *spmd.World) {
		const steps = 3
		for _, seq := range []int{1, 2, 5, 23} {
			cfg := testConfig(steps)
			cfg.Graph = "off"
			cfg.Seq = seq
			cfg.GlobalBatch = 2*w.Size() + 1 // for a rank alone micro-batches of two and of one
			cfg.Model.Heads, cfg.Model.Channels = 12, 36
			plain := start(t, w, w.Comm(), cfg, wordTokens(4000))
			var wants [][2]float64
			for i := range steps {
				loss, norm := step(t, plain, i)
				wants = append(wants, [2]float64{loss, norm})
			}
			spmdtest.Must(t, plain.Close())
			eachForm(w.Size(), func(tensor, stages int) {
				if tensor == 1 || stages > cfg.Model.Layers {
					return
				}
				for _, mode := range []layout.ShardMode{layout.ShardOff, layout.ShardParameters} {
					for _, recompute := range []layout.Recomputation{layout.RecomputeOff, layout.RecomputeBlock} {
						cfg := cfg
						cfg.Model.Tensor.Ranks, cfg.Model.Stage.Stages = tensor, stages
						cfg.Model.Shard.Mode, cfg.Model.Recompute = mode, recompute
						split := start(t, w, w.Comm(), cfg, wordTokens(4000))
						for i, want := range wants {
							loss, norm := step(t, split, i)
							if !traintest.CloseTo(loss, want[0], 1e-4) ||
								!traintest.CloseTo(norm, want[1], 1e-3*want[1]) {
								t.Fatalf("sequences of %d, --tp %d --pp %d --shard %v --recompute %v, step %d: loss "+
									"%.8f, norm %.8f; without %v",
									seq, tensor, stages, mode, recompute, i, loss, norm, want)
							}
						}
						if err := split.Audit(steps); err != nil {
							t.Fatal(fmt.Sprint("sequences of ", seq), err)
						}
						spmdtest.Must(t, split.Close())
					}
				}
			})
		}
	})
}
