package spmd_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/internal/job"
)

// doors are the calls in which the framework has the ranks wait for each other. All ranks do before
// first.
var doors = []struct {
	name, said string
	before     func(w *spmd.World) (any, error)
	call       func(w *spmd.World, a any) error
}{
	{"Split", `call 2 on "world", Split`, nil,
		func(w *spmd.World, _ any) error { _, err := w.Comm().Split(0, 0); return err }},
	{"AllocSymmetric", "\nAllocSymmetric at ", nil,
		func(w *spmd.World, _ any) error { _, err := spmd.AllocSymmetric[int32](w, 5); return err }},
	{"checkpoint.Open", "\ncheckpoint.Open at ", nil,
		func(w *spmd.World, _ any) error { _, err := openCheckpoints(w); return err }},
	{"Save", "\nSave at ", opened, func(w *spmd.World, c any) error { return c.(*checkpoint.Manager).Save(1, nil) }},
	{"Wait", "\nWait for a save at ", saved,
		func(w *spmd.World, c any) error { return c.(*checkpoint.Manager).Wait() }},
	{"Load", "\nLoad at ", opened, func(w *spmd.World, c any) error {
		_, err := c.(*checkpoint.Manager).Load(nil)
		return err
	}},
}

func opened(w *spmd.World) (any, error) { return openCheckpoints(w) }

func saved(w *spmd.World) (any, error) {
	c, err := openCheckpoints(w)
	if err != nil {
		return nil, err
	}
	return c, c.Save(1, nil)
}

// doorRows are the faults of a rank that is asleep, or stopped, while the others are in one of
// these calls; and of file systems that are slow, or do not answer.
func doorRows() []mishap {
	hang := faultTimeout + 5*time.Second
	var rows []mishap
	for _, d := range doors {
		for _, stops := range []bool{false, true} {
			if stops && d.name != "Split" && d.name != "Save" {
				continue
			}
			row := mishap{name: "asleep before " + d.name, local: !stops, ranks: 3, within: hang,
				args: hangFlag, cause: hung,
				want: []string{missing, d.said, ": ranks 0-1 in it; ", "[sleep]", "spmd_test.oversleep",
					"lockstep/spmd_test.doorRows."}}
			if stops {
				row.name = "stopped before " + d.name
				row.want = []string{missing, d.said, "does not answer; its process is T (stopped)"}
			}
			row.run = func(_ context.Context, w *spmd.World, victim bool) error {
				var a any
				var err error
				if d.before != nil {
					if a, err = d.before(w); err != nil {
						return err
					}
				}
				if victim {
					happens()
					if stops {
						_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
					}
					oversleep()
				}
				return d.call(w, a)
			}
			row.more = stops != (d.name == "Save")
			rows = append(rows, row)
		}
	}
	const shard = "shard-00002-of-00003.safetensors.part"
	return append(rows,
		mishap{name: "a sync that never returns", ranks: 3, within: 3*time.Second + hang, args: hangFlag,
			run:   savesWith(3*time.Second, (*checkpoint.Manager).Wait, func() { select {} }),
			cause: " has not ended in 3s", want: []string{"sync of ", shard + " has not ended in 3s",
				"the checkpoint of step 1 is not saved"}},
		mishap{name: "a sync that never returns before Close", more: true, ranks: 3,
			within: 3*time.Second + hang, args: hangFlag,
			run:   savesWith(3*time.Second, (*checkpoint.Manager).Close, func() { select {} }),
			cause: " has not ended in 3s", want: []string{"sync of ", shard + " has not ended in 3s"}},
		mishap{name: "a sync that is slow", ranks: 3, within: 3*faultTimeout + hang, args: hangFlag, clean: true,
			run:   savesWith(time.Minute, (*checkpoint.Manager).Wait, func() { time.Sleep(3 * faultTimeout) }),
			cause: "is saved"},
		mishap{name: "reading that is slow", ranks: 3, within: 5*faultTimeout + hang, args: hangFlag,
			clean: true, run: loadsSlowly, cause: "is loaded"},
		mishap{name: "a sync that is slow before Close", more: true, ranks: 3, within: 3*faultTimeout + hang,
			args: hangFlag, clean: true,
			run:   savesWith(time.Minute, (*checkpoint.Manager).Close, func() { time.Sleep(3 * faultTimeout) }),
			cause: "is saved"},
	)
}

// savesWith saves and waits for it. The file system's sync takes as long on the victim as act does.
func savesWith(
	limit time.Duration, wait func(*checkpoint.Manager) error, act func(),
) func(context.Context, *spmd.World, bool) error {
	return func(_ context.Context, w *spmd.World, victim bool) error {
		c, err := checkpoint.Open(w, filepath.Join(os.Getenv(faultEnv), "checkpoints"),
			checkpoint.Config{Timeout: limit})
		if err != nil {
			return err
		}
		if victim {
			job.FileFault = func(op, path string) error {
				if op == "sync" && strings.HasSuffix(path, ".safetensors.part") {
					happens()
					act()
				}
				return nil
			}
		}
		err = c.Save(1, nil)
		if err := errors.Join(err, wait(c)); err != nil {
			return err
		}
		w.Log().Info().Msg("is saved")
		return nil
	}
}

// loadsSlowly makes the victim's file system take longer for many reads than a collective may. Each
// read is soon over.
func loadsSlowly(_ context.Context, w *spmd.World, victim bool) error {
	c, err := openCheckpoints(w)
	if err != nil {
		return err
	}
	x, err := spmd.Alloc[float32](w, 8<<20)
	if err != nil {
		return err
	}
	item := checkpoint.Replicated("x", x)
	if err := errors.Join(c.Save(1, nil, item), c.Wait()); err != nil {
		return err
	}
	if victim {
		happens()
		job.FileFault = func(op, _ string) error {
			if op == "read" {
				time.Sleep(faultTimeout / 2)
			}
			return nil
		}
	}
	if _, err := c.Load(nil, item); err != nil {
		return err
	}
	w.Log().Info().Msg("is loaded")
	return nil
}
