package checkpoint_test

import (
	"slices"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/spmdtest"
)

// The last checkpoint takes no other's place until the next save, or until the program says that it
// is good.
func TestCheckpointOnTrial(t *testing.T) {
	dir := t.TempDir()
	spmdtest.RunInProcess(t, []int{3}, func(t *testing.T, w *spmd.World) {
		all := bothKinds[float32](t, w, 10, 0)
		c, err := checkpoint.Open(w, dir, checkpoint.Config{Keep: 1, OnTrial: true})
		spmdtest.Must(t, err)
		there := func(want ...string) {
			t.Helper()
			spmdtest.Must(t, c.Wait())
			if got := names(t, dir); !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
			spmdtest.Must(t, spmd.Barrier(w.Comm()))
		}
		c.Proven() // of nothing
		spmdtest.Must(t, c.Save(1, nil, items(all)...))
		there("step-00000001")
		spmdtest.Must(t, c.Save(2, nil, items(all)...))
		there("step-00000001", "step-00000002")
		spmdtest.Must(t, c.Save(3, nil, items(all)...))
		there("step-00000002", "step-00000003")
		c.Proven()
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		there("step-00000003")
		spmdtest.Must(t, c.Close())
	})
}
