package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
	"lockstep/spmd"
)

// slurmRankEnv makes the test binary a program that says where each of its ranks is.
const slurmRankEnv = "LOCKSTEP_SLURM_RANK"

// slurmPlace is where a rank finds itself.
type slurmPlace struct {
	Rank, LocalRank, LocalSize, Node, Nodes int
	Host, GPUs                              string
}

func slurmRankMain() {
	spmd.Main(pflag.NewFlagSet("rank", pflag.ContinueOnError), func(_ context.Context, w *spmd.World) error {
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		line, err := json.Marshal(slurmPlace{w.Rank(), w.LocalRank(), w.LocalSize(), w.Node(), w.Nodes(), host,
			os.Getenv("CUDA_VISIBLE_DEVICES")})
		if err != nil {
			return err
		}
		_, err = fmt.Printf("%s\nseed %d\n", line, w.Seed())
		return err
	})
}

// slurm is the Slurm that all tests share.
type slurm struct {
	dir string // its files
	bin string // the programs, as make build leaves them
	env []string
}

var (
	startOnce sync.Once
	shared    *slurm
	startErr  error
	running   *exec.Cmd // cluster.sh, which stops the cluster when its input ends, so also when this process dies
	input     io.Closer
)

// startSlurm returns the cluster, or skips the test if there cannot be one.
func startSlurm(t *testing.T) *slurm {
	t.Helper()
	if os.Getenv("LOCKSTEP_SLURM") != "1" {
		t.Skip("starts a Slurm cluster on this machine: make test-slurm does, or LOCKSTEP_SLURM=1")
	}
	if os.Geteuid() != 0 {
		t.Skip("slurmd must run as root")
	}
	startOnce.Do(func() { shared, startErr = runSlurm() })
	if startErr != nil {
		t.Fatal(startErr)
	}
	return shared
}

func runSlurm() (*slurm, error) {
	bin, err := filepath.Abs("../bin")
	if err != nil {
		return nil, err
	}
	for _, program := range []string{"train", "reduce", "matvec", "stencil", "launch", "launch-probe"} {
		if _, err := os.Stat(filepath.Join(bin, program)); err != nil {
			return nil, fmt.Errorf("type make build: %w", err)
		}
	}
	dir, err := os.MkdirTemp("", "slurm")
	if err != nil {
		return nil, err
	}
	env := append(mpirun.Env(8), "SLURM_CONF="+filepath.Join(dir, "slurm.conf"),
		"XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	running = exec.Command("testdata/cluster.sh", "run", dir)
	var said strings.Builder
	running.Stderr = &said
	running.WaitDelay = time.Second
	if input, err = running.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := running.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := running.Start(); err != nil {
		return nil, err
	}
	// cluster.sh has deadlines of its own, so this line comes, or the end of the output.
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		return nil, fmt.Errorf("cluster.sh: %q, %v\n%s", line, err, &said)
	}
	return &slurm{dir, bin, env}, nil
}

func stopSlurm() error {
	if running == nil {
		return nil
	}
	dir := running.Args[2]
	if running.Process == nil {
		return os.RemoveAll(dir)
	}
	err := input.Close()
	end := time.AfterFunc(patience, func() { _ = running.Process.Kill() })
	defer end.Stop()
	err = errors.Join(err, running.Wait())
	if err != nil {
		return fmt.Errorf("cluster.sh, whose files stay in %s: %w", dir, err)
	}
	return os.RemoveAll(dir)
}

// command runs a command on the cluster, in dir, and returns its output, both streams.
func (c *slurm) command(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, c.env, time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("%s %v has not ended in %v:\n%s", name, args, patience, out)
	}
	return string(out), err
}

// must is command for commands that must succeed. If Slurm's own socket has lost a question, it
// asks again, twice.
func (c *slurm) must(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := c.command(t, c.dir, name, args...)
	for range 2 {
		if err == nil || !strings.Contains(out, "socket error") {
			break
		}
		t.Logf("Slurm's own: %s", out)
		out, err = c.command(t, c.dir, name, args...)
	}
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return out
}

// folder makes a folder like a user's: with bin/ and a text.
func (c *slurm) folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var text strings.Builder
	for i := range 20000 {
		fmt.Fprintln(&text, i*i)
	}
	err := errors.Join(os.Symlink(c.bin, filepath.Join(dir, "bin")),
		os.WriteFile(filepath.Join(dir, "text.txt"), []byte(text.String()), 0o666))
	testkit.Must(t, err)
	return dir
}

// submitted is a job, or a job array.
type submitted struct {
	*slurm
	id, dir string
}

// submit types sbatch with args in dir. A job that is left at the end of the test is cancelled.
func (c *slurm) submit(t *testing.T, dir string, args ...string) *submitted {
	t.Helper()
	out, err := c.command(t, dir, "sbatch", append([]string{"--parsable"}, args...)...)
	id := strings.TrimSpace(out)
	if _, bad := strconv.Atoi(id); err != nil || bad != nil {
		t.Fatalf("sbatch %v: %v\n%s", args, err, out)
	}
	j := &submitted{c, id, dir}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("job %s:\n%s", id, j.log(t))
		}
		// t.Context is over.
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, "scancel", "--quiet", id)
		cmd.Env = c.env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("scancel: %v\n%s", err, out)
		}
	})
	return j
}

// log is the output of the job so far, the tasks of an array one after the other.
func (j *submitted) log(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, pattern := range []string{"*-" + j.id + ".out", "*-" + j.id + "_*.out"} {
		files, err := filepath.Glob(filepath.Join(j.dir, pattern))
		testkit.Must(t, err)
		for _, f := range files {
			b, err := os.ReadFile(f)
			testkit.Must(t, err)
			all.Write(b)
		}
	}
	return all.String()
}

var (
	stateField   = regexp.MustCompile(`\bJobState=(\w+)`)
	restartField = regexp.MustCompile(`\bRestarts=(\d+)`)
	exitField    = regexp.MustCompile(`\bExitCode=(\d+:\d+)`)
)

// status is Slurm's account of a job, of each of an array.
type status struct {
	state, restarts, exit string
}

func (j *submitted) status(t *testing.T) []status {
	t.Helper()
	var all []status
	for line := range strings.Lines(j.must(t, "scontrol", "--oneliner", "show", "job", j.id)) {
		var s status
		for _, f := range []struct {
			field *regexp.Regexp
			to    *string
		}{{stateField, &s.state}, {restartField, &s.restarts}, {exitField, &s.exit}} {
			if m := f.field.FindStringSubmatch(line); m != nil {
				*f.to = m[1]
			}
		}
		all = append(all, s)
	}
	return all
}

// await waits until ok.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("no %s in %v", what, patience)
		}
	}
}

// end waits for the end of the job, and of each of an array, in one of the states.
func (j *submitted) end(t *testing.T, states ...string) []status {
	t.Helper()
	over := []string{"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL",
		"OUT_OF_MEMORY", "PREEMPTED", "DEADLINE"}
	var all []status
	await(t, "end of job "+j.id, func() bool {
		all = j.status(t)
		return !slices.ContainsFunc(all, func(s status) bool { return !slices.Contains(over, s.state) })
	})
	for _, s := range all {
		if !slices.Contains(states, s.state) {
			t.Fatalf("job %s: %+v, want %v", j.id, all, states)
		}
	}
	return all
}

// again waits until the job is in the queue for its second start, and has it begin soon rather than
// in two minutes. It reports false if the job was done before.
func (j *submitted) again(t *testing.T) bool {
	t.Helper()
	done := false
	await(t, "requeue", func() bool {
		s := j.status(t)[0]
		if s.state == "FAILED" || s.state == "CANCELLED" {
			t.Fatalf("job %s: %+v, want it in the queue again", j.id, s)
		}
		done = s.state == "COMPLETED"
		return done || s.state == "PENDING" && s.restarts == "1"
	})
	if done {
		return false
	}
	// In the second in which it stopped, slurmd takes a start for one that was revoked.
	j.must(t, "scontrol", "update", "JobId="+j.id, "StartTime=now+2")
	return true
}

// record is a line of --json: a step of train, or a result.
type record struct {
	Step     int
	Loss     float64
	LR, Ms   float64
	GradNorm float64 `json:"grad_norm"`
	ValLoss  float64 `json:"val_loss"`

	App          string
	Summary, OK  bool
	Steps        int
	LossFirst    float64 `json:"loss_first"`
	LossLast     float64 `json:"loss_last"`
	Ranks, Nodes int
}

// records are the lines of a --json file so far, none if there is no such file yet.
func records(t *testing.T, file string) []record {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var all []record
	for line := range strings.Lines(string(b)) {
		if !strings.HasSuffix(line, "\n") {
			break // being written
		}
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%s: %v in %q", file, err, line)
		}
		all = append(all, r)
	}
	return all
}
