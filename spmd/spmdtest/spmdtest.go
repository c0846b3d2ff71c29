// Package spmdtest runs test functions on several ranks.
//
//	func TestSum(t *testing.T) {
//		spmdtest.Run(t, []int{1, 2, 3}, func(t *testing.T, w *spmd.World) {
//			// ... the same on every rank
//		})
//	}
//
// Run starts the test binary again under mpirun. A package says once that its tests may share jobs:
//
//	func TestMain(m *testing.M) { spmdtest.Main(m, nil) }
//
// Then one job of n ranks runs all tests that want n ranks, one after another, and a test takes
// milliseconds. Each has a world of its own, shows its own name, output and time, and runs alone
// with -run. A rank that fails, panics or dies ends the job and the test within seconds. Its output
// is the test's; the next test starts another job.
//
// A test whose environment or working folder differs, by t.Setenv or t.Chdir, gets a job that was
// started with that. Variables whose names begin with SPMDTEST_ are passed to the ranks with the
// test instead. RunAlone and RunUnwatched always start a job. Without Main each test does.
//
// The ranks run the test from its beginning, in a process that may have run other tests: the lines
// before Run are executed on every rank too. A test restores with t.Cleanup what it changes in its
// process, such as a package variable.
//
// Tests run in host memory. These variables change that:
//
//   - SPMDTEST_DEVICE=cuda puts the same tests on GPUs; =emulate runs their kernels from the CUDA
//     source on the host
//   - SPMDTEST_COLLECTIVES=mpi has MPI carry their buffers
//   - SPMDTEST_SYMMETRIC=always has NCCL's symmetric kernels carry what they can
//   - SPMDTEST_RANKS=2 limits tests to that number of ranks
//   - SPMDTEST_CHECK=on, SPMDTEST_SUMMARY=on and SPMDTEST_TRACE=FILE are those flags
//
// make test-gpu sets SPMDTEST_DEVICE and SPMDTEST_TRACE.
//
// A collective that does not end within five minutes, or SPMDTEST_TIMEOUT, ends its job with a
// report of who is missing where. That does not limit slow tests: only a hang takes so long,
// however busy the machine.
package spmdtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"lockstep/cudampi"
	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
	"lockstep/spmd"
)

// Device returns the device that tests run on: host, or SPMDTEST_DEVICE.
func Device() string {
	if d := os.Getenv("SPMDTEST_DEVICE"); d != "" {
		return d
	}
	return "host"
}

// Ranks returns the numbers of ranks that SPMDTEST_RANKS allows: all if it is not set. If none is
// left it skips the test.
func Ranks(t *testing.T, ranks ...int) []int {
	t.Helper()
	return mpirun.Ranks(t, ranks...)
}

// HostOnly skips a test of the host's side of the framework, on other devices.
func HostOnly(t *testing.T, why string) {
	t.Helper()
	if Device() != "host" {
		t.Skip("on the host only: " + why)
	}
}

// timeout returns how long a collective may take in tests: five minutes, or SPMDTEST_TIMEOUT, such
// as 1h.
func timeout() time.Duration {
	text := os.Getenv("SPMDTEST_TIMEOUT")
	if text == "" {
		return 5 * time.Minute
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		panic(fmt.Sprintf("SPMDTEST_TIMEOUT=%s: want a duration such as 1h", text))
	}
	return d
}

// Config returns the configuration of a world for tests.
func Config() spmd.Config {
	return spmd.Config{Timeout: timeout(), Device: Device(), Collectives: os.Getenv("SPMDTEST_COLLECTIVES"),
		Symmetric: os.Getenv("SPMDTEST_SYMMETRIC"), LogLevel: "error", LogRanks: "all", Seed: 42,
		Check:   os.Getenv("SPMDTEST_CHECK"),
		Summary: os.Getenv("SPMDTEST_SUMMARY"), Trace: os.Getenv("SPMDTEST_TRACE")}
}

// Run runs fn on every rank of a job, once for each number of ranks, as subtests of t. On a rank, t
// reports to the test that called Run: t.Fatal on one rank ends all of them. The world is open
// while fn runs, under the watch of World.Watch, and closed after it. The lines before Run in the
// test are executed on every rank too. The job may have run other tests, and may run more: see the
// package.
func Run(t *testing.T, ranks []int, fn func(t *testing.T, w *spmd.World)) {
	t.Helper()
	if testkit.Quick() && !mpirun.IsRank() && !mpirun.Quick(t) && Device() == "host" {
		RunInProcess(t, ranks, fn)
		return
	}
	run(t, ranks, mpirun.Run, watched, fn)
}

// RunAlone is Run in a job of its own: for tests that change the process for good, or need one in
// which nothing else has run.
func RunAlone(t *testing.T, ranks []int, fn func(t *testing.T, w *spmd.World)) {
	t.Helper()
	run(t, ranks, mpirun.RunAlone, watched, fn)
}

// RunUnwatched is RunAlone without the watch, whose goroutines allocate and call the driver of a
// GPU: for tests that count these. A hang there ends with the test binary's time.
func RunUnwatched(t *testing.T, ranks []int, fn func(t *testing.T, w *spmd.World)) {
	t.Helper()
	run(t, ranks, mpirun.RunAlone, unwatched, fn)
}

// RunInProcess is Run for ranks that are goroutines of the test's process: see spmd.Local. It takes
// milliseconds, and is for tests that do not depend on processes, MPI or GPUs. fn runs on all ranks
// at the same time, so it guards what it changes outside of its World.
func RunInProcess(t *testing.T, ranks []int, fn func(t *testing.T, w *spmd.World)) {
	t.Helper()
	HostOnly(t, "the ranks are goroutines")
	for _, n := range Ranks(t, ranks...) {
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) {
			err := spmd.Local(t.Context(), Config(), n, func(_ context.Context, w *spmd.World) error {
				fn(t, w)
				return nil
			})
			switch {
			case t.Skipped() && !t.Failed():
				t.SkipNow()
			case err != nil:
				t.Error(err)
			}
		})
	}
}

// The watch of a test's world.
const unwatched, watched = false, true

func run(
	t *testing.T, ranks []int, start func(*testing.T, []int, func(*testing.T)), watch bool,
	fn func(t *testing.T, w *spmd.World),
) {
	t.Helper()
	start(t, ranks, func(t *testing.T) {
		if err := hold(); err != nil {
			t.Fatal(err)
		}
		w, err := spmd.Open(Config())
		if err != nil {
			t.Fatal(err)
		}
		if (Device() == "cuda") == w.OnHost() {
			t.Fatalf("SPMDTEST_DEVICE=%s, but the device is %s", Device(), w.Device())
		}
		mpirun.OnFail = func() { w.Abort(1) }
		if watch {
			if err := w.Watch(); err != nil {
				t.Fatal(err)
			}
		}
		defer func() { // after t.Skip, too
			if t.Failed() {
				return
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}()
		fn(t, w)
	})
}

// held is a world that lasts as long as a job that may run several tests: MPI starts once in a
// process, and stops with its last world. The GPU stays open, too.
var held *spmd.World

// hold opens held on a rank of such a job. Collective over all ranks, blocking.
func hold() error {
	if held != nil || !mpirun.AtEnd(letGo) {
		return nil
	}
	var err error
	held, err = spmd.Open(Config())
	return err
}

// letGo closes held, at which MPI stops. Collective over all ranks, blocking.
func letGo() error {
	if err := held.Close(); err != nil {
		return err
	}
	if cudampi.Running() {
		return errors.New("a test has left a World open, and MPI runs as long as there is one")
	}
	return nil
}
