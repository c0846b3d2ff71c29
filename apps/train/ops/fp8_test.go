package ops

import (
	"math"
	"slices"
	"testing"

	"lockstep/apps/train/traintest"
	"lockstep/spmd"
)

// The next step's scale brings the largest size into [128,256). A size that says nothing, or a step
// that changed nothing, leaves the scale as it was.
func TestFP8Scales(t *testing.T) {
	traintest.On8(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("s")
		traintest.NoError(t, err)
		inf, nan := float32(math.Inf(1)), float32(math.NaN())
		peaks := []float32{1, 0.75, 128, 255.9, 256, 3e38, 1e-30, 1e-44, 0, inf, nan}
		for _, gate := range []float32{0, nan} {
			old := make([]float32, Apart8*len(peaks))
			for i := range old {
				old[i] = 32
			}
			e := &FP8{Up: traintest.BufferOf(t, w, old[:len(peaks)]), down: traintest.BufferOf(t, w, old),
				Peak: traintest.BufferOf(t, w, peaks)}
			traintest.NoError(t, e.NextScales(s, traintest.BufferOf(t, w, []float32{gate})), s.Synchronize())
			up, down := traintest.ValuesOf(t, e.Up), traintest.ValuesOf(t, e.down)
			for i := range len(peaks) {
				down[i] = down[Apart8*i]
			}
			for i, peak := range peaks {
				if gate != gate || !(peak > 0 && peak < inf) {
					if up[i] != 32 || down[i] != 32 {
						t.Errorf("gate %v: the scale for %v is %v and %v, want what it was", gate, peak, up[i], down[i])
					}
					continue
				}
				scaled := float64(peak) * float64(up[i])
				frac, _ := math.Frexp(float64(up[i]))
				if frac != 0.5 || up[i]*down[i] != 1 || !(scaled < 256) ||
					scaled < 128 && up[i] != float32(math.Ldexp(1, MostPower)) {
					t.Errorf("the scale for %v is %v and %v, which makes it %v", peak, up[i], down[i], scaled)
				}
			}
			for _, p := range traintest.ValuesOf(t, e.Peak) {
				if p != 0 {
					t.Errorf("a largest size is %v when the next step begins", p)
				}
			}
			exps, err := e.Scales()
			traintest.NoError(t, err)
			if !ScalesFit(exps, len(peaks)) || ScalesFit(exps, 3) || ScalesFit([]int{MostPower + 1}, 1) {
				t.Errorf("exponents %v", exps)
			}
			traintest.NoError(t, e.Up.SetAll(0), e.down.SetAll(0), e.SetScales(exps))
			if !slices.Equal(traintest.ValuesOf(t, e.Up), up) {
				t.Errorf("scales %v come back as %v", up, traintest.ValuesOf(t, e.Up))
			}
		}
	})
}
