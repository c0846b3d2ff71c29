package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"lockstep/apps/train/run"
	"lockstep/apps/train/traintest"
	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
	"lockstep/spmd/spmdtest"
)

// told holds a run's steps in order, and its summary if it wrote one.
type told struct {
	steps   []run.StepRecord
	summary *run.SummaryRecord
}

// add takes one line of --json.
func (r *told) add(t *testing.T, line []byte) {
	t.Helper()
	var s run.SummaryRecord
	err := json.Unmarshal(line, &s)
	if err == nil && s.Summary {
		r.summary = &s
		return
	}
	var rec run.StepRecord
	if err == nil {
		err = json.Unmarshal(line, &rec)
	}
	if err != nil {
		t.Fatalf("%v in %q", err, line)
	}
	r.steps = append(r.steps, rec)
}

// smallRun returns the command line of a short run of a small model on words. Its losses
// are the same on 1 to 5 ranks.
func smallRun(t *testing.T, steps int, more ...string) []string {
	t.Helper()
	text := traintest.Write(t, t.TempDir(), "text.txt", string(traintest.RandomWords(6000)))
	return append([]string{"--data", text, "--steps", strconv.Itoa(steps), "--layers", "1", "--channels", "16",
		"--heads", "2", "--seq", "16", "--batch", "2", "--global-batch", "5", "--sample", "0", "--json", "-"}, more...)
}

// finish runs the program, which must succeed, and returns its steps and its log.
func finish(t *testing.T, ranks int, args ...string) (told, string) {
	t.Helper()
	return toldBy(t, train(t, ranks, args...), args)
}

// toldBy returns the steps and the log of a program that must have succeeded.
func toldBy(t *testing.T, p spmdtest.Ended, args []string) (told, string) {
	t.Helper()
	if p.Status != 0 {
		t.Fatalf("train %v: status %d, stderr:\n%s", args, p.Status, p.Stderr)
	}
	var r told
	for line := range strings.Lines(p.Stdout) {
		r.add(t, []byte(line))
	}
	return r, p.Stderr
}

// finishOn is finish with processes as ranks, or with goroutines of one process,
// which take half of the time.
func finishOn(t *testing.T, ranks int, processes bool, args ...string) (told, string) {
	t.Helper()
	if processes {
		return finish(t, ranks, args...)
	}
	return finish(t, 0, append(args, "--ranks", strconv.Itoa(ranks))...)
}

// quickly is train for a test that does not depend on processes. On the host the ranks
// are goroutines of one process.
func quickly(t *testing.T, ranks int, args ...string) spmdtest.Ended {
	t.Helper()
	if ranks > 1 && spmdtest.Device() == "host" {
		return train(t, 0, append(slices.Clip(args), "--ranks", strconv.Itoa(ranks))...)
	}
	return train(t, ranks, args...)
}

// finishQuickly is finish by quickly.
func finishQuickly(t *testing.T, ranks int, args ...string) (told, string) {
	t.Helper()
	return toldBy(t, quickly(t, ranks, args...), args)
}

// compareRuns fails unless got, which begins after a number of steps, has the losses of want. With
// a bound of 0 it compares bits.
func compareRuns(t *testing.T, got, want told, after int, bound float64) {
	t.Helper()
	if len(got.steps) != len(want.steps)-after || got.summary == nil {
		t.Fatalf("%d steps, summary %v; want %d steps after %d",
			len(got.steps), got.summary, len(want.steps)-after, after)
	}
	for i, g := range got.steps {
		compareSteps(t, g, want.steps[after+i], bound)
	}
	g, w := got.summary, want.summary
	if g.Steps != w.Steps || g.Tokens != w.Tokens || !traintest.CloseTo(g.LossFirst, w.LossFirst, bound) ||
		!traintest.CloseTo(g.LossLast, w.LossLast, bound) || !traintest.CloseTo(*g.ValLoss, *w.ValLoss, bound) {
		t.Errorf("summary %+v, want as %+v", *g, *w)
	}
}

func compareSteps(t *testing.T, g, w run.StepRecord, bound float64) {
	t.Helper()
	if g.Step != w.Step || g.Tokens != w.Tokens || g.LR != w.LR || (g.ValLoss == nil) != (w.ValLoss == nil) {
		t.Fatalf("step %+v, want as %+v", g, w)
	}
	if !traintest.CloseTo(g.Loss, w.Loss, bound) || !traintest.CloseTo(g.GradNorm, w.GradNorm, 100*bound*w.GradNorm) ||
		g.ValLoss != nil && !traintest.CloseTo(*g.ValLoss, *w.ValLoss, bound) {
		t.Fatalf("step %+v, uninterrupted %+v, want at most %g between the losses", g, w, bound)
	}
}

// job is a run under way.
type job struct {
	cmd    *exec.Cmd
	ended  chan struct{}
	own    string // what of its end is Open MPI's own, once it has ended
	out    *bufio.Scanner
	stderr testkit.Transcript
	told
}

// await waits until the running job has logged a text.
func (j *job) await(t *testing.T, text string) {
	t.Helper()
	if !j.stderr.Wait(text, j.ended) {
		t.Fatalf("the job has ended without %q:\n%s", text, &j.stderr)
	}
}

// begin starts the program on some ranks, and kills it when the test ends. The program writes its
// steps into a pipe of the test: after a SIGTERM mpirun passes nothing on.
func begin(t *testing.T, ranks int, env []string, args ...string) *job {
	t.Helper()
	return beginBy(t, nil, ranks, env, args...)
}

// beginBy is begin with another launcher than mpirun.
func beginBy(t *testing.T, launcher []string, ranks int, env []string, args ...string) *job {
	t.Helper()
	r, w, err := os.Pipe()
	spmdtest.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), mpirun.Limit(t))
	args = append(slices.Clone(args), "--json", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), w.Fd()))
	j := &job{ended: make(chan struct{}), out: bufio.NewScanner(r)}
	j.cmd = spmdtest.Command(ctx, t, ranks, append(env, "XDG_CACHE_HOME="+t.TempDir()), args...)
	if len(launcher) > 0 {
		j.cmd.Path, j.cmd.Args = launcher[0], slices.Concat(launcher, os.Args[:1], args)
	}
	j.cmd.Stderr = &j.stderr
	spmdtest.Must(t, mpirun.Start(j.cmd))
	go func() {
		defer close(j.ended)
		j.own, _ = mpirun.Wait(j.cmd, j.stderr.String) // its error is the status
		w.Close()                                      // the ranks have closed theirs
	}()
	t.Cleanup(func() {
		cancel()
		<-j.ended
		r.Close()
	})
	return j
}

// read takes n more lines from the job, fewer if it ends before.
func (j *job) read(t *testing.T, n int) {
	t.Helper()
	for range n {
		if !j.out.Scan() {
			return
		}
		j.add(t, j.out.Bytes())
	}
}

// end reads the rest and returns the exit status.
func (j *job) end(t *testing.T) int {
	t.Helper()
	j.read(t, math.MaxInt)
	<-j.ended
	return j.cmd.ProcessState.ExitCode()
}

// ranks returns the process ids of the running ranks.
func (j *job) ranks(t *testing.T) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	spmdtest.Must(t, err)
	var pids []int
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// PID (COMMAND) STATE PARENT ...; the command may hold anything.
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) > 1 && f[1] == strconv.Itoa(j.cmd.Process.Pid) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			spmdtest.Must(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// faults returns how often a fault is to happen: LOCKSTEP_FAULTS, else few times, and the
// usual number in make test-all.
func faults(t *testing.T, what string, few, usual int) int {
	t.Helper()
	text := os.Getenv("LOCKSTEP_FAULTS")
	if text == "" {
		return testkit.Few(t, what, few, usual)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("LOCKSTEP_FAULTS=%s: want a number", text)
	}
	return n
}

// Ranks that are goroutines share nothing that they change. The race
// detector checks it in make race.
func TestRanksOfAProcess(t *testing.T) {
	besideOthers(t)
	spmdtest.HostOnly(t, "the ranks are goroutines")
	dir := t.TempDir()
	args := smallRun(t, 6, "--ranks", "4", "--checkpoint", dir, "--save-every", "3", "--val-every", "2")
	r, _ := finish(t, 0, args...)
	if len(r.steps) != 6 || r.summary == nil || r.summary.ValLoss == nil {
		t.Errorf("%d steps, summary %v", len(r.steps), r.summary)
	}
	p := train(t, 0, "eval", dir, "--ranks", "4", "--data", args[1], "--json", "-")
	if p.Status != 0 || !strings.Contains(p.Stdout, `"ranks":4`) {
		t.Errorf("eval: status %d, %s\n%s", p.Status, p.Stdout, p.Stderr)
	}
}
