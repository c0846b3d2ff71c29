package checkpoint_test

import (
	"errors"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/spmdtest"
)

// A folder of checkpoints that is opened, saved to, read and closed leaves nothing.
func TestNothingIsLeft(t *testing.T) {
	dir := t.TempDir()
	rounds := testkit.Few(t, "folders", 20, 1000)
	spmdtest.RunInProcess(t, []int{3}, func(t *testing.T, w *spmd.World) {
		x := checkpoint.Replicated("x", spmdtest.Alloc[float32](t, w, 5))
		step := 0
		spmdtest.NothingIsLeft(t, w, rounds, func() error {
			c, err := checkpoint.Open(w, dir, checkpoint.Config{Keep: 1})
			if err != nil {
				return err
			}
			step++
			err = errors.Join(c.Save(step, nil, x), c.Wait())
			_, missing := c.Load(nil, x)
			return errors.Join(err, missing, c.Close())
		})
	})
}
