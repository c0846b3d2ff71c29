package ops

import (
	"slices"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/traintest"
)

// A value does not depend on how threads divide the work.
func TestAdamWSplits(t *testing.T) {
	const n = 5
	g := traintest.RandomFloats(n*layout.ArenaAlign, 1, 12)
	update := func(cuts ...int) (o [3][]float32) {
		for i := range o {
			o[i] = make([]float32, n*layout.ArenaAlign)
		}
		for i := len(cuts) - 1; i > 0; i-- {
			cAdamW(o[0], o[1], o[2], g, []uint8{1, 0, 1, 1, 0}, []float32{0.1, 2, 3}, 0.5, 0.9, 0.95, 1e-8, 0.1,
				cuts[i-1], cuts[i])
		}
		return o
	}
	want, got := update(0, n), update(0, 1, 3, n)
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("output %d depends on the split", i)
		}
		if slices.Equal(want[i], make([]float32, n*layout.ArenaAlign)) {
			t.Errorf("output %d was not written", i)
		}
	}
}
