package main

import (
	"fmt"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/testkit"
)

// beginRun starts launch run on host h0, with its flags and a program's words.
func (c *network) beginRun(t *testing.T, flags []string, program string, args ...string) *remote {
	t.Helper()
	line := []string{"exec", c.path("bin", "launch"), "run", "--oversubscribe", "--agent",
		"'" + c.script + " " + c.dir + " enter'"}
	line = append(append(line, flags...), "--", c.path("bin", program))
	return c.onFirst(t, append(line, args...))
}

// A rank is killed, and a cable is cut: launch run starts the job again, first on all hosts, then
// without the one that does not answer. The losses are those of an undisturbed run.
func TestHostsRestarts(t *testing.T) {
	t.Parallel()
	c := startHosts(t, 3)
	const n = 200
	whole := losses(t, c.train(t, "h0:2", n), n)
	args := append(steps(c, n), "--checkpoint", c.path("run"), "--save-every", "10")
	j := c.beginRun(t, []string{"--restarts", "3", "--min-ranks", "2", "-H", "h0:1,h1:1,h2:1"}, "train", args...)
	j.until(t, "to="+c.path("run", "step-00000020"))
	kill(t, c.pids(t, "h1", "train")[0], syscall.SIGKILL)
	j.until(t, "; restart 1 of 3 in 1s, from step ")
	j.said(t, "launch: rank 1 on h1: the rank died: killed from outside")
	j.until(t, "INF resumed ")
	j.until(t, "to="+c.path("run", fmt.Sprintf("step-%08d", after(t, j, 1)+20)))
	at := time.Now()
	c.must(t, "unplug", "h2")
	j.until(t, "; restart 2 of 3 in 1s, from step ")
	t.Logf("the job ended %.1f s after the cut", time.Since(at).Seconds())
	j.until(t, "; 2 of 3 ranks start\n")
	j.said(t, "launch: h2 is left out: ")
	j.end(t, true)
	t.Logf("done %.1f s after the cut", time.Since(at).Seconds())
	j.said(t, "ranks=3 ", "ranks=2 ")
	got := map[int]float64{}
	for _, r := range recordsIn[result](t, regexp.MustCompile(`(?m)^\d+: `).ReplaceAllString(j.json.String(), "")) {
		if r.Step > 0 && !r.Summary {
			got[r.Step] = r.Loss
		}
	}
	if len(got) != n {
		t.Errorf("%d steps, want %d", len(got), n)
	}
	sameLosses(t, whole, got)
	c.settled(t, patience, "h0", "h1")
}

// after is the step from which a job was started again for the n-th time.
func after(t *testing.T, j *remote, n int) int {
	t.Helper()
	m := regexp.MustCompile(fmt.Sprintf(`; restart %d of \d+ in \w+, from step (\d+)`,
		n)).FindStringSubmatch(j.log.String())
	if m == nil {
		t.Fatalf("no restart %d in\n%s", n, &j.log)
	}
	step, err := strconv.Atoi(m[1])
	testkit.Must(t, err)
	return step
}
