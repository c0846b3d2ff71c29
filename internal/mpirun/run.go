package mpirun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Variables that the parent sets for the ranks it starts.
const (
	envTest = "LOCKSTEP_MPIRUN_TEST" // full name of the test that the rank is to run
	envDir  = "LOCKSTEP_MPIRUN_DIR"  // where each rank writes its output
)

// Lines by which a rank tells the parent how it ended, each on a line of its own in the rank's output.
const (
	markFailed  = "lockstep-mpirun: failed"
	markSkipped = "lockstep-mpirun: skipped"
	markPassed  = "lockstep-mpirun: passed"
)

// Of a failing job's output.
const (
	shownLines = 60
	shownBytes = 1 << 20 // that are read of each end of a rank's output
)

// Timeout is how long one job may run, 0 as long as the test binary (go test -timeout). A rank that is still inside fn
// shortly before prints its goroutines and fails.
var Timeout time.Duration

// noDeadline is the limit of a job where the test binary has none: what go test gives it by default.
const noDeadline = 10 * time.Minute

// Limit is how long a job that t starts now may run, so that t can still tell how it went.
func Limit(t *testing.T) time.Duration {
	limit := noDeadline
	if end, ok := t.Deadline(); ok {
		limit = time.Until(end) - 2*stopGrace
	}
	if Timeout > 0 {
		limit = min(limit, Timeout)
	}
	return limit
}

// OnFail ends the job from a rank whose fn failed, on all ranks; MPI_Abort does. Nil, or a return from it, exits this
// process with status 1, at which mpirun ends the others.
var OnFail func()

// Run runs fn on every rank of a job, once for each number of ranks, as subtests of t.
//
// It starts this test binary again under mpirun for the calling test alone; in those processes it calls fn and nothing
// else. So the test does the same on every rank until it gets here, and fn starts and stops MPI itself.
//
// A rank on which fn fails, panics or dies ends the whole job at once, whatever the other ranks wait in, and the
// output of the failing ranks becomes that of the test. A job in which every rank skipped is skipped. The failure is
// noticed when fn returns or stops: an fn that goes on after t.Error, or after a failed t.Run, into a collective that
// the others do not enter ends by Timeout only.
func Run(t *testing.T, ranks []int, fn func(t *testing.T)) {
	t.Helper()
	if os.Getenv(envTest) == t.Name() {
		child(t, fn)
		return
	}
	for _, n := range ranks {
		name := fmt.Sprintf("%d ranks", n)
		if n == 1 {
			name = "1 rank"
		}
		test := t.Name()
		t.Run(name, func(t *testing.T) { parent(t, test, n) })
	}
}

// parent runs the named test on n ranks and reports as t how it went.
func parent(t *testing.T, test string, n int) {
	limit := Limit(t)
	if limit <= 0 {
		t.Fatal("no time left before the deadline of the test binary")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()

	dir := t.TempDir()
	cmd := Command(ctx, n, os.Args[0], childArgs(test, limit)...)
	cmd.Env = append(cmd.Env, envTest+"="+test, envDir+"="+dir)
	var own bytes.Buffer // what mpirun says, and a rank before it reaches fn
	cmd.Stdout, cmd.Stderr = &own, &own
	err := cmd.Start()
	if err != nil {
		t.Fatalf("a test on several ranks needs MPI's launcher: %v", err)
	}
	err = cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // whatever mpirun left behind in its group

	out := make([]string, n)
	passed, skipped := 0, 0
	for r := range out {
		out[r], _ = readEnds(rankFile(dir, r), shownBytes) // a rank that never got to fn has none
		switch {
		case hasLine(out[r], markPassed):
			passed++
		case hasLine(out[r], markSkipped):
			skipped++
		}
	}
	switch {
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		t.Fatalf("still running after %v\n%s", limit, report(out, own.String()))
	case err != nil:
		t.Fatalf("mpirun: %v\n%s", err, report(out, own.String()))
	case skipped == n:
		t.Skip(strings.Join(clean(out[0]), "\n"))
	case passed+skipped != n:
		t.Fatalf("%d ranks were to run %s, %d did\n%s", n, test, passed+skipped, report(out, own.String()))
	}
}

// childArgs are the flags with which the test binary runs exactly the named test.
func childArgs(test string, limit time.Duration) []string {
	parts := strings.Split(test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	// The rank's own timeout comes first, so that it can say where it hangs and mpirun can end the others.
	own := limit - min(limit/2, stopGrace)
	args := []string{"-test.run=" + strings.Join(parts, "/"), "-test.v", "-test.count=1", "-test.timeout=" + own.String()}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	return args
}

// child runs fn as one rank.
func child(t *testing.T, fn func(t *testing.T)) {
	dieWithParent()
	if err := redirect(rankFile(os.Getenv(envDir), rank())); err != nil {
		t.Fatal(err)
	}
	end := func() {
		fmt.Println(markFailed)
		if OnFail != nil {
			OnFail()
		}
		os.Exit(1)
	}
	// Before the test's own clean-ups, one of which may stop MPI and so wait for ranks that wait for this one.
	defer func() {
		if r := recover(); r != nil {
			fmt.Printf("panic: %v\n%s\n", r, debug.Stack())
			end()
		}
		if t.Failed() {
			end()
		}
	}()
	// And after them, since they may fail as well.
	t.Cleanup(func() {
		switch {
		case t.Failed():
			end()
		case t.Skipped():
			fmt.Println(markSkipped)
		default:
			fmt.Println(markPassed)
		}
	})
	fn(t)
}

// rank is this process's number as its launcher gave it: Open MPI, PMIx, MPICH's Hydra, Slurm.
func rank() int {
	for _, name := range []string{"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"} {
		if r, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return r
		}
	}
	return 0
}

func rankFile(dir string, rank int) string { return filepath.Join(dir, "rank."+strconv.Itoa(rank)) }

// redirect makes path the standard output and error of this process, C code and the Go runtime included.
func redirect(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	for _, fd := range []int{1, 2} {
		if err := syscall.Dup3(int(f.Fd()), fd, 0); err != nil {
			return os.NewSyscallError("dup3", err)
		}
	}
	return f.Close()
}

// dieWithParent has the kernel kill this process when mpirun dies, so that a killed job leaves nothing behind.
func dieWithParent() {
	const prSetPdeathsig = 1
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetPdeathsig, uintptr(syscall.SIGKILL), 0)
}

// readEnds returns the contents of a file, of more than 2n bytes only the first n and the last n.
func readEnds(file string, n int64) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	left := st.Size() - 2*n
	if left <= 0 {
		b, err := io.ReadAll(io.LimitReader(f, 2*n))
		return string(b), err
	}
	b := make([]byte, 2*n)
	if _, err := f.ReadAt(b[:n], 0); err != nil {
		return "", err
	}
	if _, err := f.ReadAt(b[n:], n+left); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s\n... %d bytes left out ...\n%s", b[:n], left, b[n:]), nil
}

func hasLine(out, line string) bool { return strings.Contains("\n"+out, "\n"+line+"\n") }

// report is what a person needs of a failed job: the output of the ranks that failed, or of all where none got to say
// so, and then what mpirun itself had to say, which names a rank that was killed.
func report(out []string, own string) string {
	var ranks []int
	for r := range out {
		if hasLine(out[r], markFailed) {
			ranks = append(ranks, r)
		}
	}
	said := clean(own)
	if len(ranks) == 0 {
		if len(said) == 0 { // only mpirun knows why, so that nothing of it is noise
			said = strings.Split(strings.TrimSpace(own), "\n")
		}
		for r := range out {
			ranks = append(ranks, r)
		}
	}
	var b strings.Builder
	for _, r := range ranks {
		for _, line := range ends(clean(out[r]), max(shownLines/len(ranks), 8)) {
			fmt.Fprintf(&b, "rank %d| %s\n", r, line)
		}
	}
	for _, line := range ends(said, shownLines/3) {
		fmt.Fprintf(&b, "mpirun| %s\n", line)
	}
	return b.String()
}

// noise is what neither explains a failure nor was printed by the test: the frames of go test and of mpirun.
var noise = regexp.MustCompile(`^(=== (RUN|CONT|PAUSE|NAME) .*|lockstep-mpirun: .*|-{20,}|={20,}|\s*|` +
	`MPI_ABORT was invoked on .*|with errorcode .*|NOTE: invoking MPI_ABORT .*|You may or may not see .*|exactly when Open MPI kills them\.|` +
	`Primary job  ?terminated normally.*|a non-zero exit code.*|mpirun detected that one or more processes exited.*|thus causing the job to be terminated.*|the job to be terminated\. The first process.*)$`)

// frame is the first line of a stack frame that belongs to the harness; the second begins with a tab.
var frame = regexp.MustCompile(`^(testing\.|created by testing\.|main\.main\(|runtime/debug\.Stack|lockstep/internal/mpirun\.(child|Run)\b)`)

// clean returns the lines of out that are worth showing.
func clean(out string) []string {
	var lines []string
	skip := false
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\r\n")
		if skip = frame.MatchString(line) || skip && strings.HasPrefix(line, "\t"); !skip && !noise.MatchString(line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// ends keeps the first and the last of more than n lines: a crash explains itself at its head, a test at its end.
func ends(lines []string, n int) []string {
	if len(lines) <= n {
		return lines
	}
	head := n / 2
	tail := n - 1 - head
	cut := fmt.Sprintf("... %d lines left out ...", len(lines)-head-tail)
	return append(append(lines[:head:head], cut), lines[len(lines)-tail:]...)
}
