package plan

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"lockstep/internal/mpirun"
	"lockstep/internal/process"
	"lockstep/internal/testkit"
)

func TestRun(t *testing.T) {
	for _, w := range installed(t) {
		for _, n := range []int{1, 2, 3} {
			out, errs, status := result(t,
				launchCommand(t, "run", "--launcher", w.name, "-np", strconv.Itoa(n), "--oversubscribe", "--logs",
					"prefix", "--", self(t), "program", "rank", "a b"))
			for r := range n {
				want := fmt.Sprintf("%d: rank %d of %d [\"a b\"]\n", r, r, n)
				if status != 0 || strings.Count(out, want) != 1 {
					t.Errorf("%s on %d: status %d, %q is not in %q\n%s", w.name, n, status, want, out, errs)
				}
			}
		}
	}
}

func TestStdin(t *testing.T) {
	for _, w := range installed(t) {
		cmd := launchCommand(t, "run", "--launcher", w.name, "-np", "1", "--logs", "prefix", "--", self(t), "program",
			"stdin")
		cmd.Stdin = strings.NewReader("something\n")
		if out, errs, status := result(t, cmd); status != 0 || out != "0: read \"something\\n\", <nil>\n" {
			t.Errorf("%s: status %d, %q\n%s", w.name, status, out, errs)
		}
	}
}

// unprefix takes the output apart by rank; each line has to begin with one. What mpirun says by
// itself has none: where the agent that it starts for another host is there before mpirun has made
// it a group of its own, it warns of that, and goes on.
func unprefix(t *testing.T, out string) map[string]string {
	t.Helper()
	parts := map[string]string{}
	for line := range strings.Lines(out) {
		if strings.Contains(line, "plm:rsh: Warning: setpgid(") {
			continue
		}
		rank, text, ok := strings.Cut(line, ": ")
		if _, err := strconv.Atoi(rank); !ok || err != nil {
			t.Fatalf("a line has no rank: %.80q", line)
		}
		parts[rank] += text
	}
	return parts
}

// TestLogs passes output that is hard to pass on, from three ranks at once.
func TestLogs(t *testing.T) {
	for _, w := range installed(t) {
		base := []string{"run", "--launcher", w.name, "-np", "3", "--oversubscribe"}
		prog := []string{"--", self(t), "program", "bytes"}
		t.Run(w.name+" prefix", func(t *testing.T) {
			t.Parallel()
			out, errs, status := result(t, launchCommand(t, slices.Concat(base, []string{"--logs", "prefix"}, prog)...))
			if status != 0 {
				t.Fatalf("status %d: %.1000s", status, errs)
			}
			outs, errors := unprefix(t, out), unprefix(t, errs)
			for r := range 3 {
				rank := strconv.Itoa(r)
				if outs[rank] != pattern("out", rank)+"\n" || errors[rank] != pattern("err", rank)+"\n" {
					t.Errorf("rank %s: %d and %d bytes, not the %d printed",
						rank, len(outs[rank]), len(errors[rank]), len(pattern("out", rank))+1)
				}
			}
		})
		t.Run(w.name+" folder", func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir() + "/a 'new' folder"
			const before = "of a job before\n" // stays
			testkit.Must(t, os.Mkdir(dir, 0o777))
			testkit.Must(t, os.WriteFile(filepath.Join(dir, "rank.1.out"), []byte(before), 0o666))
			out, errs, status := result(t,
				launchCommand(t, append(append(base[:len(base):len(base)], "--logs", dir), prog...)...))
			if status != 0 || out != "" {
				t.Fatalf("status %d: %.1000s%.1000s", status, out, errs)
			}
			for r := range 3 {
				rank := strconv.Itoa(r)
				for _, stream := range []string{"out", "err"} {
					got, err := os.ReadFile(filepath.Join(dir, "rank."+rank+"."+stream))
					want := pattern(stream, rank)
					if rank+stream == "1out" {
						want = before + want
					}
					if err != nil || string(got) != want {
						t.Errorf("rank %s, %s: %v, %d bytes, not the %d printed",
							rank, stream, err, len(got), len(want))
					}
				}
			}
		})
		t.Run(w.name+" full", func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for size, want := range map[string]int{"4k": 2, "12k": 1} { // before the start, and when the ranks write
				cmd := launchCommand(t, append(append(base[:len(base):len(base)], "--logs", dir), prog...)...)
				full := `mount -t tmpfs -o size=` + size + ` none "$0" || exit 77; echo >"$0/a"; exec "$@"`
				cmd.Args = append([]string{"unshare", "-rm", "sh", "-c", full, dir}, cmd.Args...)
				if cmd.Path, cmd.Err = exec.LookPath("unshare"); cmd.Err != nil {
					t.Skip(cmd.Err)
				}
				_, errs, status := result(t, cmd)
				if status == 77 || strings.HasPrefix(errs, "unshare: ") {
					t.Skip(errs)
				}
				said := strings.Count(errs, "launch: --logs: ") == 1 && strings.Contains(errs, "no space left")
				if status != want || !said {
					t.Errorf("status %d, want %d: %.1000s", status, want, errs)
				}
			}
		})
		t.Run(w.name+" plain", func(t *testing.T) {
			t.Parallel()
			out, errs, status := result(t,
				launchCommand(t, append(append(base[:len(base):len(base)], "--logs", "plain"), "--", self(t), "program",
					"rank")...))
			if status != 0 || strings.Count(out, "\n") != 3 || strings.Count(out, "rank 1 of 3 []\n") != 1 {
				t.Errorf("status %d: %q%s", status, out, errs)
			}
		})
	}
}

// TestPrefix cuts output into reads of all kinds.
func TestPrefix(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	for _, tc := range []struct{ in, want string }{
		{"", ""}, {"\n", "7: \n"}, {"a\nb", "7: a\n7: b\n"}, {"a\r\n\n\nb\n", "7: a\r\n7: \n7: \n7: b\n"},
		{"\x00\xff\n", "7: \x00\xff\n"},
	} {
		for name, r := range map[string]io.Reader{
			"whole": strings.NewReader(tc.in), "bytes": iotest.OneByteReader(strings.NewReader(tc.in)),
			"with its end": iotest.DataErrReader(strings.NewReader(tc.in)),
		} {
			var out bytes.Buffer
			prefix(&out, r, "7: ", nil)
			if out.String() != tc.want {
				t.Errorf("%q, %s: got %q, want %q", tc.in, name, out.String(), tc.want)
			}
		}
	}
	var out bytes.Buffer
	prefix(&out, strings.NewReader(long+long), "7: ", nil)
	if got := strings.ReplaceAll(strings.ReplaceAll(out.String(), "7: ", ""), "\n", ""); got != long+long {
		t.Errorf("of a line without end %d bytes are left of %d", len(got), 2*len(long))
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > maxLine+1<<17 {
			t.Errorf("a line of %d bytes is held back", len(line))
		}
	}
}

func TestStatus(t *testing.T) {
	for _, w := range installed(t) {
		for _, tc := range []struct {
			rank, how string
			status    int
		}{{"0", "1", 1}, {"1", "7", 7}, {"2", "75", 75}, {"1", "kill", 137}} {
			if w.name == "mpich" && tc.how == "kill" {
				tc.status = -1 // Hydra gives the signal as a status, 9, or trips over itself
			}
			_, errs, status := result(t, launchCommand(t, "run", "--launcher", w.name, "-np", "3", "--oversubscribe",
				"--", self(t), "program", "fail", tc.rank, tc.how))
			if status != tc.status && (tc.status >= 0 || status == 0) {
				t.Errorf("%s, rank %s, %s: status %d, want %d\n%s", w.name, tc.rank, tc.how, status, tc.status, errs)
			}
		}
	}
}

// job is a running launch whose output is looked at while it runs.
type running struct {
	cmd    *exec.Cmd
	lines  *bufio.Scanner
	all    strings.Builder
	marker string
	tmp    string // its TMPDIR
}

// startJob starts launch with a word in the environment by which all of its processes can be found.
func startJob(t *testing.T, args ...string) *running {
	t.Helper()
	return startCommand(t, launchCommand(t, args...))
}

// startCommand starts a command that becomes launch.
func startCommand(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	r := &running{cmd: cmd, marker: "PLAN_TEST_MARK=" + t.TempDir(), tmp: t.TempDir()}
	r.cmd.Env = append(r.cmd.Env, r.marker, "TMPDIR="+r.tmp)
	out, err := r.cmd.StdoutPipe()
	testkit.Must(t, err)
	r.cmd.Stderr = &r.all
	r.lines = bufio.NewScanner(out)
	testkit.Must(t, r.cmd.Start())
	t.Cleanup(func() {
		if r.cmd.ProcessState == nil { // the test has failed
			_ = r.cmd.Process.Kill()
			_ = r.cmd.Wait()
			r.awaitNone(t)
		}
		for _, pid := range r.alive() {
			t.Errorf("process %d is left", pid)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return r
}

// await reads until n more lines hold text.
func (r *running) await(t *testing.T, n int, text string) {
	t.Helper()
	for n > 0 {
		if !r.lines.Scan() {
			t.Fatalf("ended before %q came: %s", text, r.all.String())
		}
		if strings.Contains(r.lines.Text(), text) {
			n--
		}
	}
}

func (r *running) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	testkit.Must(t, r.cmd.Process.Signal(sig))
}

func (r *running) status(t *testing.T) int {
	t.Helper()
	for r.lines.Scan() {
	}
	_ = r.cmd.Wait()
	return r.cmd.ProcessState.ExitCode()
}

// alive lists the processes of the job.
func (r *running) alive() []int {
	return process.Having(process.PIDs(), r.marker)
}

// awaitNone waits until no process of the job is left: the kernel and mpirun need a moment for it.
func (r *running) awaitNone(t *testing.T) {
	for deadline := time.Now().Add(mpirun.Limit(t)); len(r.alive()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return // the cleanup reports it
		}
	}
}

// noFiles fails the test where launch has left something in its TMPDIR, or what it started.
func (r *running) noFiles(t *testing.T) {
	t.Helper()
	if left, err := filepath.Glob(filepath.Join(r.tmp, "*/*")); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

func TestSignals(t *testing.T) {
	for _, w := range installed(t) {
		for name, sig := range map[string]syscall.Signal{
			"hangup": syscall.SIGHUP, "interrupt": syscall.SIGINT, "terminated": syscall.SIGTERM,
			"quit": syscall.SIGQUIT, "user defined signal 1": syscall.SIGUSR1, "user defined signal 2": syscall.SIGUSR2,
		} {
			t.Run(w.name+" "+name, func(t *testing.T) {
				t.Parallel()
				r := startJob(t, "run", "--launcher", w.name, "-np", "2", "--", self(t), "program", "signals", "1",
					"any")
				r.await(t, 2, "ready")
				r.signal(t, sig)
				r.await(t, 2, "got "+name)
				if status := r.status(t); status != 0 {
					t.Errorf("status %d: %s", status, r.all.String())
				}
			})
		}
		children := func(t *testing.T, r *running) {
			for _, p := range process.Below(r.cmd.Process.Pid) {
				if p.Parent == r.cmd.Process.Pid {
					_ = syscall.Kill(p.PID, syscall.SIGKILL)
				}
			}
		}
		for _, tc := range []struct {
			name   string
			terms  int // that the ranks take, and say so
			ends   string
			last   func(t *testing.T, r *running)
			status int
			files  bool // may be left
		}{
			{"twice", 2, "2", nil, 0, true},
			{"three times", 2, "99", func(t *testing.T, r *running) { r.signal(t, syscall.SIGINT) }, 128 + 9, true},
			{"mpirun killed", 0, "99", children, 128 + 9, false},
			{"launch killed", 0, "99", func(t *testing.T, r *running) { r.signal(t, syscall.SIGKILL) }, -1, false},
		} {
			t.Run(w.name+" "+tc.name, func(t *testing.T) {
				t.Parallel()
				r := startJob(t, "run", "--launcher", w.name, "-np", "2", "--", self(t), "program", "signals", tc.ends)
				r.await(t, 2, "ready")
				for range tc.terms {
					r.signal(t, syscall.SIGTERM)
					r.await(t, 2, "got terminated")
				}
				if tc.last != nil {
					tc.last(t, r)
				}
				if status := r.status(t); status != tc.status {
					t.Errorf("status %d: %s", status, r.all.String())
				}
				if !tc.files && w.name != "openmpi5" {
					r.awaitNone(t)
					r.noFiles(t)
				}
			})
		}
	}
}

// TestBadInput has what people type wrongly. Each is refused on one line, with
// status 2, before anything starts.
func TestBadInput(t *testing.T) {
	installed(t)
	dir := t.TempDir()
	prog := writeFile(t, dir+"/prog", "#!/bin/sh\n", 0o755)
	writeFile(t, dir+"/data", "#!/bin/sh\n", 0o644)
	writeFile(t, dir+"/text", "not a program", 0o755)
	writeFile(t, dir+"/empty", "# no host\n\n", 0o644)
	writeFile(t, dir+"/odd", "a slots=2 max_slots=4\n", 0o644)
	alien, err := os.ReadFile(self(t))
	testkit.Must(t, err)
	alien[18], alien[19] = 2, 0 // e_machine of SPARC, which Go does not run on
	writeFile(t, dir+"/alien", string(alien), 0o755)
	for _, tc := range []struct {
		args string
		env  string
		want string
	}{
		{"run", "", "the program is missing: launch run -np 2 -- bin/train"},
		{"plan -np 2 --", "", "the program is missing: launch plan"},
		{"run -np 2 " + prog + " --model x", "",
			"-- is missing before the program: launch run -np 2 -- " + prog + " --model x"},
		{"run -- -np 2 " + prog, "", "-np stands behind --, where the program is expected: put it before --"},
		{"run --oversubcribe -- " + prog, "",
			"unknown flag: --oversubcribe; did you mean --oversubscribe? (flags of the program stand behind --)"},
		{"run -np x -- " + prog, "", `invalid argument "x" for "-n, --np" flag`},
		{"run -np -1 -- " + prog, "", "-np -1: give a number from 1"},
		{"run -np 0 -- " + prog, "", "--np 0: give a number from 1"},
		{"run --launcher lam -- " + prog, "", "--launcher lam: unknown, want auto, openmpi4"},
		{"run --launcher all -- " + prog, "", "--launcher all is for launch plan"},
		{"run --launcher slurm -- " + prog, "", "srun needs an allocation: type salloc --nodes=1 first"},
		{"run --restarts -1 -- " + prog, "", "--restarts -1: give a number from 0"},
		{"run --min-ranks 0 -H a,b -- " + prog, "", "--min-ranks 0: give a number from 1"},
		{"run --min-ranks 5 -H a:2,b:2 -- " + prog, "", "--min-ranks 5 is more than the 4 ranks"},
		{"run --min-ranks 1 -np 2 -- " + prog, "",
			"--min-ranks is for several hosts, of which one may be left out: add -H"},
		{"run --restarts 9 -np 1 -- ./missing", "", "./missing does not exist: build it first"},
		{"run -np 1 -- ./missing", "", "./missing does not exist: build it first"},
		{"run -np 1 -- missing", "", "missing is not in PATH: give the path of the program, such as bin/missing"},
		{"run -np 1 -- prog", "", "prog is not in PATH, but in this folder: type ./prog"},
		{"run -np 1 -- ./data", "", "./data is not executable: chmod +x ./data"},
		{"run -np 1 -- " + dir, "", dir + " is a folder"},
		{"run -np 1 -- ./text", "", "./text is neither a program of this system nor a script"},
		{"run -np 1 -- ./alien", "", "./alien is built for EM_SPARC, and this machine is "},
		{"run -np 1000 -- " + prog, "OMPI_MCA_rmaps_base_oversubscribe=0 PRTE_MCA_rmaps_default_mapping_policy=",
			"1000 ranks, but "},
		{"run -np 9 --nodes 2 --ranks-per-node 4 -- " + prog, "", "-np 9 is more than 2 nodes of 4 ranks"},
		{"run -np 5 -H a:2,b:2 -- " + prog, "", "-np 5 is more than 2 nodes of 2 ranks"},
		{"run --ranks-per-node 4 -H a:2,b:2 -- " + prog, "", "a has 2 slots, for 4 ranks: give -H a:4"},
		{"run --nodes 3 -H a,b -- " + prog, "", "--nodes 3, but 2 hosts are named"},
		{"run --nodes 2 -- " + prog, "", "--nodes 2, and no hosts: add -H"},
		{"run -np 2 -H no-such-host.invalid,localhost -- " + prog, "", "host no-such-host.invalid is not known here"},
		{"run -np 2 -H a_b,localhost -- " + prog, "", `the host name "a_b" has more than letters, digits and -`},
		{"run -np 30 --oversubscribe -- " + prog, "ulimit=100",
			"processes may have 100 files open (ulimit -n), and Open MPI needs 152"},
		{"run -H a,,b -- " + prog, "", "a host has no name"},
		{"run -H a:b -- " + prog, "", `"b" is no number of slots`},
		{"run -H a --hostfile b -- " + prog, "", "give -H or --hostfile, not both"},
		{"run --hostfile missing -- " + prog, "", "--hostfile: open missing: no such file"},
		{"run --hostfile empty -- " + prog, "", "--hostfile empty names no host"},
		{"run --hostfile odd -- " + prog, "", "odd: \"a slots=2 max_slots=4\" is not understood"},
		{"run --logs data/x -np 1 -- " + prog, "", "--logs: mkdir"},
		{"run --logs= -np 1 -- " + prog, "", "--logs: give auto, prefix, pipe, plain or the name of a folder"},
		{"run -np 1 -- " + prog, "SLURM_JOB_ID=7", "SLURM_JOB_ID=7, but the allocation has no nodes"},
		{"run -np 1 -- " + prog, "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2",
			"openmpi4 has already started this as rank 1 of 2"},
		{"run -np 1 -- " + prog, "PATH=/nothing",
			"no mpirun of Open MPI or MPICH is in PATH: apt-get install openmpi-bin"},
		{"run --launcher mpich -np 1 -- " + prog, "PATH=/nothing",
			"no mpirun of MPICH is in PATH: apt-get install mpich"},
		{"run --launcher openmpi5 -np 1 -- " + prog, "PATH=/nothing", "no mpirun of openmpi5 is in PATH"},
	} {
		cmd := launchCommand(t, strings.Fields(tc.args)...)
		if n, ok := strings.CutPrefix(tc.env, "ulimit="); ok {
			cmd.Path = "/bin/sh"
			cmd.Args = append([]string{"sh", "-c", "ulimit -Sn " + n + `; exec "$@"`, "sh"}, cmd.Args...)
		}
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), strings.Fields(tc.env)...)
		out, errs, status := result(t, cmd)
		if status != 2 || out != "" || strings.Count(errs, "\n") != 1 ||
			!strings.HasPrefix(errs, "launch: "+tc.want) && !strings.Contains(errs, tc.want) {
			t.Errorf("%s %s: status %d, %q, want 2, %q", tc.env, tc.args, status, out+errs, tc.want)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, name := range []string{"plan", "run"} {
		out, errs, status := result(t, launchCommand(t, name, "--help"))
		if status != 0 || !strings.Contains(out, "--oversubscribe") || strings.Contains(out, "--facts") {
			t.Errorf("%s --help: status %d:\n%s%s", name, status, out, errs)
		}
	}
}
