package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"lockstep/internal/testkit"
	"lockstep/spmd"
)

const (
	// hostsEnv asks for these tests.
	hostsEnv = "LOCKSTEP_HOSTS"
	// hostRankEnv makes the test binary a program that says where each of its ranks is.
	hostRankEnv = "LOCKSTEP_HOSTS_RANK"
	// symmetricEnv makes it ask for symmetric memory.
	symmetricEnv = "LOCKSTEP_HOSTS_SYMMETRIC"
)

// hostPlace is where a rank finds itself.
type hostPlace struct {
	Host                                                 string
	Rank, Size, LocalRank, LocalSize, Node, Nodes, Cores int
}

func hostRankMain() {
	spmd.Main(pflag.NewFlagSet("rank", pflag.ContinueOnError), func(_ context.Context, w *spmd.World) error {
		if os.Getenv(symmetricEnv) != "" {
			if _, err := spmd.AllocSymmetric[float32](w, 1024); err != nil {
				return err
			}
		}
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		line, err := json.Marshal(hostPlace{host, w.Rank(), w.Size(), w.LocalRank(), w.LocalSize(), w.Node(),
			w.Nodes(), w.Threads()})
		if err != nil {
			return err
		}
		_, err = fmt.Printf("%s\n", line)
		return err
	})
}

// built are the applications and, as "rank", the test binary itself.
var built struct {
	once sync.Once
	dir  string
	err  error
}

func buildPrograms() error {
	built.once.Do(func() {
		var err error
		if built.dir, err = os.MkdirTemp("", "hosts"); err != nil {
			built.err = err
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		out, err := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", built.dir+"/",
			"../apps/train", "../apps/reduce", "../apps/matvec", ".").CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("go build: %w\n%s", err, out)
			return
		}
		self, err := os.ReadFile(os.Args[0])
		built.err = errors.Join(err, os.WriteFile(filepath.Join(built.dir, "rank"), self, 0o777))
	})
	return built.err
}

// network is a set of hosts, which testdata/hosts.sh makes of network namespaces on this machine.
type network struct {
	dir    string // the same on all of them, with the programs in bin
	script string
}

// startHosts starts n hosts, which end with the test, or with this process.
func startHosts(t *testing.T, n int) *network {
	t.Helper()
	if os.Getenv(hostsEnv) == "" {
		t.Skip("takes a minute or two: LOCKSTEP_HOSTS=1, or make test-hosts")
	}
	if os.Geteuid() != 0 {
		t.Skip("network namespaces want root")
	}
	for _, tool := range []string{"ip", "nsenter", "unshare", "mpirun"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%v: apt-get install iproute2 util-linux openmpi-bin", err)
		}
	}
	if out, _ := exec.Command("mpirun", "--version").CombinedOutput(); !strings.Contains(string(out), "Open MPI) 4.") {
		t.Skipf("the options are those of Open MPI 4, and mpirun is %q", out)
	}
	testkit.Must(t, buildPrograms())
	script, err := filepath.Abs("testdata/hosts.sh")
	testkit.Must(t, err)
	dir, err := os.MkdirTemp("", "hosts")
	testkit.Must(t, err)
	c := &network{dir: dir, script: script}
	life, hold, err := os.Pipe()
	testkit.Must(t, err)
	t.Cleanup(func() {
		if _, err := c.command(context.Background(), nil, "stop"); err != nil {
			t.Error(err)
		}
		if err := errors.Join(hold.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	_, err = c.command(t.Context(), life, "start", strconv.Itoa(n))
	testkit.Must(t, errors.Join(err, life.Close()))
	// Hard links, as the folder of the programs lies in this machine's /tmp.
	testkit.Must(t, os.Mkdir(filepath.Join(dir, "bin"), 0o777))
	for _, p := range []string{"train", "reduce", "matvec", "launch", "rank"} {
		testkit.Must(t, os.Link(filepath.Join(built.dir, p), c.path("bin", p)))
	}
	return c
}

func (c *network) path(name ...string) string {
	return filepath.Join(append([]string{c.dir}, name...)...)
}

// command runs the script.
func (c *network) command(ctx context.Context, stdin *os.File, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.script, append([]string{c.dir}, args...)...)
	if stdin != nil {
		cmd.Stdin = stdin
	}
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("hosts.sh %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

func (c *network) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.command(t.Context(), nil, args...)
	testkit.Must(t, err)
	return out
}

// each runs a shell command on every host, in which K is the number of the host, from 1.
func (c *network) each(t *testing.T, n int, command string) {
	t.Helper()
	for i := range n {
		c.must(t, "enter", fmt.Sprintf("h%d", i), fmt.Sprintf("K=%d; %s", i+1, command))
	}
}

// pids returns the processes of a host by their program's name.
func (c *network) pids(t *testing.T, host, name string) (pids []int) {
	t.Helper()
	for line := range strings.Lines(c.must(t, "list", host)) {
		f := strings.Fields(line)
		if len(f) != 2 || name != "" && f[1] != name {
			continue
		}
		pid, err := strconv.Atoi(f[0])
		testkit.Must(t, err)
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	return pids
}

// remote is one mpirun, on host h0.
type remote struct {
	cmd   *exec.Cmd
	json  bytes.Buffer       // standard output
	log   testkit.Transcript // standard error
	ended chan struct{}
}

// where is an mpirun's part of the command line: ranks on hosts, as in "h0:2,h1:2".
func where(hosts string) []string { return []string{"-H", hosts} }

// begin starts mpirun with its arguments and those of a program.
func (c *network) begin(t *testing.T, options []string, program string, args ...string) *remote {
	t.Helper()
	line := []string{"exec mpirun --allow-run-as-root --bind-to none --mca mpi_yield_when_idle 1",
		"--mca plm_rsh_agent", "'" + c.script + " " + c.dir + " enter'"}
	return c.onFirst(t, append(append(append(line, options...), c.path("bin", program)), args...))
}

// onFirst starts a shell's words on host h0.
func (c *network) onFirst(t *testing.T, words []string) *remote {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	j := &remote{ended: make(chan struct{})}
	j.cmd = exec.CommandContext(ctx, c.script, c.dir, "enter", "h0", strings.Join(words, " "))
	j.cmd.Stdout, j.cmd.Stderr = &j.json, &j.log
	j.cmd.WaitDelay = time.Second
	testkit.Must(t, j.cmd.Start())
	go func() {
		defer cancel()
		_ = j.cmd.Wait() // the status says it
		close(j.ended)
	}()
	return j
}

// end waits for the job. ok is whether it must end well.
func (j *remote) end(t *testing.T, ok bool) {
	t.Helper()
	<-j.ended
	if status := j.cmd.ProcessState.ExitCode(); (status == 0) != ok {
		t.Fatalf("exit status %d\n%s%s", status, &j.log, &j.json)
	}
}

// said fails the test unless the job has said all of it.
func (j *remote) said(t *testing.T, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(j.log.String(), w) {
			t.Errorf("%q is not said in\n%s", w, &j.log)
		}
	}
}

// recordsIn are the lines of JSON that the program has written to standard output.
func recordsIn[T any](t *testing.T, text string) (all []T) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	for d.More() {
		var r T
		if err := d.Decode(&r); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		all = append(all, r)
	}
	return all
}

// settled waits until no process runs on the hosts, and returns when that was. It fails the test
// after limit, or if files are left.
func (c *network) settled(t *testing.T, limit time.Duration, hosts ...string) time.Time {
	t.Helper()
	end := time.Now().Add(limit)
	for _, host := range hosts {
		for len(c.pids(t, host, "")) > 0 {
			if time.Now().After(end) {
				t.Fatalf("on %s there still run after %v:\n%s", host, limit, c.must(t, "list", host))
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	at := time.Now()
	root, err := filepath.Abs("..")
	testkit.Must(t, err)
	shared := "" // the shared folder and the checkout, if they lie there
	for _, dir := range []string{c.dir, root} {
		own, _, _ := strings.Cut(strings.TrimPrefix(dir, "/tmp/"), "/")
		shared += " -e '" + own + "'"
	}
	for _, host := range hosts {
		left := c.must(t, "enter", host, "ls /dev/shm /tmp | grep -v -x -e '' -e /dev/shm: -e /tmp:"+shared+" || true")
		if left != "" {
			t.Errorf("files are left on %s:\n%s", host, left)
		}
	}
	return at
}

// until waits for the job to say text.
func (j *remote) until(t *testing.T, text string) {
	t.Helper()
	if !j.log.Wait(text, j.ended) {
		t.Fatalf("ended, and has not said %q:\n%s", text, &j.log)
	}
}
