package spmdtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockstep/internal/launcher"
	"lockstep/internal/mpirun"
)

// programEnv makes the test binary the program under test.
const programEnv = "SPMDTEST_PROGRAM"

// runsEnv is "LOCKSTEP_RUNS". Tests of a program do not leave folders of runs beside its sources.
const runsEnv = "LOCKSTEP_RUNS"

// Main is the TestMain of a package whose tests share jobs, see Run, or start the program itself
// with Program. program is the package's main function; it is nil if no test starts it. Main does
// not return.
//
//	func TestMain(m *testing.M) { spmdtest.Main(m, main) }
func Main(m *testing.M, program func()) {
	if os.Getenv(runsEnv) == "" {
		if err := os.Setenv(runsEnv, "off"); err != nil {
			panic(err)
		}
	}
	if os.Getenv(programEnv) != "" {
		program()
		os.Exit(0)
	}
	describeKernels()
	os.Exit(mpirun.Main(m))
}

// Ended is how a program ended and what it wrote.
type Ended struct {
	// mpirun's status, which is the first failed rank's; -1 after a signal, which Stderr names
	Status int
	Stdout string
	Stderr string // without mpirun's own words, where the ranks say why they fail
}

// Result decodes the result of a run that --json - has written: the line of Stdout that has
// "summary": true, beside what the program has emitted on its way.
func (e Ended) Result(v any) error {
	for line := range strings.Lines(e.Stdout) {
		var mark struct{ Summary any }
		if json.Unmarshal([]byte(line), &mark) == nil && mark.Summary == true {
			return json.Unmarshal([]byte(line), v)
		}
	}
	return fmt.Errorf(`no line with "summary": true; status %d, standard output %q, standard error %q`, e.Status,
		e.Stdout, e.Stderr)
}

// Command returns the command that runs the program given to Main, with args, on a number of ranks;
// 0 ranks means without mpirun. env adds variables such as "NAME=value". Unless args say otherwise
// the program runs on Device, and with several ranks a collective that hangs is reported after
// Timeout. It skips the test if SPMDTEST_RANKS allows fewer ranks.
func Command(ctx context.Context, t *testing.T, ranks int, env []string, args ...string) *exec.Cmd {
	t.Helper()
	mpirun.Job(t)
	if most, err := strconv.Atoi(os.Getenv("SPMDTEST_RANKS")); err == nil && ranks > most {
		t.Skipf("SPMDTEST_RANKS=%d, and this starts %d ranks", most, ranks)
	}
	// behind the name of a command
	at := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "-") })
	if at < 0 {
		at = len(args)
	}
	type setting struct{ flag, value string }
	settings := []setting{{"--device", Device()}}
	if ranks > 1 {
		settings = append(settings, setting{"--timeout", timeout().String()})
	}
	for _, usual := range settings {
		if !slices.ContainsFunc(args, func(a string) bool {
			return a == usual.flag || strings.HasPrefix(a, usual.flag+"=")
		}) {
			args = slices.Insert(slices.Clone(args), at, usual.flag+"="+usual.value)
		}
	}
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = os.Environ()
	if ranks > 0 {
		cmd = mpirun.Command(ctx, ranks, os.Args[0], args...)
	}
	cmd.Env = append(append(cmd.Env, programEnv+"=1"), env...)
	return cmd
}

// Program runs Command and returns how it ended. It fails the test if the program does not end by
// itself, see mpirun.Limit. If only Open MPI's own end goes wrong it runs again, see mpirun.Again.
// If a --timeout is too short for the start on a busy machine, it runs again with twice as much.
func Program(t *testing.T, ranks int, env []string, args ...string) Ended {
	t.Helper()
	var e Ended
	mpirun.Again(t, func() (own string) {
		e, own = program(t, ranks, env, args)
		for args := slices.Clone(args); lengthen(args, e.Stderr); {
			e, own = program(t, ranks, env, args)
		}
		return own
	})
	return e
}

// lengthen doubles the --timeout of args in which the start has not ended, unless it is a long one.
func lengthen(args []string, stderr string) bool {
	i := slices.Index(args, "--timeout") + 1
	if i == 0 || i == len(args) {
		return false
	}
	limit, err := time.ParseDuration(args[i])
	if err != nil || limit >= timeout() || !strings.Contains(stderr, "the start has not ended in "+limit.String()) {
		return false
	}
	args[i] = (2 * limit).String()
	return true
}

func program(t *testing.T, ranks int, env []string, args []string) (e Ended, own string) {
	t.Helper()
	started := mpirun.Turn()
	defer started()
	ctx := mpirun.Patience(t)
	cmd := Command(ctx, t, ranks, env, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &firstWrite{&out, started}, &firstWrite{&errs, started}
	err := mpirun.Start(cmd) // a thread of this process may end while the program runs
	if err == nil {
		own, err = mpirun.Wait(cmd, errs.String)
	}
	if ctx.Err() != nil {
		t.Fatalf("%v did not end by itself\n%s%s", args, &out, &errs)
	}
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if cmd.ProcessState.ExitCode() < 0 {
		fmt.Fprintf(&errs, "ended by %v\n", cmd.ProcessState) // a signal
	}
	return Ended{cmd.ProcessState.ExitCode(), out.String(), said(errs.String(), ranks)}, own
}

// said returns what the ranks of a program have written, without mpirun's words about the job's
// end, unless these say more.
func said(errs string, ranks int) string {
	var own strings.Builder
	frames, _ := launcher.SplitOutput(&own, strings.NewReader(errs))
	if own.Len() == 0 || launcher.ReadCause(frames, ranks).Signalled() {
		return errs
	}
	return own.String()
}

// firstWrite calls started at the first write, such as the line with which a job starts.
type firstWrite struct {
	to      io.Writer
	started func()
}

func (f *firstWrite) Write(b []byte) (int, error) {
	f.started()
	return f.to.Write(b)
}
