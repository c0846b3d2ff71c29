package spmd_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/mpirun"
	"lockstep/internal/process"
	"lockstep/internal/testkit"
	"lockstep/spmd/spmdtest"
)

const (
	// faultEnv is the folder of one run of a fault. It also marks the processes of
	// that run.
	faultEnv = "SPMD_TEST_FAULT"
	// faultSlack is the time that a busy machine may add, when make test-faults counts how long
	// rows take.
	faultSlack = 20 * time.Second
	// goneLimit is how long the processes of a job that has ended may take to go.
	goneLimit = 2 * time.Minute
)

// step is a signal from outside, when the program has said something.
type step struct {
	after string
	to    string // "mpirun" or "rank", the victim
	sig   syscall.Signal
}

func (f *mishap) size() int {
	if f.ranks == 0 {
		return someRanks()
	}
	return f.ranks
}

// someRanks are the ranks of a job for which any number but 1 will do: 4, or as many as
// SPMDTEST_RANKS asks for.
func someRanks() int {
	if n, err := strconv.Atoi(os.Getenv("SPMDTEST_RANKS")); err == nil && n > 1 {
		return n
	}
	return 4
}

func (f *mishap) victim() int {
	if f.first {
		return 0
	}
	return f.size() - 1
}

// TestFaults makes each kind of fault of the table happen once, in make test-all each fault, or
// LOCKSTEP_FAULTS times, and then prints the results. The job must say what happened, where and to
// whom, once. It must end in time with a status that is not 0, and leave no process and no file.
func TestFaults(t *testing.T) {
	t.Parallel()
	runs := 1
	s, many := os.LookupEnv("LOCKSTEP_FAULTS")
	if many {
		var err error
		if runs, err = strconv.Atoi(s); err != nil {
			t.Fatalf("LOCKSTEP_FAULTS=%s: want a number", s)
		}
	}
	rows := table()
	if !many {
		jobs := 0
		rows = testkit.Some(t, "rows of the table of faults", rows, func(f mishap) bool {
			if testkit.Quick() && !f.local && !f.more {
				jobs++
			}
			return !f.more && (f.local || jobs <= 1)
		})
	}
	for i := range rows {
		rows[i].local = rows[i].local && !many && !testkit.AllCases() && spmdtest.Device() == "host"
	}
	tallies := make([]tally, len(rows))
	t.Run("table", func(t *testing.T) {
		for i := range rows {
			t.Run(rows[i].name, func(t *testing.T) {
				t.Parallel()
				if rows[i].rare && !many {
					t.Skip("Open MPI's mpirun itself may hang: make test-faults counts how often")
				}
				if !rows[i].gpu {
					spmdtest.HostOnly(t, "GPUs have faults of their own")
				}
				spmdtest.Ranks(t, rows[i].size())
				if rows[i].apart != nil && exec.Command(rows[i].apart[0],
					append(rows[i].apart[1:], "true")...).Run() != nil {
					t.Skip("no namespace is allowed here")
				}
				if rows[i].shell != "" && exec.Command("unshare", "-m", "mount", "-t", "tmpfs", "tmpfs",
					"/dev/shm").Run() != nil {
					t.Skip("no mount is allowed here")
				}
				for range runs {
					row := rows[i].patient(time.Duration(busyTimeout.Load()))
					var took time.Duration
					var out string
					var err error
					mpirun.Again(t, func() (own string) {
						took, out, own, err = row.happen(t)
						for limit := 2 * faultTimeout; errors.Is(err, errBusy) &&
							limit <= spmdtest.Config().Timeout; limit *= 2 {
							busyTimeout.Store(int64(limit))
							row = rows[i].patient(limit)
							took, out, own, err = row.happen(t)
						}
						if err == nil {
							own = ""
						}
						return own
					})
					if late := row.within + faultSlack; many && err == nil && took > late {
						err = fmt.Errorf("it took %v, want %v", took, row.within)
					}
					tallies[i].runs++
					tallies[i].slowest = max(tallies[i].slowest, took)
					if err != nil {
						tallies[i].missed++
						t.Errorf("%v\n%s", err, out)
					} else if testing.Verbose() {
						t.Logf("%v after the fault\n%s", took, out)
					}
				}
			})
		}
	})
	if !many {
		return
	}
	fmt.Printf("%-44s %5s %7s %10s %8s\n", "fault", "runs", "missed", "slowest s", "limit s")
	for i, r := range tallies {
		fmt.Printf("%-44s %5d %7d %10.1f %8.0f\n", rows[i].name, r.runs, r.missed, r.slowest.Seconds(),
			rows[i].within.Seconds())
	}
}

// happen makes the fault happen once. took is from the fault to the end of the last process; own is
// Open MPI's own part of it.
func (f *mishap) happen(t *testing.T) (took time.Duration, said, own string, err error) {
	dir, err := os.MkdirTemp("", "fault")
	if err != nil {
		return 0, "", "", err
	}
	defer os.RemoveAll(dir)
	temp := filepath.Join(dir, "tmp")
	if err := os.Mkdir(temp, 0o777); err != nil {
		return 0, "", "", err
	}
	started := mpirun.Turn()
	defer started()
	ctx := mpirun.Patience(t)
	marker := faultEnv + "=" + dir
	env := []string{appEnv + "=fault " + f.name, marker, "TMPDIR=" + temp, timeoutEnv + "=" + f.timeout.String()}
	if f.double != "" {
		lib := testkit.BuildLibrary(t, dir, "libdouble.so", filepath.Join("testdata", f.double))
		env = append(env, strings.TrimSpace("LD_PRELOAD="+lib+" "+os.Getenv("LD_PRELOAD")),
			fmt.Sprintf("%s_RANK=%d", faultEnv, f.victim()))
	}
	args := slices.Clone(f.args)
	ranks := f.size()
	if f.local {
		args, ranks = append(args, "--ranks", strconv.Itoa(ranks)), 0
	}
	if f.alone {
		ranks = 0
	}
	if f.traced != nil {
		args = append(args, "--trace", filepath.Join(dir, "trace.json"))
	}
	cmd := spmdtest.Command(ctx, t, ranks, env, args...)
	if f.shell != "" {
		cmd.Args = append([]string{"unshare", "-m", "bash", "-c", f.shell + ` && exec "$@"`, "bash", cmd.Path},
			cmd.Args[1:]...)
		if cmd.Path, err = exec.LookPath("unshare"); err != nil {
			return 0, "", "", err
		}
	}
	if len(f.apart) > 0 {
		at := slices.Index(cmd.Args, os.Args[0])
		cmd.Args = slices.Insert(cmd.Args, at, f.apart...)
	}
	out := &testkit.Transcript{Started: started}
	cmd.Stdout, cmd.Stderr = out, out
	if err := mpirun.Start(cmd); err != nil {
		return 0, "", "", err
	}
	gone := false
	defer func() {
		if gone {
			return
		}
		for _, pid := range process.Having(process.PIDs(), marker) { // should not be there any more, after a failure
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}()
	ended := make(chan struct{})
	go func() {
		own, _ = mpirun.Wait(cmd, out.String) // the status says how
		close(ended)
	}()
	since := f.follow(cmd.Process.Pid, out, ended)
	<-ended
	said = out.String()
	if ctx.Err() != nil {
		return 0, said, own, errors.New("the job did not end")
	}
	b, err := os.ReadFile(filepath.Join(dir, "fault"))
	if len(f.steps) == 0 {
		info, serr := os.Stat(filepath.Join(dir, "fault"))
		if err := errors.Join(err, serr); err != nil {
			if strings.Contains(said, " has not ended in "+f.timeout.String()) {
				err = errBusy
			}
			return 0, said, own, fmt.Errorf("the fault did not happen: %w", err)
		}
		since = info.ModTime()
	} else if since.IsZero() {
		return 0, said, own, errors.New("the job ended before the signal")
	}
	left := awaitEnd(marker, time.Now().Add(goneLimit))
	took = time.Since(since)
	if len(left) > 0 {
		return took, said, own, fmt.Errorf("processes %v are left after %v", left, took)
	}
	gone = true
	status := cmd.ProcessState.ExitCode()
	err = errors.Join(f.judge(said, string(b), status), f.leftovers(dir))
	if err == nil && f.traced != nil {
		err = f.judgeTrace(t, filepath.Join(dir, "trace.json"))
	}
	return took, said, own, err
}

// judgeTrace looks whether a trace has calls of the ranks that the row names.
func (f *mishap) judgeTrace(t *testing.T, name string) error {
	if left, err := filepath.Glob(name + "?*"); err != nil || left != nil {
		return fmt.Errorf("%v is left, %v", left, err)
	}
	if _, err := os.Stat(name); err != nil {
		return err
	}
	file := readTrace(t, name)
	if file.Other.Ranks != f.size() {
		return fmt.Errorf("the trace is of %d ranks, want %d", file.Other.Ranks, f.size())
	}
	for rank := range f.size() {
		n := file.count(func(e *traceEvent) bool { return *e.Pid == rank && e.Ph == "X" && e.Cat == "collective" })
		if want := f.traced(f, rank); want != (n > 0) {
			return fmt.Errorf("the trace has %d collectives of rank %d; want some: %v", n, rank, want)
		}
	}
	return nil
}

func everyRank(*mishap, int) bool     { return true }
func others(f *mishap, rank int) bool { return rank != f.victim() }

// follow sends the signals of the row and returns when the last one went.
func (f *mishap) follow(mpirun int, out *testkit.Transcript, ended <-chan struct{}) (last time.Time) {
	for _, s := range f.steps {
		if !out.Wait(s.after, ended) {
			return time.Time{}
		}
		pid := mpirun
		if s.to == "rank" {
			pid, _ = strconv.Atoi(readyPID(out.String()))
		}
		if pid <= 0 || syscall.Kill(pid, s.sig) != nil {
			return time.Time{}
		}
		last = time.Now()
	}
	return last
}

// readyPID is the process that said that it is ready.
func readyPID(said string) string {
	_, pid, _ := strings.Cut(said, "ready ")
	pid, _, _ = strings.Cut(pid, ".")
	return pid
}

// judge compares the job's words with the row.
func (f *mishap) judge(said, pid string, status int) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	if pid == "" {
		pid = readyPID(said)
	}
	fill := strings.NewReplacer("{host}", host, "{pid}", pid, "{rank}", strconv.Itoa(f.victim()))
	var errs []error
	if (status == 0) != f.clean {
		errs = append(errs, fmt.Errorf("exit status %d", status))
	}
	if n := strings.Count(said, fill.Replace(f.cause)); f.cause != "" && n != 1 {
		errs = append(errs, fmt.Errorf("%q comes %d times, want once", fill.Replace(f.cause), n))
	}
	lacks := func(want []string) (errs []error) {
		for _, want := range want {
			if want = fill.Replace(want); !strings.Contains(said, want) {
				errs = append(errs, fmt.Errorf("%q is not said", want))
			}
		}
		return errs
	}
	if f.or == nil || len(lacks(f.or)) > 0 {
		errs = append(errs, lacks(f.want)...)
	}
	if f.never != "" && strings.Contains(said, f.never) {
		errs = append(errs, fmt.Errorf("%q is said", f.never))
	}
	if n := strings.Count(said, " ERR "); n > 1 {
		errs = append(errs, fmt.Errorf("%d causes, want one", n))
	}
	if n := strings.Count(said, "[running]:"); n > 1 {
		errs = append(errs, fmt.Errorf("%d stacks, want one", n))
	}
	return errors.Join(errs...)
}

// leftovers finds the files that a job has left: in its TMPDIR, and in /dev/shm under its number.
func (f *mishap) leftovers(dir string) error {
	var left []string
	entries, err := os.ReadDir(filepath.Join(dir, "tmp"))
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if f.alone || f.local && err == nil && len(left) == 0 {
		return nil // without mpirun, Open MPI's own folder stays
	}
	b, jerr := os.ReadFile(filepath.Join(dir, "job"))
	if err := errors.Join(err, jerr); err != nil {
		return err
	}
	if len(b) == 0 {
		return errors.New("the job did not say its number")
	}
	pattern := "/dev/shm/*" + string(b) + "*"
	if n, err := strconv.ParseUint(string(b), 10, 32); err == nil { // as Open MPI 4 puts it into names
		pattern = fmt.Sprintf("/dev/shm/*.%x.*", n)
	}
	shared, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	left = append(left, shared...)
	if left != nil {
		return fmt.Errorf("files are left: %q", left)
	}
	return nil
}

// awaitEnd waits until no process has the marker, or until late, and returns those that are left.
// Looking through all processes of a machine takes long: it waits for those that it has found
// alone, and then looks for others.
func awaitEnd(marker string, late time.Time) (left []int) {
	for {
		left = process.Having(process.PIDs(), marker)
		if len(left) == 0 || !time.Now().Before(late) {
			return left
		}
		for len(left) > 0 && time.Now().Before(late) {
			time.Sleep(10 * time.Millisecond)
			left = process.Having(left, marker)
		}
	}
}

// tally is the results of a row.
type tally struct {
	runs, missed int
	slowest      time.Duration
}

// errBusy is the error of a job which did not come to its fault within the short --timeout of its
// row: the machine was busy with other things.
var errBusy = errors.New("the row's --timeout is too short for this machine")

// busyTimeout is the longest --timeout that a row has needed so far, in ns; 0 for the usual one.
var busyTimeout atomic.Int64

// patient is the row with another --timeout than faultTimeout, unless it is shorter.
func (f mishap) patient(timeout time.Duration) mishap {
	f.timeout = max(timeout, faultTimeout)
	usual := faultTimeout.String()
	f.args = slices.Clone(f.args)
	if i := slices.Index(f.args, usual); i >= 0 {
		f.args[i] = f.timeout.String()
		f.within += 6 * (f.timeout - faultTimeout)
	}
	if said, ok := strings.CutSuffix(f.cause, "the start has not ended in "+usual); ok {
		f.cause = said + "the start has not ended in " + f.timeout.String()
	}
	return f
}
