package checkpoint_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/spmdtest"
)

// once calls a function at the first write.
type once struct{ do func() }

func (o *once) Write(p []byte) (int, error) {
	if o.do != nil {
		o.do()
		o.do = nil
	}
	return len(p), nil
}

// Load looks again if a checkpoint goes after Load has found its name, because a run saves there.
func TestLoadBesideSaves(t *testing.T) {
	dir, far := t.TempDir(), t.TempDir()
	at := func(parent string, step string) string { return filepath.Join(parent, "step-0000000"+step) }
	spmdtest.RunInProcess(t, []int{3}, func(t *testing.T, w *spmd.World) {
		all := bothKinds[float32](t, w, 10, 0)
		c := open(t, w, dir, 3)
		for step := 1; step <= 3; step++ {
			setAll(t, all, step)
			spmdtest.Must(t, c.Save(step, nil, items(all)...))
		}
		spmdtest.Must(t, c.Wait())
		if w.Rank() == 0 {
			spmdtest.Must(t, os.Rename(at(dir, "3"), at(far, "3")))
			spmdtest.Must(t, os.WriteFile(filepath.Join(at(dir, "2"), "index.json"), []byte("damaged"), 0o666))
			// While the warning about 2 is written, 1 goes, which is next, and 3 comes.
			*w.Log() = zerolog.New(&once{func() {
				spmdtest.Must(t, os.Rename(at(dir, "1"), at(far, "1")))
				spmdtest.Must(t, os.Rename(at(far, "3"), at(dir, "3")))
			}})
		}
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		setAll(t, all, 0)
		r, err := checkpoint.Open(w, dir, checkpoint.Config{ReadOnly: true})
		spmdtest.Must(t, err)
		if step, err := r.Load(nil, items(all)...); err != nil || step != 3 {
			t.Errorf("step %d, %v; want 3", step, err)
		} else {
			checkAll(t, all, 3)
		}
		// A checkpoint that goes and leaves nothing was not damaged: there is none.
		if w.Rank() == 0 {
			spmdtest.Must(t, os.RemoveAll(at(dir, "2")))
			spmdtest.Must(t, os.WriteFile(filepath.Join(at(dir, "3"), "shard-00000-of-00003.safetensors"), nil, 0o666))
			*w.Log() = zerolog.New(&once{func() { spmdtest.Must(t, os.RemoveAll(at(dir, "3"))) }})
		}
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		if _, err := r.Load(nil, items(all)...); !errors.Is(err, checkpoint.ErrNotFound) {
			t.Error(err)
		}
		spmdtest.Must(t, r.Close())
		spmdtest.Must(t, c.Close())
	})
}
