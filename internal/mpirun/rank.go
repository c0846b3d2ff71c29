package mpirun

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/coverage"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"lockstep/internal/testkit"
)

// The parent sets these variables for the ranks that it starts.
const (
	envTest = "LOCKSTEP_MPIRUN_TEST" // full name of the one test that the rank is to run
	envDir  = "LOCKSTEP_MPIRUN_DIR"  // where each rank writes its output
	envJob  = "LOCKSTEP_MPIRUN_JOB"  // the socket at which a rank of a shared job gets its orders
)

// By these lines a rank says how it ended, each on a line of its own in the rank's output.
const (
	markFailed  = "lockstep-mpirun: failed"
	markSkipped = "lockstep-mpirun: skipped"
	markPassed  = "lockstep-mpirun: passed"
)

// A rank of a shared job answers with these after it was told to end and has called
// AtEnd's functions.
const (
	saidLeft  = "left"  // it has come through MPI_Finalize
	saidEnded = "ended" // there was nothing to do
)

// order is the parent's message to a rank of a shared job, as one JSON value.
type order struct {
	Test    string   // full name; "" ends the rank, and once more lets it exit
	Timeout string   // of the rank
	Env     []string // the test's own variables
}

// answer is a rank's message: who it is, and then how each test ended.
type answer struct {
	Rank int
	Mark string // one of the marks, or of its last words; "" if the test did not reach Run
}

// served has the tests that this process runs as a rank of a shared job.
var served struct {
	test  string
	mark  string
	atEnd []func() error
}

// AtEnd makes a rank of a shared job call fn when the job has no more tests to run, before
// functions given earlier. An error of fn fails the run of the test binary. In any other process
// AtEnd does nothing and returns false.
//
// The functions stop MPI if tests start it: if all return nil, the rank came through MPI_Finalize.
func AtEnd(fn func() error) bool {
	if served.test == "" {
		return false
	}
	served.atEnd = append(served.atEnd, fn)
	return true
}

// serve runs tests as one rank of a shared job until the parent says that there are no more.
func serve(m *testing.M, address string) int {
	dieWithParent()
	dir := filepath.Dir(address)
	if err := os.Unsetenv(envJob); err != nil { // processes of this rank are no ranks of the job
		panic(err)
	}
	conn, err := net.Dial("unix", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	flag.Parse()
	in, out := json.NewDecoder(conn), json.NewEncoder(conn)
	if err := out.Encode(answer{Rank: rank()}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			return 1 // the parent has died
		}
		if err := redirect(rankFile(dir, rank())); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if o.Test == "" {
			said, err := end()
			if err != nil {
				fmt.Println(err)
				fmt.Println(markFailed)
				return 1 // the others may wait for what this rank has not done
			}
			if err := out.Encode(answer{rank(), said}); err != nil {
				return 1
			}
			if dir := testkit.CoverDir(); dir != "" { // package testing has written the first test's coverage
				if err := errors.Join(coverage.WriteMetaDir(dir), coverage.WriteCountersDir(dir)); err != nil {
					fmt.Println(err)
					return 1
				}
			}
			_ = in.Decode(&o) // no rank exits before all have reported: mpirun might end the others
			return 0
		}
		if err := serveOne(m, o); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if err := out.Encode(answer{rank(), served.mark}); err != nil {
			return 1
		}
	}
}

// serveOne runs one test.
func serveOne(m *testing.M, o order) error {
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, testPrefix) {
			if err := os.Unsetenv(name); err != nil {
				return err
			}
		}
	}
	for _, kv := range o.Env {
		name, value, _ := strings.Cut(kv, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	for name, value := range map[string]string{"test.run": exactly(o.Test), "test.timeout": o.Timeout} {
		if err := flag.Set(name, value); err != nil {
			return err
		}
	}
	OnFail = nil
	served.test, served.mark = o.Test, ""
	if m.Run() != 0 && served.mark != markFailed { // before Run, or behind it
		fmt.Println(markFailed)
		served.mark = markFailed
	}
	return nil
}

// end calls the functions of AtEnd, and returns this rank's last words.
func end() (said string, err error) {
	said = saidEnded
	for len(served.atEnd) > 0 {
		last := len(served.atEnd) - 1
		fn := served.atEnd[last]
		served.atEnd = served.atEnd[:last]
		if err := fn(); err != nil {
			return "", err
		}
		said = saidLeft
	}
	return said, nil
}

// child runs fn as one rank.
func child(t *testing.T, fn func(t *testing.T)) {
	if served.test == "" {
		dieWithParent()
		if err := redirect(rankFile(os.Getenv(envDir), rank())); err != nil {
			t.Fatal(err)
		}
	}
	end := func() {
		fmt.Println(markFailed)
		if OnFail != nil {
			OnFail()
		}
		os.Exit(1)
	}
	// This runs before the test's own clean-ups. One of them may stop MPI and so wait for ranks
	// that wait for this one.
	defer func() {
		if r := recover(); r != nil {
			fmt.Printf("panic: %v\n%s\n", r, debug.Stack())
			end()
		}
		if t.Failed() {
			end()
		}
	}()
	// This runs after them, since they may fail as well.
	t.Cleanup(func() {
		switch {
		case t.Failed():
			end()
		case t.Skipped():
			served.mark = markSkipped
		default:
			served.mark = markPassed
		}
		fmt.Println(served.mark)
	})
	fn(t)
}

// rank returns this process's number from its launcher: Open MPI, PMIx, MPICH's Hydra, Slurm.
func rank() int {
	for _, name := range []string{"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"} {
		if r, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return r
		}
	}
	return 0
}

func rankFile(dir string, rank int) string { return filepath.Join(dir, "rank."+strconv.Itoa(rank)) }

// redirect makes path, emptied, the standard output and error of this process, also of C code and
// the Go runtime.
func redirect(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0o666)
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

// dieWithParent makes the kernel kill this process when mpirun dies, so that a killed job leaves
// nothing behind.
func dieWithParent() {
	const prSetPdeathsig = 1
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetPdeathsig, uintptr(syscall.SIGKILL), 0)
}
