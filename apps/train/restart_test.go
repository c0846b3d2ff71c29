package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/process"
	"lockstep/spmd/spmdtest"
)

// Under launch run --restarts a run goes on by itself after ranks are killed. It resumes from the
// checkpoint that launch names, with the losses of an undisturbed run.
func TestRestarts(t *testing.T) {
	spmdtest.HostOnly(t, "how a job is started again does not depend on the device")
	const ranks, steps = 3, 60
	spmdtest.Ranks(t, ranks)
	launch := filepath.Join(t.TempDir(), "launch")
	if out, err := exec.Command("go", "build", "-o", launch, "lockstep/launch").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if program, err := filepath.Abs(os.Args[0]); err != nil {
		t.Fatal(err)
	} else {
		os.Args[0] = program
	}
	args := smallRun(t, steps)
	want, _ := finish(t, ranks, args...)
	dir := t.TempDir()
	marker := "TRAIN_TEST_RESTARTS=" + dir
	j := beginBy(t, []string{launch, "run", "--restarts", "3", "-np", strconv.Itoa(ranks), "--oversubscribe", "--"},
		ranks, []string{marker}, append(args, "--checkpoint", dir, "--save-every", "1")...)
	for i, victim := range []int{1, 0} {
		j.read(t, 12)
		spmdtest.Must(t, syscall.Kill(rankOf(t, marker, victim), syscall.SIGKILL))
		at := time.Now()
		j.await(t, fmt.Sprintf("restart %d of 3 in 1s", i+1))
		said := regexp.MustCompile(fmt.Sprintf(
			`launch: rank %d on \S+: the rank died: killed from outside.*; status \d+( \(\w+\))? after \d+\.\d s; `+
				`restart %d of 3 in 1s, from step (\d+), the newest checkpoint in %s\n`, victim, i+1, dir))
		m := said.FindStringSubmatch(j.stderr.String())
		if m == nil {
			t.Fatalf("%v is not in\n%s", said, &j.stderr)
		}
		resumed := resumptions(j)
		for ; len(resumed) <= i; resumed = resumptions(j) {
			select {
			case <-j.ended:
				t.Fatalf("the run does not go on:\n%s", &j.stderr)
			case <-time.After(20 * time.Millisecond):
			}
		}
		t.Logf("rank %d killed: goes on %.1f s later, from step %s", victim, time.Since(at).Seconds(), resumed[i])
		if resumed[i] != m[2] {
			t.Errorf("goes on from step %s, and launch says from step %s", resumed[i], m[2])
		}
	}
	if status := j.end(t); status != 0 || j.summary == nil {
		t.Fatalf("status %d, summary %v\n%s", status, j.summary, &j.stderr)
	}
	seen := 0
	for i, s := range j.steps {
		if i > 0 && s.Step > j.steps[i-1].Step+1 {
			t.Fatalf("step %d after step %d", s.Step, j.steps[i-1].Step)
		}
		compareSteps(t, s, want.steps[s.Step-1], 0)
		seen = max(seen, s.Step)
	}
	if seen != steps || j.summary.LossLast != want.summary.LossLast || *j.summary.ValLoss != *want.summary.ValLoss {
		t.Errorf("%d steps, %+v; want %d, %+v", seen, j.summary, steps, want.summary)
	}
}

// resumptions returns the steps from which the job says that it goes on.
func resumptions(j *job) (steps []string) {
	for _, m := range regexp.MustCompile(`INF resumed .*steps=(\d+)`).FindAllStringSubmatch(j.stderr.String(), -1) {
		steps = append(steps, m[1])
	}
	return steps
}

// rankOf returns the process of a rank of the job with a marker.
func rankOf(t *testing.T, marker string, rank int) int {
	t.Helper()
	pids := process.Having(process.Having(process.PIDs(), marker), fmt.Sprintf("OMPI_COMM_WORLD_RANK=%d", rank))
	if len(pids) > 0 {
		return pids[0]
	}
	t.Fatalf("rank %d does not run", rank)
	return 0
}
