package main

import (
	"fmt"
	rand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/apps/train/traintest"
	"lockstep/internal/testkit"
	"lockstep/spmd/spmdtest"
)

// stepDir returns the folder of a checkpoint.
func stepDir(dir string, steps int) string {
	return filepath.Join(dir, fmt.Sprintf("step-%08d", steps))
}

// only returns a folder with those checkpoints of dir that were saved after the given steps.
func only(t *testing.T, dir string, steps ...int) string {
	t.Helper()
	to := t.TempDir()
	for _, n := range steps {
		spmdtest.Must(t, os.CopyFS(stepDir(to, n), os.DirFS(stepDir(dir, n))))
	}
	return to
}

// A run resumes on the same number of ranks, or another. Its losses are those of an uninterrupted
// run, with the same bits on the same number of ranks.
func TestResume(t *testing.T) {
	besideOthers(t)
	type resumption struct {
		dtype string
		ranks []int
		bound float64
	}
	cases := []resumption{{"float32", []int{2, 3}, 1e-4}, {"float32", []int{1, 2, 3}, 1e-4},
		{"bfloat16", []int{2, 3}, 1e-3}}
	if testkit.AllCases() {
		cases = cases[1:] // which have the first
	}
	for _, tc := range testkit.Some(t, "types and numbers of ranks that resume", cases,
		func(c resumption) bool { return len(c.ranks) == 2 && c.dtype == "float32" }) {
		args := smallRun(t, 12, "--dtype", tc.dtype, "--val-every", "4")
		for _, n := range tc.ranks {
			t.Run(fmt.Sprintf("%s, %d ranks", tc.dtype, n), func(t *testing.T) {
				spmdtest.Ranks(t, n)
				dir := filepath.Join(t.TempDir(), "new", "folder")
				want, _ := finishQuickly(t, n, append(args, "--checkpoint", dir, "--save-every", "5", "--keep", "9")...)
				plain, _ := finishQuickly(t, n, args...)
				compareRuns(t, want, plain, 0, 0) // saving changes nothing
				for _, m := range tc.ranks {
					t.Run(fmt.Sprintf("%d ranks", m), func(t *testing.T) {
						bound := tc.bound
						if m == n {
							bound = 0
						}
						got, log := finishQuickly(t, m,
							append(args, "--checkpoint", only(t, dir, 5), "--resume", "must")...)
						compareRuns(t, got, want, 5, bound)
						if !strings.Contains(log, "resumed") {
							t.Errorf("the log does not say so:\n%s", log)
						}
					})
				}
				if spmdtest.Device() != "host" {
					got, _ := finishQuickly(t, n, append(args, "--device", "host", "--checkpoint", only(t, dir, 5))...)
					compareRuns(t, got, want, 5, 2e-3)
				}
			})
		}
	}
}

// A complete run does nothing more. A resumed run takes other settings with a warning, or refuses
// them if it could not go on.
func TestResumeSettings(t *testing.T) {
	besideOthers(t)
	spmdtest.HostOnly(t, "no device plays a part")
	dir := t.TempDir()
	args := smallRun(t, 4, "--checkpoint", dir, "--save-every", "2", "--val-batches", "1")
	want, log := finishQuickly(t, 2, append(args, "--audit", "1")...)
	if strings.Contains(log, "resumed") {
		t.Errorf("a new run says that it is resumed:\n%s", log)
	}
	again, _ := finishQuickly(t, 1, args...)
	compareRuns(t, again, want, 4, 0)

	// The sequences go on where they were, with more and smaller steps.
	got, log := finishQuickly(t, 1,
		append(args, "--steps", "6", "--global-batch", "3", "--lr", "1e-4", "--checkpoint", only(t, dir, 4))...)
	for _, want := range []string{
		"--global-batch from 5 to 3", "--steps from 4 to 6", "--lr from 0.003 to 0.0001", "sequences=20",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("no %q in the log:\n%s", want, log)
		}
	}
	if len(got.steps) != 2 || got.steps[1].Tokens != (4*5+2*3)*16 || got.summary.LossFirst != want.summary.LossFirst {
		t.Errorf("steps %+v, summary %+v", got.steps, got.summary)
	}

	// Without --global-batch the run keeps its own, also on another number of ranks.
	for i, a := range args {
		if a == "--global-batch" {
			args = slices.Delete(args, i, i+2)
			break
		}
	}
	got, _ = finishQuickly(t, 3, append(args, "--checkpoint", only(t, dir, 2))...)
	compareRuns(t, got, want, 2, 1e-4)

	typo := filepath.Join(t.TempDir(), "typo")
	other := traintest.Write(t, t.TempDir(), "other.txt", strings.Repeat("other text ", 600))
	for _, tc := range []struct {
		ranks int
		args  []string
		wants []string
	}{
		{0, []string{"--resume", "never"}, []string{"--resume never", dir, "4 steps"}},
		{2, []string{"--resume", "must", "--checkpoint", t.TempDir()}, []string{"--resume must", "no checkpoint"}},
		{2, []string{"--resume", "must", "--checkpoint", typo}, []string{"--resume must: no checkpoint in " + typo}},
		{0, []string{"--layers", "2"}, []string{`--layers is "2"`, `"1"`}},
		{3, []string{"--seed", "7"}, []string{`--seed is "7"`, `"42"`}},
		{0, []string{"--seq", "8"}, []string{`--seq is "8"`, `"16"`}},
		{0, []string{"--tokens", "gpt2"}, []string{`--tokens is "gpt2`, "bytes"}},
		{2, []string{"--data", other}, []string{"the hash of --data"}},
		{6, nil, []string{"--global-batch 5", "6 replicas"}},
		{0, []string{"--checkpoint", filepath.Join(other, "folder")}, []string{"other.txt"}},
	} {
		p := quickly(t, tc.ranks, append(args, tc.args...)...)
		lines := ours(p.Stderr)
		if p.Status != 2 || len(lines) != 1 {
			t.Errorf("%v on %d ranks: status %d, stderr:\n%s", tc.args, tc.ranks, p.Status, p.Stderr)
			continue
		}
		for _, want := range tc.wants {
			if !strings.Contains(lines[0], want) {
				t.Errorf("%v on %d ranks: %q, want %q in it", tc.args, tc.ranks, lines[0], want)
			}
		}
	}
	if _, err := os.Stat(typo); err == nil {
		t.Error("--resume must has made a folder")
	}
}

// If the newest checkpoint is damaged, the run resumes from the one before, and
// the warning names the file.
func TestResumeDamaged(t *testing.T) {
	besideOthers(t)
	spmdtest.HostOnly(t, "what is on disk does not depend on the device")
	dir := t.TempDir()
	args := smallRun(t, 6, "--checkpoint", dir, "--save-every", "2")
	want, _ := finishQuickly(t, 2, args...)
	shards, err := filepath.Glob(filepath.Join(stepDir(dir, 6), "shard-*"))
	if err != nil || len(shards) != 2 {
		t.Fatalf("files %v of a checkpoint (%v), want 2", shards, err)
	}
	for i, file := range []string{shards[1], filepath.Join(stepDir(dir, 4), "COMPLETE")} {
		b, err := os.ReadFile(file)
		spmdtest.Must(t, err)
		b[len(b)-1] ^= 1
		spmdtest.Must(t, os.WriteFile(file, b, 0o666))
		after := 4 - 2*i
		got, log := finishQuickly(t, 2, append(args, "--checkpoint", only(t, dir, 2, 4, 6))...)
		compareRuns(t, got, want, after, 0)
		if rel, _ := filepath.Rel(dir, file); !strings.Contains(log, rel) {
			t.Errorf("no warning names %s:\n%s", rel, log)
		}
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A file in the way makes a save fail. This ends the run if the save is the first or the last one.
// Earlier checkpoints stay whole.
func TestSaveFails(t *testing.T) {
	besideOthers(t)
	spmdtest.HostOnly(t, "what is on disk does not depend on the device")
	const steps = 10
	args := smallRun(t, steps, "--val-batches", "1", "--save-every", "2")
	want, _ := finish(t, 2, args[:len(args)-2]...)
	for _, tc := range []struct {
		failing, steps, saved int // the save that fails, the end, and what is there then
		ok                    bool
	}{{2, 4, 0, false}, {6, steps, 10, true}, {steps, steps, 8, false}} {
		dir := t.TempDir()
		block := traintest.Write(t, dir, filepath.Base(stepDir(dir, tc.failing)), "in the way")
		args := append(args, "--checkpoint", dir)
		j := begin(t, 2, nil, args...)
		status, log := j.end(t), j.stderr.String()
		if len(j.steps) != tc.steps || (j.summary != nil) != (tc.steps == steps) || status != b2i(!tc.ok) ||
			!strings.Contains(log, block) || tc.ok != strings.Contains(log, "the run goes on") {
			t.Errorf("the save of step %d fails: status %d, %d steps, summary %v, stderr:\n%s",
				tc.failing, status, len(j.steps), j.summary, log)
		}
		spmdtest.Must(t, os.Remove(block))
		got, _ := finish(t, 2, args...)
		compareRuns(t, got, want, tc.saved, 0)
	}
}

// One rank or all are killed again and again, at random moments. Every start resumes from a
// checkpoint that is recent enough, and all losses are those of an undisturbed run.
// LOCKSTEP_FAULTS is the number of kills.
func TestKilled(t *testing.T) {
	besideOthers(t)
	const ranks, steps, every = 3, 60, 2
	spmdtest.Ranks(t, ranks)
	kills := 10
	if spmdtest.Device() != "host" {
		kills = 4 // a start takes seconds
	}
	kills = faults(t, "kills at random", min(3, kills), kills)
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	args := smallRun(t, steps, "--val-batches", "1", "--val-every", "7")
	want, _ := finish(t, ranks, args...)
	for killed := 0; killed < kills; {
		dir := t.TempDir()
		kept := 0 // steps of a checkpoint that must be whole
		for done := false; !done && killed < kills; {
			// Open MPI ends the other ranks after twice this many seconds.
			grace := fmt.Sprintf("OMPI_MCA_odls_base_sigkill_timeout=%d", b2i(rng.IntN(5) == 0))
			j := begin(t, ranks, []string{grace},
				append(args, "--checkpoint", dir, "--save-every", strconv.Itoa(every))...)
			lines := rng.IntN(13)
			delay := rng.Int64N(int64(20 * time.Millisecond))
			if lines == 0 { // before the first step
				delay = rng.Int64N(int64(600 * time.Millisecond))
			}
			j.read(t, lines)
			<-time.After(time.Duration(delay))
			victims := j.ranks(t)
			if one := rng.IntN(ranks + 1); one < len(victims) {
				victims = victims[one : one+1]
			}
			for _, pid := range victims {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
					t.Fatal(err)
				}
			}
			done = j.end(t) == 0
			if !done {
				killed++
			}
			for i, s := range j.steps {
				if i == 0 && s.Step <= kept {
					t.Fatalf("seed %d: went on with step %d, and the checkpoint after %d steps was complete\n%s",
						seed, s.Step, kept, &j.stderr)
				}
				if i > 0 && s.Step != j.steps[i-1].Step+1 {
					t.Fatalf("seed %d: step %d after step %d", seed, s.Step, j.steps[i-1].Step)
				}
				compareSteps(t, s, want.steps[s.Step-1], 0)
				// The save before this step had begun. It began after the
				// save before it was on the disk.
				kept = max(kept, (s.Step-1)/every*every-every)
			}
			if done && (j.summary == nil || j.summary.LossLast != want.summary.LossLast) {
				t.Fatalf("seed %d: summary %+v, want %+v", seed, j.summary, want.summary)
			}
		}
	}
}

// After a signal to mpirun or to one rank all ranks end after the same step. They leave one
// checkpoint and the exit status that was asked for, and the run can resume.
func TestPreempted(t *testing.T) {
	besideOthers(t)
	const ranks = 3
	spmdtest.Ranks(t, ranks)
	type preemption struct {
		name   string
		signal syscall.Signal
		rank   int // -1: mpirun
		status int
		starts int
	}
	cases := []preemption{
		{"SIGUSR1 to mpirun", syscall.SIGUSR1, -1, 0, 2},
		{"SIGUSR1 to mpirun, requeue", syscall.SIGUSR1, -1, 75, 2},
		{"SIGTERM to mpirun", syscall.SIGTERM, -1, 0, 1},
		{"SIGTERM to a rank", syscall.SIGTERM, 2, 0, 2},
		{"SIGUSR1 to a rank", syscall.SIGUSR1, 0, 0, 2},
	}
	for _, tc := range testkit.Some(t, "ways to ask a run to end early", cases,
		func(p preemption) bool { return p.status == 75 || p.signal == syscall.SIGTERM }) {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			args := smallRun(t, 1<<20, "--save-every", "0", "--checkpoint", dir, "--requeue-status",
				strconv.Itoa(tc.status))
			after := 0
			for start := range tc.starts {
				terminated := tc.rank < 0 && tc.signal == syscall.SIGTERM
				var env []string
				if terminated { // or the ranks have one second
					env = []string{"OMPI_MCA_odls_base_sigkill_timeout=4"}
				}
				j := begin(t, ranks, env, args...)
				j.read(t, 3)
				pid := j.cmd.Process.Pid
				if tc.rank >= 0 {
					pid = j.ranks(t)[tc.rank]
				}
				spmdtest.Must(t, syscall.Kill(pid, tc.signal))
				// mpirun's status is then 1, whatever the ranks' is
				if status := j.end(t); status != tc.status && !terminated {
					t.Fatalf("status %d, want %d; stderr:\n%s", status, tc.status, &j.stderr)
				}
				if n := len(j.steps); n < 3 || j.steps[0].Step != after+1 || j.summary != nil {
					t.Fatalf("%d steps after %d, summary %v, stderr:\n%s", n, after, j.summary, &j.stderr)
				}
				last := j.steps[len(j.steps)-1].Step
				saved, err := filepath.Glob(filepath.Join(dir, "*", "COMPLETE"))
				if n := start + 1; err != nil || len(saved) != n ||
					saved[n-1] != filepath.Join(stepDir(dir, last), "COMPLETE") {
					t.Fatalf("checkpoints %v (%v), want %d, the last after %d steps", saved, err, n, last)
				}
				if n := strings.Count(j.stderr.String(), "ended early"); n != 1 && !terminated {
					t.Errorf("the log says so %d times:\n%s", n, &j.stderr)
				}
				after = last
			}
		})
	}
}

// A second job in the folder of a running one is refused, and told who has it.
// Afterwards the folder is free.
func TestTwoJobs(t *testing.T) {
	besideOthers(t)
	spmdtest.HostOnly(t, "what is on disk does not depend on the device")
	const ranks = 2
	spmdtest.Ranks(t, ranks)
	dir := t.TempDir()
	args := smallRun(t, 1<<20, "--checkpoint", dir, "--save-every", "3")
	one := begin(t, ranks, nil, args...)
	one.read(t, 4)
	two := begin(t, ranks, nil, append(args, "--lr", "1e-5")...)
	if status := two.end(t); status != 2 || len(two.steps) != 0 {
		t.Errorf("a second job: status %d, %d steps", status, len(two.steps))
	}
	host, err := os.Hostname()
	spmdtest.Must(t, err)
	want := fmt.Sprintf("%s is in use by %s on host %s, process ", dir, filepath.Base(os.Args[0]), host)
	said := false
	for line := range strings.Lines(two.stderr.String()) {
		_, who, ok := strings.Cut(line, want)
		pid, _, _ := strings.Cut(who, ", since ")
		n, err := strconv.Atoi(pid)
		said = said || ok && strings.Contains(line, "--checkpoint: ") && err == nil && slices.Contains(one.ranks(t), n)
	}
	if !said || strings.Contains(two.stderr.String(), "remove") {
		t.Errorf("a second job does not say that %s:\n%s", want, &two.stderr)
	}
	spmdtest.Must(t, one.cmd.Process.Signal(syscall.SIGUSR1))
	if status := one.end(t); status != 0 {
		t.Fatalf("the first job: status %d\n%s", status, &one.stderr)
	}
	last := one.steps[len(one.steps)-1].Step
	got, _ := finish(t, ranks, append(args, "--steps", strconv.Itoa(last+1), "--warmup-steps", "1")...)
	if len(got.steps) != 1 || got.steps[0].Step != last+1 {
		t.Errorf("after both: %+v, want step %d", got.steps, last+1)
	}
	if _, err := os.Stat(filepath.Join(dir, ".lock")); err == nil {
		t.Error("the folder is locked, and nobody is there")
	}
}

// A requeued job of Slurm waits for its old half to end, and resumes from its last checkpoint.
func TestRequeued(t *testing.T) {
	besideOthers(t)
	spmdtest.HostOnly(t, "what is on disk does not depend on the device")
	const ranks = 2
	spmdtest.Ranks(t, ranks)
	args := smallRun(t, 1<<20, "--checkpoint", t.TempDir(), "--save-every", "0")
	slurm := func(restarts int) []string { // as in a batch script, where mpirun knows the hosts
		return []string{"SLURM_JOB_ID=7", "SLURM_CLUSTER_NAME=big", fmt.Sprintf("SLURM_RESTART_COUNT=%d", restarts),
			"OMPI_MCA_ras=^slurm", "OMPI_MCA_plm=^slurm", "OMPI_MCA_ess=^slurm"}
	}
	old := begin(t, ranks, slurm(0), args...)
	old.read(t, 3)
	pids := old.ranks(t)
	for _, signal := range []struct {
		pid int
		syscall.Signal
	}{{pids[0], syscall.SIGSTOP}, {pids[1], syscall.SIGUSR1}} { // asked to end, and held up
		spmdtest.Must(t, syscall.Kill(signal.pid, signal.Signal))
	}
	requeued := begin(t, ranks, slurm(1), args...)
	requeued.await(t, "waits a little")
	spmdtest.Must(t, syscall.Kill(pids[0], syscall.SIGCONT))
	if status := old.end(t); status != 0 || old.summary != nil {
		t.Fatalf("the old half: status %d\n%s", status, &old.stderr)
	}
	last := old.steps[len(old.steps)-1].Step
	requeued.read(t, 2)
	if len(requeued.steps) != 2 || requeued.steps[0].Step != last+1 {
		t.Errorf("after step %d the requeued job begins with %+v\n%s", last, requeued.steps, &requeued.stderr)
	}
	spmdtest.Must(t, requeued.cmd.Process.Signal(syscall.SIGUSR1))
	if status := requeued.end(t); status != 0 {
		t.Errorf("the requeued job: status %d\n%s", status, &requeued.stderr)
	}
}
