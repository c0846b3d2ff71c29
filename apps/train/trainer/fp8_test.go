package trainer

import (
	"fmt"
	"strings"
	"testing"

	"lockstep/apps/train/batches"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
)

// A run with 8-bit floats learns as one with bfloat16, has the same bits as a graph, and goes on from what a checkpoint
// holds with the bits of one that was not interrupted; all ranks have the same scales.
func TestFP8Steps(t *testing.T) {
	traintest.On8(t, []int{1, 2, 3}, func(t *testing.T, w *spmd.World) {
		const steps, half = 24, 9
		f := wordTokens(4000)
		for _, level := range []layout.FP8Level{layout.FP8Head, layout.FP8All} {
			cfg := testConfig(steps)
			cfg.Half, cfg.Graph = true, "off"
			plain := start(t, w, w.Comm(), cfg, f)
			cfg.Model.FP8 = level
			eight := start(t, w, w.Comm(), cfg, f)
			if w.Comm().Capturable() == nil {
				cfg.Graph = "on"
			}
			graphs := start(t, w, w.Comm(), cfg, f)
			data, err := batches.NewDataset(f, cfg.Seq, cfg.GlobalBatch, 5)
			traintest.NoError(t, err)
			resumed, err := New(w, w.Comm(), cfg, data)
			traintest.NoError(t, err)
			off := 0.0
			for i := range steps {
				if i == half {
					for _, b := range [][2]spmd.Buffer[float32]{{resumed.State.Weights, eight.State.Weights}, {resumed.Optimizer.M, eight.Optimizer.M}, {resumed.Optimizer.V, eight.Optimizer.V}} {
						traintest.NoError(t, b[0].CopyFrom(traintest.ValuesOf(t, b[1])))
					}
					resumed.Scales, err = eight.State.FP8.Scales()
					traintest.NoError(t, err, resumed.StartAt(half))
				}
				want, _ := step(t, plain, i)
				loss, norm := step(t, eight, i)
				again, normAgain := step(t, graphs, i)
				if loss != again || norm != normAgain {
					t.Fatalf("--fp8 %v, step %d: loss %v, norm %v; as a graph %v, %v", level, i, loss, norm, again, normAgain)
				}
				if i >= half {
					if again, normAgain := step(t, resumed, i); loss != again || norm != normAgain {
						t.Fatalf("--fp8 %v, step %d: loss %v, norm %v; resumed %v, %v", level, i, loss, norm, again, normAgain)
					}
				}
				if i == 4 { // what is measured in between changes nothing
					_, err := eight.Validate()
					traintest.NoError(t, err)
				}
				off += (loss - want) / steps
			}
			if !traintest.CloseTo(off, 0, 0.02) || off == 0 {
				t.Errorf("--fp8 %v: losses are off by %v on average", level, off)
			}
			traintest.NoError(t, eight.Audit(steps))
			if w.Rank() == w.Size()-1 && w.Size() > 1 {
				traintest.NoError(t, eight.State.FP8.Up.Slice(1, 2).SetAll(0.25))
			}
			if w.Size() > 1 {
				if err := eight.Audit(steps); !strings.Contains(fmt.Sprint(err), "the scales of 8-bit floats after 24 steps") {
					t.Errorf("--fp8 %v: other scales on a rank: %v", level, err)
				}
			}
			traintest.NoError(t, plain.Close(), eight.Close(), graphs.Close(), resumed.Close())
		}
	})
}
