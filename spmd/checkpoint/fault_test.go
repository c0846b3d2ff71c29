package checkpoint_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rs/zerolog"

	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/internal/job"
	"lockstep/spmd/spmdtest"
)

// fault has fn called before every change of checkpoints on disk.
func fault(t *testing.T, fn func(op, path string) error) {
	job.FileFault = fn
	t.Cleanup(func() { job.FileFault = nil })
}

var errFault = errors.New("injected")

// Every change on disk fails in turn: alone, as on a full disk, and together with all later ones,
// which leaves the same as a crash.
func TestCheckpointFaults(t *testing.T) {
	mpirun.Job(t)
	dir := sharedDir(t)
	every := int64(4) // of the changes
	if testkit.More(t, 3, "quarters of the changes on disk that fail"); testkit.AllCases() {
		every = 1
	}
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		all := bothKinds[float32](t, w, 11, 0)
		*w.Log() = zerolog.Nop()
		for _, crash := range []bool{false, true} {
			for _, again := range []bool{false, true} { // the step that is there already
				for victim := 0; victim < w.Size(); victim += max(1, w.Size()-1) {
					stride := int64(1)
					if victim == 0 && w.Size() > 1 {
						stride = 3 // rank 0 alone goes through all
					}
					stride *= every
					for k := stride; ; k += stride {
						dir := filepath.Join(dir, fmt.Sprint(w.Size(), crash, again, victim, k))
						c := open(t, w, dir, 1)
						setAll(t, all, 1)
						spmdtest.Must(t, c.Save(10, "first", items(all)...))
						spmdtest.Must(t, c.Wait())
						second := 20
						if again {
							second = 10
						}
						var n atomic.Int64
						fault(t, func(op, path string) error {
							if i := n.Add(1); i == k || crash && i > k {
								return fmt.Errorf("%w: %w", errFault, syscall.ENOSPC)
							}
							return nil
						})
						if w.Rank() != victim {
							job.FileFault = nil
						}
						setAll(t, all, 2)
						spmdtest.Must(t, c.Save(second, "second", items(all)...))
						err := c.Wait()
						job.FileFault = nil
						hit := int64(0)
						if w.Rank() == victim && n.Load() >= k {
							hit = 1
						}
						if err != nil && (!strings.Contains(err.Error(), "no space left") ||
							!strings.Contains(err.Error(), dir)) {
							t.Fatalf("change %d: %v", k, err)
						}
						if crash { // a new program
							c = open(t, w, dir, 1)
						} else if err != nil && w.Rank() == 0 {
							for _, name := range names(t, dir) {
								if strings.Contains(name, "tmp") || strings.Contains(name, "old") {
									t.Fatalf("change %d: %s is left", k, name)
								}
							}
						}
						setAll(t, all, 0)
						var meta string
						step, loadErr := c.Load(&meta, items(all)...)
						spmdtest.Must(t, loadErr)
						switch {
						case meta == "second" && step == second:
							checkAll(t, all, 2)
						case meta == "first" && step == 10 && err != nil:
							checkAll(t, all, 1)
						default:
							t.Fatalf("change %d: after %v step %d is loaded, %s", k, err, step, meta)
						}
						// The next save goes through, and cleans up.
						setAll(t, all, 3)
						spmdtest.Must(t, c.Save(30, "third", items(all)...))
						spmdtest.Must(t, c.Wait())
						if got := names(t, dir); !slices.Equal(got, []string{"step-00000030"}) {
							t.Fatalf("change %d: %v is left", k, got)
						}
						spmdtest.Must(t, c.Close())
						if total := reduce(t, w, hit); total == 0 {
							if k < 8 {
								t.Fatalf("only %d changes on disk", k-1)
							}
							break
						}
					}
				}
			}
		}
	})
}

// TestCheckpointFolderGone takes the folder away, and brings it back.
func TestCheckpointFolderGone(t *testing.T) {
	dir := sharedDir(t)
	spmdtest.Run(t, []int{1, 2}, func(t *testing.T, w *spmd.World) {
		dir := filepath.Join(dir, strconv.Itoa(w.Size()))
		c := open(t, w, dir, 0)
		all := bothKinds[float32](t, w, 11, 0)
		setAll(t, all, 1)
		spmdtest.Must(t, c.Save(1, nil, items(all)...))
		spmdtest.Must(t, c.Wait())
		move := func(from, to string) {
			spmdtest.Must(t, spmd.Barrier(w.Comm()))
			if w.Rank() == 0 {
				spmdtest.Must(t, os.Rename(from, to))
			}
			spmdtest.Must(t, spmd.Barrier(w.Comm()))
		}
		move(dir, dir+".away")
		spmdtest.Must(t, c.Save(2, nil, items(all)...))
		if err := c.Save(3, nil, items(all)...); err == nil || !strings.Contains(err.Error(), "step 2 is not saved") ||
			!strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "no such file") {
			t.Fatalf("without the folder: %v", err)
		}
		move(dir+".away", dir)
		step, err := c.Load(nil, items(all)...)
		spmdtest.Must(t, err)
		if step != 1 {
			t.Fatalf("loaded step %d", step)
		}
		spmdtest.Must(t, c.Save(3, nil, items(all)...))
		spmdtest.Must(t, c.Wait())
	})
}

// The test fills a real file system or, if that may not be mounted, reaches the limit of a file's
// size.
func TestCheckpointDiskFull(t *testing.T) {
	dir := sharedDir(t)
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		cause := "no space left on device"
		if err := syscall.Mount("checkpoints", dir, "tmpfs", 0, "size=256k"); err == nil {
			defer func() { spmdtest.Must(t, syscall.Unmount(dir, 0)) }()
		} else {
			cause = "file too large"
			var old syscall.Rlimit
			spmdtest.Must(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old))
			spmdtest.Must(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 150 << 10, Max: old.Max}))
			defer func() { spmdtest.Must(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old)) }()
		}
		c := open(t, w, dir, 0)
		small, large := arrayOf[uint8](t, w, "x", 10<<10, 0, 10<<10, true),
			arrayOf[uint8](t, w, "x", 300<<10, 0, 300<<10, true)
		spmdtest.Must(t, small.set(1))
		spmdtest.Must(t, c.Save(1, nil, small.item))
		spmdtest.Must(t, c.Wait())
		for range 3 {
			spmdtest.Must(t, c.Save(2, nil, large.item))
			if err := c.Wait(); err == nil || !strings.Contains(err.Error(), cause) ||
				!strings.Contains(err.Error(), "shard-00000-of-00001") {
				t.Fatalf("on a full disk: %v", err)
			}
			if got := names(t, dir); !slices.Equal(got, []string{"step-00000001"}) {
				t.Fatalf("%v is left", got)
			}
			spmdtest.Must(t, small.set(0))
			_, err := c.Load(nil, small.item)
			spmdtest.Must(t, err)
			spmdtest.Must(t, small.check(1))
		}
		spmdtest.Must(t, small.set(2))
		spmdtest.Must(t, c.Save(2, nil, small.item))
		spmdtest.Must(t, c.Wait())
		spmdtest.Must(t, c.Close())
	})
}

// crashEnv makes TestCheckpointCrash the program that crashes: "rank:number" of changes on disk
// before it does.
const crashEnv = "SPMD_TEST_CRASH"

// A program ends at random moments of saving and starts again, LOCKSTEP_FAULTS times over. No step
// is lost that Wait saw complete.
func TestCheckpointCrash(t *testing.T) {
	mpirun.Job(t)
	if plan := os.Getenv(crashEnv); plan != "" {
		crashing(t, plan)
		return
	}
	spmdtest.HostOnly(t, "what is on disk does not depend on the device")
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(7, 7))
	crashes := 0
	runs := 6
	if n, err := strconv.Atoi(os.Getenv("LOCKSTEP_FAULTS")); err == nil {
		runs = n
	}
	for range runs {
		ranks := 1 + rng.IntN(3)
		if most, err := strconv.Atoi(os.Getenv("SPMDTEST_RANKS")); err == nil {
			ranks = min(ranks, most)
		}
		plan := fmt.Sprintf("%d:%d", rng.IntN(ranks), 1+rng.IntN(60))
		var out string
		var err error
		crashed := false
		mpirun.Again(t, func() (own string) {
			cmd := mpirun.Command(mpirun.Patience(t), ranks, os.Args[0], "-test.run=^TestCheckpointCrash$",
				"-test.count=1")
			cmd.Env = append(cmd.Env, checkpointDir+"="+dir, crashEnv+"="+plan)
			out, own, err = mpirun.Output(cmd)
			if crashed = cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == crashStatus; crashed {
				own = ""
			}
			return own
		})
		if crashed {
			crashes++
		} else if err != nil {
			t.Fatalf("%d ranks, %s: %v\n%s", ranks, plan, err, out)
		}
	}
	if crashes < runs/2 {
		t.Errorf("only %d crashes in %d runs", crashes, runs)
	}
}

const crashStatus = 87

func crashing(t *testing.T, plan string) {
	dir := os.Getenv(checkpointDir)
	var victim int
	var left atomic.Int64
	_, at, _ := strings.Cut(plan, ":")
	if _, err := fmt.Sscanf(plan, "%d", &victim); err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(at)
	spmdtest.Must(t, err)
	left.Store(int64(n))
	w, err := spmd.Open(spmdtest.Config())
	spmdtest.Must(t, err)
	defer func() { // whatever ends the test ends the job
		if t.Failed() {
			w.Abort(1)
		}
	}()
	*w.Log() = zerolog.Nop()
	c := open(t, w, filepath.Join(dir, "checkpoints"), 2)
	all := bothKinds[float32](t, w, 1000, 0)
	var known int // complete, as Wait said
	file := filepath.Join(dir, "known")
	if b, err := os.ReadFile(file); err == nil {
		spmdtest.Must(t, json.Unmarshal(b, &known))
	}
	step, err := c.Load(nil, items(all)...)
	if err == nil {
		checkAll(t, all, step)
	} else if !errors.Is(err, checkpoint.ErrNotFound) {
		t.Fatal(err)
	}
	if step < known {
		t.Fatalf("step %d was complete, and step %d is loaded", known, step)
	}
	spmdtest.Must(t, spmd.Barrier(w.Comm()))
	if w.Rank() == victim {
		fault(t, func(op, path string) error {
			if left.Add(-1) == 0 {
				os.Exit(crashStatus)
			}
			return nil
		})
	}
	for i := range 4 {
		step++
		setAll(t, all, step)
		spmdtest.Must(t, c.Save(step, nil, items(all)...))
		spmdtest.Must(t, c.Wait())
		if w.Rank() == 0 {
			b, err := json.Marshal(step)
			spmdtest.Must(t, err)
			spmdtest.Must(t, os.WriteFile(file+".new", b, 0o666))
			spmdtest.Must(t, os.Rename(file+".new", file))
		}
		if i == 2 {
			spmdtest.Must(t, c.Save(step, nil, items(all)...)) // the same once more
		}
	}
	spmdtest.Must(t, c.Close())
	spmdtest.Must(t, w.Close())
}
