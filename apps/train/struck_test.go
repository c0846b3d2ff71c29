package main

import (
	"fmt"
	rand "math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/mpirun"
	"lockstep/internal/process"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// struckEnv marks the processes of one job.
const struckEnv = "TRAIN_TEST_STRUCK"

// A run saves after every step. At random moments one rank is struck, by SIGSTOP or by SIGKILL in
// turn. The job ends, says which rank it was or why it could not know, and leaves nothing behind.
//
// The next start resumes from a recent enough checkpoint. LOCKSTEP_FAULTS is the
// number of strikes of each kind.
func TestStruck(t *testing.T) {
	spmdtest.HostOnly(t, "the watch and what is on disk do not depend on the device")
	const ranks, steps = 3, 40
	spmdtest.Ranks(t, ranks)
	strikes := faults(t, "strikes at random", 2, 3)
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("TRAIN_TEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d", seed)
	args := smallRun(t, steps, "--val-batches", "1")
	want, _ := finish(t, ranks, args...)
	const groups = 4 // at a time: a job that hangs has little to do
	var mu sync.Mutex
	seen := map[string]int{} // how it ended
	t.Run("runs", func(t *testing.T) {
		for g := range groups {
			t.Run(strconv.Itoa(g), func(t *testing.T) {
				t.Parallel()
				part := 2 * spmd.ShardOf(strikes, g, groups).Len
				rng := rand.New(rand.NewPCG(seed, uint64(g)))
				for n := 0; n < part; {
					r := newStruck(t, rng, args, want)
					for ; n < part && !r.done; n += b2i(!r.missed) {
						signal := syscall.SIGKILL
						if n%2 == 0 {
							signal = syscall.SIGSTOP
						}
						how := r.strike(t, signal)
						mu.Lock()
						seen[fmt.Sprintf("%v: %s", signal, how)]++
						mu.Unlock()
					}
					if _, err := os.Stat(filepath.Join(r.dir, ".lock")); r.done && err == nil {
						t.Error("the folder of a run that is complete is locked")
					}
				}
			})
		}
	})
	var ends []string
	for how, times := range seen {
		ends = append(ends, fmt.Sprintf("%4d %s", times, how))
	}
	slices.Sort(ends)
	t.Logf("of %d stopped and %d killed:\n%s", strikes, strikes, strings.Join(ends, "\n"))
}

// struck is a run that is struck again and again until it is complete.
type struck struct {
	rng          *rand.Rand
	dir          string // of checkpoints
	args         []string
	want         told
	kept         int  // steps of a checkpoint that must be whole
	done, missed bool // complete; the last strike came too late
}

func newStruck(t *testing.T, rng *rand.Rand, args []string, want told) *struck {
	dir := t.TempDir()
	return &struck{rng: rng, dir: dir, want: want,
		args: append(slices.Clone(args), "--checkpoint", dir, "--save-every", "1", "--log-ranks", "all")}
}

// These match what a job says when a rank stops or dies.
var (
	reported = regexp.MustCompile(`(?m)^--- this job hangs: .*|has not ended in 3s: a rank is missing.*`)
	stopped  = regexp.MustCompile(`does not answer; its process is T \(stopped\)|NOT ARRIVED: rank`)
	died     = regexp.MustCompile(`ERR the rank died: .* rank=\d`)
	byMPI    = regexp.MustCompile(
		`mpirun noticed that process rank|mpirun detected that one or more processes exited|PMIX|ORTE`)
)

// strike starts the run, strikes one rank, and checks how the job ends. It returns that in words.
func (r *struck) strike(t *testing.T, signal syscall.Signal) (how string) {
	t.Helper()
	temp := t.TempDir()
	marker := struckEnv + "=" + temp
	args := r.args
	if signal == syscall.SIGSTOP {
		args = append(slices.Clip(args), "--timeout", "3s") // what a hang takes
	}
	j := begin(t, 3, []string{marker, "TMPDIR=" + temp}, args...)
	lines := r.rng.IntN(12)
	delay := r.rng.Int64N(int64(20 * time.Millisecond))
	if lines == 0 { // before the first step
		delay = r.rng.Int64N(int64(700 * time.Millisecond))
	}
	j.read(t, lines)
	<-time.After(time.Duration(delay))
	pids := j.ranks(t)
	shared := sharedMemory(pids)
	r.missed = len(pids) == 0
	if !r.missed {
		err := syscall.Kill(pids[r.rng.IntN(len(pids))], signal)
		r.missed = err != nil
	}
	status := j.end(t)
	log := j.stderr.String()
	fail := func(format string, args ...any) {
		t.Helper()
		t.Fatalf("%v after %d lines and %v: %s; status %d\n%s",
			signal, lines, time.Duration(delay), fmt.Sprintf(format, args...), status, log)
	}
	for i, s := range j.steps {
		if i == 0 && s.Step <= r.kept {
			fail("went on with step %d, and the checkpoint after %d steps was complete", s.Step, r.kept)
		}
		compareSteps(t, s, r.want.steps[s.Step-1], 0)
		// The save before this step had begun. It began after the save before it was on the disk.
		r.kept = max(r.kept, s.Step-2)
	}
	r.done = status == 0
	switch {
	case r.done && (j.summary == nil || j.summary.LossLast != r.want.summary.LossLast):
		fail("summary %+v, want %+v", j.summary, r.want.summary)
	case r.done:
		how = "the run was complete"
		r.missed = true
	case signal == syscall.SIGKILL && died.MatchString(log):
		how = "named by the watch"
	case signal == syscall.SIGKILL && byMPI.MatchString(log):
		how = "named by mpirun, at the start or the end"
	case signal == syscall.SIGSTOP && reported.MatchString(log) &&
		(stopped.MatchString(log) || strings.Contains(log, "a rank is missing")):
		how = "a report names the rank"
		if !stopped.MatchString(log) {
			how = "a rank is missing at the start"
		}
	case j.own != "":
		t.Logf("Open MPI's own: %s", j.own)
		how = "Open MPI's own end went wrong"
		r.missed = true
	default:
		fail("nothing says what happened")
	}
	r.leftovers(t, marker, temp, shared, fail)
	return how
}

// sharedMemory returns the pattern of names of a job's files in /dev/shm,
// or "" if no rank has any yet.
func sharedMemory(pids []int) string {
	for _, pid := range pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)) // it may have ended
		for v := range strings.SplitSeq(string(b), "\x00") {
			if name, ok := strings.CutPrefix(v, "PMIX_NAMESPACE="); ok {
				if n, err := strconv.ParseUint(name, 10, 32); err == nil { // Open MPI 4 puts it into names
					return fmt.Sprintf("/dev/shm/*.%x.*", n)
				}
				return "/dev/shm/*" + name + "*"
			}
		}
	}
	return ""
}

// leftovers fails if processes or files of the job are left.
func (r *struck) leftovers(t *testing.T, marker, temp, shared string, fail func(string, ...any)) {
	t.Helper()
	marked := func() []int { return process.Having(process.PIDs(), marker) }
	// Ranks end a little after mpirun.
	for end := time.Now().Add(mpirun.Limit(t)); len(marked()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			fail("processes %v are left", marked())
		}
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		fail("files are left: %v, %v", left, err)
	}
	if left, err := filepath.Glob(shared); err != nil || len(left) > 0 {
		fail("shared memory is left: %v, %v", left, err)
	}
}
