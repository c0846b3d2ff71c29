package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"lockstep/internal/testkit"
)

func batchScript(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("slurm", name))
	testkit.Must(t, err)
	return path
}

// small is the arguments of a run of train whose steps take a few milliseconds at least, so that a
// test can get in between.
func small(steps int) []string {
	return []string{"--device", "host", "--data", "text.txt", "--layers", "2", "--channels", "64",
		"--heads", "2", "--seq", "64",
		"--val-batches", "1", "--sample", "0", "--save-every", "0", "--steps", strconv.Itoa(steps)}
}

// tiny is the arguments of one whose steps take no time.
var tiny = []string{"--device", "host", "--data", "text.txt", "--layers", "1", "--channels", "16",
	"--heads", "2", "--seq", "16", "--sample", "0", "--steps", "8"}

// Each script does its work as it is, on as many ranks as it says.
func TestSlurmScripts(t *testing.T) {
	c := startSlurm(t)
	for _, tc := range []struct {
		script, launcher, json string
		args                   []string
	}{
		{"train.sbatch", "slurm-pmix", "runs/ID.jsonl", tiny},
		{"train-mpirun.sbatch", `openmpi\d`, "runs/ID.jsonl", tiny},
		{"reduce.sbatch", "slurm-pmix", "reduce-ID.jsonl", []string{"--device", "host", "--elements", "100000"}},
		{"matvec.sbatch", "slurm-pmix", "matvec-ID.jsonl",
			[]string{"--device", "host", "--rows", "100", "--cols", "1000"}},
		{"stencil.sbatch", "slurm-pmix", "stencil-ID.jsonl", []string{"--device", "host", "--size", "100x200"}},
	} {
		t.Run(tc.script, func(t *testing.T) {
			j := c.submit(t, c.folder(t), append([]string{batchScript(t, tc.script)}, tc.args...)...)
			j.end(t, "COMPLETED")
			line := regexp.MustCompile(`INF start launcher=` + tc.launcher + ` ranks=8 nodes=2 `)
			if !line.MatchString(j.log(t)) {
				t.Errorf("no start line with launcher=%s nodes=2 ranks=8", tc.launcher)
			}
			all := records(t, filepath.Join(j.dir, strings.Replace(tc.json, "ID", j.id, 1)))
			if len(all) == 0 {
				t.Fatalf("nothing in %s", tc.json)
			}
			r := all[len(all)-1]
			if good := r.OK || r.Summary && r.Steps == 8; !good || r.Ranks != 8 || r.Nodes != 2 ||
				!strings.HasPrefix(tc.script, r.App) {
				t.Errorf("result %+v", r)
			}
		})
	}
	t.Run("sweep.sbatch", func(t *testing.T) {
		j := c.submit(t, c.folder(t), append([]string{batchScript(t, "sweep.sbatch")}, tiny...)...)
		if n := len(j.end(t, "COMPLETED")); n != 4 {
			t.Errorf("%d jobs in the array, want 4", n)
		}
		for i, rate := range []string{"0.0003", "0.001", "0.003", "0.01"} {
			log, err := os.ReadFile(filepath.Join(j.dir, fmt.Sprintf("sweep-%s_%d.out", j.id, i)))
			if err != nil || !strings.Contains(string(log), "INF done") {
				t.Errorf("log %d: %v, want the end of a run in it", i, err)
			}
			all := records(t, filepath.Join(j.dir, "runs", "sweep-"+j.id, "lr-"+rate+".jsonl"))
			if len(all) != 9 || !all[8].Summary {
				t.Fatalf("rate %s: %+v, want 8 steps and a summary", rate, all)
			}
			peak := 0.0
			for _, r := range all {
				peak = max(peak, r.LR)
			}
			if got := strconv.FormatFloat(peak, 'g', 6, 64); got != rate {
				t.Errorf("rate %s: the highest is %s", rate, got)
			}
		}
	})
}

// A stopped run goes on from a checkpoint of the very step, whatever stopped it. Its losses are
// those of an undisturbed run, to the bit.
func TestSlurmRequeue(t *testing.T) {
	c := startSlurm(t)
	submit := func(t *testing.T, name string, steps int) (*submitted, string) {
		j := c.submit(t, c.folder(t), append([]string{"--ntasks-per-node=2", "--gpus-per-node=2", batchScript(t, name)},
			small(steps)...)...)
		return j, filepath.Join(j.dir, "runs", j.id+".jsonl")
	}
	// undisturbed is the output of a run that nothing stops.
	known := map[string][]record{}
	undisturbed := func(t *testing.T, name string, steps int) []record {
		key := fmt.Sprint(name, steps)
		if known[key] == nil {
			j, file := submit(t, name, steps)
			j.end(t, "COMPLETED")
			if known[key] = records(t, file); len(known[key]) != steps+1 {
				t.Fatalf("%d records of a run of %d steps that nothing stopped", len(known[key]), steps)
			}
		}
		return known[key]
	}
	steps := 60
	for _, tc := range []struct {
		name, script string
		stop         []string // the job's number is added
	}{
		{"SIGUSR1 to the ranks", "train.sbatch", []string{"scancel", "--signal=USR1"}},
		{"SIGUSR1 to the script of mpirun", "train-mpirun.sbatch", []string{"scancel", "--signal=USR1", "--batch"}},
		{"scontrol requeue", "train.sbatch", []string{"scontrol", "requeue"}},
		{"a job that goes first", "train.sbatch", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var j *submitted
			var file string
			for ; ; steps *= 2 { // until the run does not end before it is stopped
				j, file = submit(t, tc.script, steps)
				await(t, "third step", func() bool { return len(records(t, file)) >= 3 })
				var said string
				var err error
				if tc.stop == nil {
					c.submit(t, j.dir, "--partition=urgent", "--nodes=2", "--exclusive",
						"--wrap=true").end(t, "COMPLETED")
				} else {
					said, err = c.command(t, c.dir, tc.stop[0], append(tc.stop[1:], j.id)...)
				}
				again := err == nil && j.again(t)
				late := len(records(t, file)) > steps
				if again && !late {
					break
				}
				if !late {
					t.Fatalf("%v: %v\n%s", tc.stop, err, said)
				}
				_, _ = c.command(t, c.dir, "scancel", "--quiet", j.id) // where it is to run again
			}
			stopped := len(records(t, file))
			if saved := checkpoints(t, j); len(saved) != 1 || saved[0] != stopped {
				t.Fatalf("checkpoints after steps %v, want one after %d", saved, stopped)
			}
			j.end(t, "COMPLETED")
			for _, want := range []string{"start 1, on", "start 2, on", "ended early by a signal",
				fmt.Sprintf(" from=runs/%s ", j.id)} {
				if n := strings.Count(j.log(t), want); n != 1 {
					t.Errorf("%q is %d times in the log, want it once", want, n)
				}
			}
			if got, want := records(t, file), undisturbed(t, tc.script, steps); !slices.EqualFunc(got, want, same) {
				t.Errorf("stopped after %d steps, and then other losses than in one go:\n%+v\n%+v", stopped, got, want)
			}
		})
	}
}

// same says whether a step, or a summary, has the same numbers to the bit.
func same(a, b record) bool {
	a.Ms, b.Ms = 0, 0
	return a == b
}

// checkpoints are the numbers of steps after which the job has saved.
func checkpoints(t *testing.T, j *submitted) []int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(j.dir, "runs", j.id, "step-*", "COMPLETE"))
	testkit.Must(t, err)
	var all []int
	for _, f := range files {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(f)), "step-"))
		testkit.Must(t, err)
		all = append(all, n)
	}
	return all
}

// The signal of the script's own --signal comes before the time is up.
func TestSlurmTimeIsUp(t *testing.T) {
	c := startSlurm(t)
	for _, tc := range []struct{ script, signal string }{{"train.sbatch", "USR1@59"},
		{"train-mpirun.sbatch", "B:USR1@59"}} {
		t.Run(tc.script, func(t *testing.T) {
			t.Parallel()
			args := []string{"--time=1", "--signal=" + tc.signal, "--ntasks-per-node=1",
				"--gpus-per-node=1", batchScript(t, tc.script)}
			j := c.submit(t, c.folder(t), append(args, small(1<<30)...)...)
			if !j.again(t) {
				t.Fatal("a run without end has ended")
			}
			if saved := checkpoints(t, j); len(saved) != 1 || saved[0] < 1 {
				t.Errorf("checkpoints after steps %v, want one", saved)
			}
			j.must(t, "scancel", j.id)
			j.end(t, "CANCELLED")
		})
	}
}

// scancel lets a run save, and ends it.
func TestSlurmCancel(t *testing.T) {
	c := startSlurm(t)
	t.Parallel()
	j := c.submit(t, c.folder(t), append([]string{"--ntasks-per-node=1", "--gpus-per-node=1",
		batchScript(t, "train.sbatch")}, small(1<<30)...)...)
	file := filepath.Join(j.dir, "runs", j.id+".jsonl")
	await(t, "third step", func() bool { return len(records(t, file)) >= 3 })
	c.must(t, "scancel", j.id)
	if s := j.end(t, "CANCELLED")[0]; s.restarts != "0" {
		t.Errorf("%+v", s)
	}
	if saved, n := checkpoints(t, j), len(records(t, file)); len(saved) != 1 || saved[0] != n {
		t.Errorf("checkpoints after steps %v, want one after %d", saved, n)
	}
}

// The death of a rank ends the job, and the log names the rank.
func TestSlurmKilledRank(t *testing.T) {
	c := startSlurm(t)
	for _, name := range []string{"train.sbatch", "train-mpirun.sbatch"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := c.submit(t, c.folder(t), append([]string{"--ntasks-per-node=1", "--gpus-per-node=1",
				batchScript(t, name)},
				small(1<<30)...)...)
			file := filepath.Join(j.dir, "runs", j.id+".jsonl")
			await(t, "third step", func() bool { return len(records(t, file)) >= 3 })
			pid := rankOne(t, j.id)
			testkit.Must(t, syscall.Kill(pid, syscall.SIGKILL))
			if s := j.end(t, "FAILED")[0]; s.exit == "0:0" || s.restarts != "0" {
				t.Errorf("%+v", s)
			}
			if want := regexp.MustCompile(fmt.Sprintf(`ERR the rank died: .*host=n2 pid=%d rank=1`,
				pid)); !want.MatchString(j.log(t)) {
				t.Errorf("no %v in the log", want)
			}
		})
	}
}

// rankOne finds the process of rank 1 of a job by its environment.
func rankOne(t *testing.T, id string) int {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*")
	testkit.Must(t, err)
	for _, p := range processes {
		exe, _ := os.Readlink(filepath.Join(p, "exe"))
		if filepath.Base(exe) != "train" {
			continue
		}
		b, _ := os.ReadFile(filepath.Join(p, "environ")) // it may have ended
		env := strings.Split(string(b), "\x00")
		if slices.Contains(env, "SLURM_JOB_ID="+id) && (slices.Contains(env, "PMIX_RANK=1") ||
			slices.Contains(env, "OMPI_COMM_WORLD_RANK=1")) {
			pid, err := strconv.Atoi(filepath.Base(p))
			testkit.Must(t, err)
			return pid
		}
	}
	t.Fatalf("no process is rank 1 of job %s", id)
	return 0
}

// Mistakes of a user, and lacks of a cluster, are said on one line, at once.
func TestSlurmRefused(t *testing.T) {
	c := startSlurm(t)
	noPMIx := "SLURM_CONF=" + withoutPMIx(t, c)
	for _, tc := range []struct {
		script, env string
		empty       bool // the folder has no bin
		want        string
	}{
		{"train.sbatch", noPMIx, false, "no PMIx (srun --mpi=list): submit train-mpirun.sbatch"},
		{"sweep.sbatch", noPMIx, false, "no PMIx (srun --mpi=list): write mpirun"},
		{"reduce.sbatch", noPMIx, false, "no PMIx (srun --mpi=list): write mpirun"},
		{"matvec.sbatch", noPMIx, false, "no PMIx (srun --mpi=list): write mpirun"},
		{"stencil.sbatch", noPMIx, false, "no PMIx (srun --mpi=list): write mpirun"},
		{"train-mpirun.sbatch", "PATH=" + t.TempDir(), false, "mpirun is not in PATH"},
		{"train.sbatch", "", true, "bin/train is missing in "},
		{"train-mpirun.sbatch", "", true, "bin/train is missing in "},
		{"sweep.sbatch", "", true, "bin/train is missing in "},
		{"reduce.sbatch", "", true, "bin/reduce is missing in "},
		{"matvec.sbatch", "", true, "bin/matvec is missing in "},
		{"stencil.sbatch", "", true, "bin/stencil is missing in "},
	} {
		t.Run(tc.script+" "+tc.want, func(t *testing.T) {
			dir := t.TempDir()
			if !tc.empty {
				dir = c.folder(t)
			}
			// Slurm gives a job the SLURM_CONF of its own, so the script runs here.
			other := &slurm{c.dir, c.bin, append(slices.Clone(c.env), tc.env)}
			out, err := other.command(t, dir, "/bin/bash", batchScript(t, tc.script))
			if err == nil || !strings.Contains(out, tc.want) || strings.Count(out, "\n") != 1 {
				t.Errorf("%v, %q, want one line with %q", err, out, tc.want)
			}
		})
	}
}

// withoutPMIx returns a slurm.conf with which srun does not find its plugin for PMIx.
func withoutPMIx(t *testing.T, c *slurm) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^PluginDir\s*= (\S+)`).FindStringSubmatch(c.must(t, "scontrol", "show", "config"))
	if m == nil {
		t.Fatal("no PluginDir in scontrol show config")
	}
	plugins, err := filepath.Glob(filepath.Join(m[1], "*.so"))
	testkit.Must(t, err)
	dir := t.TempDir()
	for _, p := range plugins {
		if strings.HasPrefix(filepath.Base(p), "mpi_pmix") {
			continue
		}
		testkit.Must(t, os.Symlink(p, filepath.Join(dir, filepath.Base(p))))
	}
	b, err := os.ReadFile(filepath.Join(c.dir, "slurm.conf"))
	testkit.Must(t, err)
	conf := filepath.Join(c.dir, "no-pmix.conf")
	testkit.Must(t, os.WriteFile(conf, fmt.Appendf(b, "PluginDir=%s\n", dir), 0o666))
	return conf
}

// Ranks that cannot find each other do not run as so many worlds of one, and do not hang.
func TestSlurmAlone(t *testing.T) {
	c := startSlurm(t)
	dir := c.folder(t)
	for _, tc := range []struct {
		name, command, want string
	}{
		{"srun without MPI", "srun --mpi=none bin/reduce", "OMPI was not built with SLURM's PMI support"},
		{"srun with PMI2", "srun --mpi=pmi2 bin/reduce", "OMPI was not built with SLURM's PMI support"},
		{"no srun", "bin/reduce", "SLURM_NTASKS says 2 tasks, but MPI has a world of 1 in each of them: " +
			"start with srun --mpi=pmix, or with mpirun"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			j := c.submit(t, dir, "--ntasks=2", "--output=alone-%j.out",
				"--wrap="+tc.command+" --device host --elements 1000")
			j.end(t, "FAILED")
			if log := j.log(t); !strings.Contains(log, tc.want) || strings.Contains(log, "INF start") {
				t.Errorf("log without %q, or with a start", tc.want)
			}
		})
	}
}

// Local ranks count from 0 on each node, and ranks see the GPUs of the request.
func TestSlurmPlaces(t *testing.T) {
	c := startSlurm(t)
	self, err := os.Executable()
	testkit.Must(t, err)
	for _, tc := range []struct {
		name, start string
		request     []string
		gpus        int // that a rank sees
	}{
		{"srun", "srun --mpi=pmix", []string{"--gpus-per-node=2"}, 2},
		{"mpirun", "mpirun --bind-to none", []string{"--gpus-per-node=2"}, 2},
		{"a GPU for each task", "srun --mpi=pmix", []string{"--gpus-per-task=1", "--ntasks=4"}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := append([]string{"--nodes=2", "--ntasks-per-node=2", "--output=places-%j.out",
				"--export=ALL," + slurmRankEnv + "=1"}, tc.request...)
			j := c.submit(t, t.TempDir(), append(args, "--wrap="+tc.start+" "+self+" --device host")...)
			j.end(t, "COMPLETED")
			got := ranksIn(t, j.log(t))
			for r := range 4 {
				if want := (slurmPlace{r, r % 2, 2, r / 2, 2, fmt.Sprintf("n%d", r/2+1), got[r].GPUs}); got[r] != want {
					t.Errorf("rank %d: %+v, want %+v", r, got[r], want)
				}
				if n := len(strings.Split(got[r].GPUs, ",")); n != tc.gpus {
					t.Errorf("rank %d sees GPUs %s, want %d", r, got[r].GPUs, tc.gpus)
				}
			}
			if same := got[0].GPUs == got[1].GPUs; same != (tc.gpus == 2) {
				t.Errorf("ranks 0 and 1 see GPUs %s and %s", got[0].GPUs, got[1].GPUs)
			}
		})
	}
}

// launch doctor sees the nodes, and says what to type if srun has started it without PMIx.
func TestSlurmDoctor(t *testing.T) {
	c := startSlurm(t)
	for _, tc := range []struct {
		mpi, want string
		ok        bool
	}{
		{"pmix", `(?m)^3 +n2 +1 +1\b`, true},
		{"none", `FAIL .*srun --mpi=pmix`, false},
	} {
		t.Run(tc.mpi, func(t *testing.T) {
			out, err := c.command(t, c.dir, "srun", "--nodes=2", "--ntasks-per-node=2", "--mpi="+tc.mpi,
				filepath.Join(c.bin, "launch"), "doctor")
			if (err == nil) != tc.ok || !regexp.MustCompile(tc.want).MatchString(out) {
				t.Errorf("%v, want %q in:\n%s", err, tc.want, out)
			}
		})
	}
}
