package checkpoint_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/spmdtest"
)

// A link to a checkpoint is loaded, as after a move to another disk. Its target stays, whatever
// becomes of the link.
func TestCheckpointLinks(t *testing.T) {
	dir := t.TempDir()
	far := t.TempDir()
	spmdtest.RunInProcess(t, []int{3}, func(t *testing.T, w *spmd.World) {
		all := bothKinds[float32](t, w, 10, 0)
		c := open(t, w, dir, 2)
		for step := 1; step <= 2; step++ {
			setAll(t, all, step)
			spmdtest.Must(t, c.Save(step, nil, items(all)...))
		}
		spmdtest.Must(t, c.Wait())
		if w.Rank() == 0 {
			spmdtest.Must(t, os.Rename(filepath.Join(dir, "step-00000002"), filepath.Join(far, "moved")))
			spmdtest.Must(t, os.Symlink(filepath.Join(far, "moved"), filepath.Join(dir, "step-00000002")))
		}
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		setAll(t, all, 0)
		step, err := c.Load(nil, items(all)...)
		if err != nil || step != 2 {
			t.Fatalf("step %d, %v", step, err)
		}
		checkAll(t, all, 2)
		for _, save := range []struct {
			step int
			want []string
		}{{2, []string{"step-00000001", "step-00000002"}}, {3, []string{"step-00000002", "step-00000003"}}} {
			spmdtest.Must(t, c.Save(save.step, nil, items(all)...))
			spmdtest.Must(t, c.Wait())
			if got := names(t, dir); !slices.Equal(got, save.want) {
				t.Errorf("%v, want %v", got, save.want)
			}
		}
		if _, err := os.Stat(filepath.Join(far, "moved", "COMPLETE")); err != nil {
			t.Error(err)
		}
		spmdtest.Must(t, c.Close())
	})
}

// An entry that looks like a checkpoint, and cannot be used, is named. No program begins anew
// beside it.
func TestCheckpointAside(t *testing.T) {
	for name, make := range map[string]func(dir string) error{
		"a link that leads nowhere": func(dir string) error {
			return os.Symlink(filepath.Join(dir, "not mounted"), filepath.Join(dir, "step-00000007"))
		},
		"a link to a folder that is empty": func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "disk"), 0o777),
				os.Symlink("disk", filepath.Join(dir, "step-00000007")))
		},
		"a link to a file": func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "disk"), nil, 0o666),
				os.Symlink("disk", filepath.Join(dir, "step-00000007")))
		},
		"another name": func(dir string) error {
			return os.Rename(filepath.Join(dir, "step-00000002"), filepath.Join(dir, "step-00000002.keep"))
		},
		"fewer digits": func(dir string) error {
			return os.Rename(filepath.Join(dir, "step-00000002"), filepath.Join(dir, "step-2"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			spmdtest.RunInProcess(t, []int{3}, func(t *testing.T, w *spmd.World) {
				all := bothKinds[float32](t, w, 10, 0)
				c := open(t, w, dir, 1)
				for step := 1; step <= 2; step++ {
					setAll(t, all, step)
					spmdtest.Must(t, c.Save(step, nil, items(all)...))
				}
				spmdtest.Must(t, c.Wait())
				aside := ""
				if w.Rank() == 0 {
					spmdtest.Must(t, make(dir))
					var err error
					aside, err = asideIn(dir)
					spmdtest.Must(t, err)
					spmdtest.Must(t, os.RemoveAll(filepath.Join(dir, "step-00000002")))
				}
				spmdtest.Must(t, spmd.Barrier(w.Comm()))
				aside, err := hostdata.Broadcast(w.Comm(), aside, 0)
				spmdtest.Must(t, err)
				var log bytes.Buffer
				*w.Log() = zerolog.New(&log)
				if _, err := c.Load(nil, items(all)...); err == nil || errors.Is(err, checkpoint.ErrNotFound) ||
					!strings.Contains(err.Error(), aside) {
					t.Errorf("%v; want one that names %s", err, aside)
				}
				// Beside a good one it is left out, and neither counted nor removed.
				for step := 8; step <= 9; step++ {
					spmdtest.Must(t, c.Save(step, nil, items(all)...))
				}
				log.Reset()
				if step, err := c.Load(nil, items(all)...); err != nil || step != 9 {
					t.Errorf("step %d, %v", step, err)
				}
				if w.Rank() == 0 {
					if !strings.Contains(log.String(), aside) {
						t.Errorf("no warning names %s: %s", aside, &log)
					}
					if _, err := os.Lstat(filepath.Join(dir, aside)); err != nil {
						t.Error(err)
					}
				}
				spmdtest.Must(t, c.Close())
			})
		})
	}
}

// asideIn returns the entries of a folder beside the checkpoints of steps 1 and 2.
func asideIn(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	i := slices.IndexFunc(entries, func(e fs.DirEntry) bool {
		return strings.HasPrefix(e.Name(), "step-") && e.Name() != "step-00000001" && e.Name() != "step-00000002"
	})
	if err != nil || i < 0 {
		return "", errors.Join(err, errors.New("nothing"))
	}
	return entries[i].Name(), nil
}
