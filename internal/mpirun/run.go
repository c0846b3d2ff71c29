package mpirun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/internal/testkit"
)

// Timeout is how long one job may run a test; 0 is its Limit. A rank that is inside fn then prints
// its goroutines and fails.
var Timeout time.Duration

// OnFail ends the job on all ranks, from a rank whose fn failed; MPI_Abort does so. If it is nil
// or returns, this process exits with status 1, at which mpirun ends the others. It is nil when
// a test begins.
var OnFail func()

// Ranks returns the numbers of ranks that SPMDTEST_RANKS allows, or all if it is not set. It skips
// the test if none is left.
func Ranks(t *testing.T, ranks ...int) []int {
	t.Helper()
	only := os.Getenv("SPMDTEST_RANKS")
	if only == "" {
		return ranks
	}
	n, err := strconv.Atoi(only)
	if err != nil {
		t.Fatalf("SPMDTEST_RANKS=%s: want a number", only)
	}
	if !slices.Contains(ranks, n) {
		t.Skipf("SPMDTEST_RANKS=%d, and this test is for %v ranks", n, ranks)
	}
	return []int{n}
}

// Run runs fn on every rank of a job, once for each number of ranks that SPMDTEST_RANKS allows, as
// subtests of t.
//
// The ranks are this test binary under mpirun. They run the calling test from its beginning and
// call fn where it calls Run, so the test does the same on every rank until there.
//
// In a package whose TestMain calls Main, one job runs all tests that want so many ranks in the
// same environment and working folder, one after another. Variables whose names begin with
// SPMDTEST_ belong to the test and do not count. A test must undo what it changes in its process by
// t.Cleanup; RunAlone is for tests that cannot. Elsewhere each test has a job of its own.
//
// A rank on which fn fails, panics or dies ends the whole job at once, wherever the other ranks
// wait. The output of the failing ranks becomes the test's, and the next test starts another job. A
// job in which every rank skipped is skipped.
//
// A failure is noticed when fn returns or stops. An fn that goes on after t.Error, or after a
// failed t.Run, into a collective that the others do not enter, ends only by Timeout.
func Run(t *testing.T, ranks []int, fn func(t *testing.T)) {
	t.Helper()
	run := alone
	if hasMain {
		run = together
	}
	each(t, ranks, fn, run)
}

// RunAlone is Run with a job for this test alone. It is for a test that ends MPI, counts what its
// process does, or leaves the process changed.
func RunAlone(t *testing.T, ranks []int, fn func(t *testing.T)) {
	t.Helper()
	if testkit.Quick() {
		testkit.Only(t, "tests with jobs of their own")
	}
	each(t, ranks, fn, alone)
}

// IsRank reports whether this process is a rank of a job of Run or RunAlone.
func IsRank() bool { return served.test != "" || os.Getenv(envTest) != "" }

func each(t *testing.T, ranks []int, fn func(*testing.T), run func(*testing.T, string, int) outcome) {
	t.Helper()
	if served.test == t.Name() || os.Getenv(envTest) == t.Name() {
		child(t, fn)
		return
	}
	Job(t)
	if Quick(t) {
		if !slices.Contains(ranks, quickRanks) || len(pool.jobs) > 0 && pool.jobs[0].place != place() {
			testkit.Only(t, "tests with other jobs than those before")
		}
		ranks = []int{quickRanks}
	}
	for _, n := range Ranks(t, ranks...) {
		name := fmt.Sprintf("%d ranks", n)
		if n == 1 {
			name = "1 rank"
		}
		test := t.Name()
		t.Run(name, func(t *testing.T) {
			run(t, test, n).judge(t, test)
		})
	}
}

// outcome is how a job ran a test.
type outcome struct {
	passed, skipped int  // ranks
	late            bool // it was ended by the limit, which is
	limit           time.Duration
	err             error // of mpirun, or of what stands for it
	out             []string
	own             string   // what mpirun says, and a rank before it reaches fn
	before          []string // tests that the job has run
}

func (o outcome) judge(t *testing.T, test string) {
	t.Helper()
	said := report(o.out, o.own)
	if len(o.before) > 0 {
		said += "The job had run " + list(o.before) + " before.\n"
	}
	switch {
	case o.late:
		t.Fatalf("still running after %v\n%s", o.limit, said)
	case o.err != nil:
		t.Fatalf("mpirun: %v\n%s", o.err, said)
	case o.skipped == len(o.out):
		t.Skip(strings.Join(clean(o.out[0]), "\n"))
	case o.passed+o.skipped != len(o.out):
		t.Fatalf("%d ranks were to run %s, %d did\n%s", len(o.out), test, o.passed+o.skipped, said)
	case testing.Verbose():
		t.Logf("\n%s", report(o.out, ""))
	}
}

const noLauncher = "a test on several ranks needs MPI's launcher: %v"

// alone runs the named test in a job of its own. It repeats the job if all ranks passed and only
// Open MPI's own end goes wrong: nothing else shows that they came through MPI_Finalize.
func alone(t *testing.T, test string, n int) (o outcome) {
	t.Helper()
	Again(t, func() (own string) {
		if o, own = aloneOnce(t, test, n); o.passed+o.skipped != n {
			own = ""
		}
		return own
	})
	return o
}

func aloneOnce(t *testing.T, test string, n int) (o outcome, ofOpenMPI string) {
	t.Helper()
	limit := limitOf(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit+reportGrace)
	defer cancel()

	dir := t.TempDir()
	cmd := Command(ctx, n, os.Args[0], childArgs(test, limit)...)
	cmd.Env = append(cmd.Env, envTest+"="+test, envDir+"="+dir)
	var own bytes.Buffer
	cmd.Stdout, cmd.Stderr = &own, &own
	err := Start(cmd)
	if err != nil {
		t.Fatalf(noLauncher, err)
	}
	ofOpenMPI, err = Wait(cmd, own.String)
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // this kills whatever mpirun left in its group

	o = outcome{late: errors.Is(ctx.Err(), context.DeadlineExceeded), limit: limit, err: err, out: outputs(dir, n),
		own: own.String()}
	for _, out := range o.out {
		switch {
		case hasLine(out, markPassed):
			o.passed++
		case hasLine(out, markSkipped):
			o.skipped++
		}
	}
	return o, ofOpenMPI
}

// outputs returns what the ranks of a job have written. One that never reached fn has none.
func outputs(dir string, n int) []string {
	out := make([]string, n)
	for r := range out {
		out[r], _ = readEnds(rankFile(dir, r), shownBytes)
	}
	return out
}

// childArgs are the flags with which the test binary runs exactly the named test.
func childArgs(test string, limit time.Duration) []string {
	return append(rankArgs(), "-test.run="+exactly(test), "-test.timeout="+limit.String())
}

// rankArgs are the flags of every rank.
func rankArgs() []string {
	args := []string{"-test.v", "-test.count=1"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	return append(args, testkit.CoverFlags()...)
}

// exactly returns the pattern of -test.run for one test.
func exactly(test string) string {
	parts := strings.Split(test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// limitOf returns the Limit of a test that is to run on ranks now. A rank that reaches it says
// where it hangs, and mpirun ends the others.
func limitOf(t *testing.T) time.Duration {
	t.Helper()
	if Timeout > 0 {
		return Timeout
	}
	limit := Limit(t)
	if limit <= 0 {
		t.Fatal("no time left before the deadline of the test binary")
	}
	return limit
}
