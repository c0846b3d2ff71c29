package modern

import (
	"math"
	"slices"
	"testing"

	"lockstep/apps/train/fp8"
	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/traintest"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// eightModel returns a model with products of 8-bit floats, whose scales are calibrated, and a
// micro-batch.
func eightModel(t *testing.T, w *spmd.World, cfg layout.Config) (*Model[spmd.BF16], *spmd.Stream, gpt.Batch) {
	t.Helper()
	const b, n = 4, 24
	m, s := testModel[spmd.BF16](t, w, cfg, traintest.RandomParams(cfg, 1), b)
	batch := batchOf(t, w, traintest.RandomTokens(b*n, cfg.Vocab, 2), traintest.RandomTokens(b*n, cfg.Vocab, 3), b, n,
		cfg.Vocab)
	if cfg.FP8 != layout.FP8Off {
		traintest.NoError(t, m.Calibrate(s, batch, 1./(b*n)),
			m.FP8.NextScales(s, traintest.BufferOf(t, w, []float32{0})))
	}
	return m, s, batch
}

// Losses and gradients with products of 8-bit floats are near those with bfloat16, but not equal.
func TestFP8Gradients(t *testing.T) {
	traintest.On8(t, []int{1}, func(t *testing.T, w *spmd.World) {
		cfg := traintest.SmallModern
		grads := func(level layout.FP8Level) (loss float64, g []float32) {
			cfg := cfg
			cfg.FP8 = level
			m, s, batch := eightModel(t, w, cfg)
			for i := range 2 { // with accumulation, the second time
				traintest.NoError(t, m.ForwardBackward(s, batch, 0.5/96, i == 0, nil))
			}
			traintest.NoError(t, s.Synchronize())
			need, err := MemoryNeeded(cfg, 4, cfg.SeqMax, true)
			traintest.NoError(t, err)
			if took := m.Space().Bytes + m.att.Workspace(); need < took {
				t.Errorf("--fp8 %v: told %d bytes, took %d", level, need, took)
			}
			loss, g = traintest.ValuesOf(t, m.Loss)[0], traintest.FloatsOf(t, m.Grads)
			traintest.NoError(t, m.Close())
			return loss, g
		}
		loss, want := grads(layout.FP8Off)
		for _, level := range []layout.FP8Level{layout.FP8Head, layout.FP8All} {
			loss8, got := grads(level)
			if !traintest.CloseTo(loss8, loss, 0.01) || loss8 == loss {
				t.Errorf("--fp8 %v: the loss is %v, of bfloat16 %v", level, loss8, loss)
			}
			params, _, _ := layout.Of(cfg)
			for _, p := range params {
				d, n := 0.0, 0.0
				for i := p.Off; i < p.Off+p.Len; i++ {
					d += math.Pow(float64(got[i]-want[i]), 2)
					n += math.Pow(float64(want[i]), 2)
				}
				if off := math.Sqrt(d / n); p.Decay && (!(off < 0.2) || off == 0) {
					t.Errorf("--fp8 %v: the gradient of %s differs by %.2g of its norm", level, p.Name, off)
				}
			}
		}
	})
}

// Each site's tensor is recorded once a pass, at its largest size. Recomputed activations have the
// copies of kept ones, and so the bits. Backward records no sizes of what forward has cast.
func TestFP8Recompute(t *testing.T) {
	traintest.On8(t, []int{1}, func(t *testing.T, w *spmd.World) {
		var want [2][]float32 // gradients and sizes
		for _, recompute := range []layout.Recomputation{layout.RecomputeOff, layout.RecomputeGELU,
			layout.RecomputeBlock} {
			cfg := traintest.SmallModern
			cfg.FP8, cfg.Recompute = layout.FP8All, recompute
			m, s, batch := eightModel(t, w, cfg)
			e := enqueueOn(s, m, batch, false, fp8.Learns)
			e.forward()
			e.loss(batch.Targets, 1./96, true)
			traintest.NoError(t, e.Err, s.Synchronize())
			peaks := traintest.ValuesOf(t, m.FP8.Peak)
			traintest.NoError(t, m.FP8.Peak.SetAll(0))
			e.backward(batch.Sorted, func(int) error { return nil })
			traintest.NoError(t, e.Err, s.Synchronize())
			for i, peak := range traintest.ValuesOf(t, m.FP8.Peak) {
				if i < layout.HeadSites {
					continue
				}
				gradient := i%2 == 1
				if gradient != (peak > 0) || gradient == (peaks[i] > 0) {
					t.Errorf("--recompute %v: forward enters %v for site %d of layer %d, backward %v", recompute,
						peaks[i], i%layout.LayerSites, i/layout.LayerSites, peak)
				}
				peaks[i] = max(peaks[i], peak)
			}
			got := [2][]float32{traintest.FloatsOf(t, m.Grads), peaks}
			if recompute == layout.RecomputeOff {
				want = got
				checkPeaks(t, m, peaks)
			}
			for i, what := range []string{"gradients", "largest sizes"} {
				if !slices.Equal(got[i], want[i]) {
					t.Errorf("--recompute %v: other %s than with kept activations", recompute, what)
				}
			}
			traintest.NoError(t, m.Close())
		}
	})
}

// checkPeaks compares the sizes of what forward keeps with those that it has recorded.
func checkPeaks(t *testing.T, m *Model[spmd.BF16], peaks []float32) {
	t.Helper()
	for l := range m.layer {
		a := &m.layer[l]
		for i, x := range []spmd.Buffer[spmd.BF16]{a.ln1, a.att, a.ln2, a.act} {
			top := float32(0)
			for _, v := range traintest.ValuesOf(t, x) {
				top = max(top, float32(math.Abs(float64(v.Float32()))))
			}
			if got := peaks[layout.HeadSites+layout.LayerSites*l+2*i]; got != top {
				t.Errorf("layer %d: the largest size of input %d is %v, recorded as %v", l, i, top, got)
			}
		}
	}
}

// The CUDA sources compute what the host functions do, where they make copies.
func TestCompareKernels(t *testing.T) {
	spmdtest.CompareKernels(t)
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		cfg := traintest.SmallModern
		cfg.FP8 = layout.FP8All
		m, s, batch := eightModel(t, w, cfg)
		traintest.NoError(t, m.ForwardBackward(s, batch, 1./96, true, nil), s.Synchronize(), m.Close())
	})
}
