package checkpoint_test

import (
	"math"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/spmdtest"
)

// A checkpoint of any step is found again.
func TestLastStep(t *testing.T) {
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		dir := t.TempDir()
		for _, step := range []int{99_999_999, 100_000_000, 999_999_999_999_999_999,
			1_000_000_000_000_000_000, math.MaxInt} {
			c := open(t, w, dir, 0)
			x := spmdtest.Alloc[float32](t, w, 3)
			spmdtest.Must(t, c.Save(step, nil, checkpoint.Replicated("x", x)))
			spmdtest.Must(t, c.Wait())
			if got, err := c.Load(nil, checkpoint.Replicated("x", x)); err != nil || got != step {
				t.Errorf("step %d is saved, and found is %d, %v", step, got, err)
			}
			spmdtest.Must(t, c.Close())
		}
	})
}
