package cudampi

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"lockstep/internal/commtest"
	"lockstep/internal/elem"
	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
)

// onRanks runs fn on each number of ranks with MPI running, in a job that may run other tests. A
// rank that fails ends the job through MPI.
func onRanks(t *testing.T, ranks []int, fn func(t *testing.T, c *Comm)) {
	t.Helper()
	mpirun.Run(t, ranks, func(t *testing.T) {
		base, err := Start()
		commtest.Must(t, err)
		mpirun.OnFail = func() { base.Abort(1) }
		c, err := base.Dup()
		commtest.Must(t, err)
		fn(t, c)
		commtest.Must(t, c.Close())
		mpirun.AtEnd(Stop) // of a job that went well only: it waits for all ranks
	})
}

// alone runs fn in a process of its own, without mpirun, and returns the output of that. In that
// process it does not return.
func alone(t *testing.T, fn func(t *testing.T, c *Comm)) ([]byte, error) {
	t.Helper()
	const env = "LOCKSTEP_CUDAMPI_ALONE"
	if os.Getenv(env) == t.Name() {
		c, err := Start()
		commtest.Must(t, err)
		fn(t, c)
		os.Exit(0)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=50s")
	cmd.Env = append(mpirun.Env(1), env+"="+t.Name())
	return cmd.CombinedOutput()
}

var counts = []int{1, 2, 3, 4} // of ranks

// lower makes every call of more than a few elements take the paths for counts beyond MPI's, until
// the test ends.
func lower(t *testing.T) {
	old := []int{maxCount, maxHalf, maxSwap, sysLimitMessages(7)}
	maxCount, maxHalf, maxSwap = 7, 5, 3
	t.Cleanup(func() {
		maxCount, maxHalf, maxSwap = old[0], old[1], old[2]
		sysLimitMessages(old[3])
	})
}

func TestStart(t *testing.T) {
	mpirun.RunAlone(t, []int{1, 2}, func(t *testing.T) {
		c, err := Start()
		commtest.Must(t, err)
		mpirun.OnFail = func() { c.Abort(1) }
		if again, err := Start(); again != c || err != nil {
			t.Fatalf("a second Start gives %v, %v", again, err)
		}
		if !Running() {
			t.Fatal("MPI does not run after Start")
		}
		if c.Rank() < 0 || c.Rank() >= c.Size() {
			t.Fatalf("rank %d of %d", c.Rank(), c.Size())
		}
		commtest.Must(t, Stop())
		commtest.Must(t, Stop())
		if Running() {
			t.Fatal("MPI runs after Stop")
		}
		if _, err := Start(); err == nil {
			t.Fatal("MPI starts twice")
		}
		if err := c.Barrier(); err == nil {
			t.Fatal("a Comm works after Stop")
		}
	})
}

// TestStartAlone is a program without mpirun: a world of one.
func TestStartAlone(t *testing.T) {
	out, err := alone(t, func(t *testing.T, c *Comm) {
		if c.Rank() != 0 || c.Size() != 1 {
			t.Fatalf("rank %d of %d", c.Rank(), c.Size())
		}
		x := []float64{1, 2}
		commtest.Must(t, c.AllReduce(commtest.Ptr(x), commtest.Ptr(x), 2, elem.Float64, elem.Avg))
		commtest.Must(t, Stop())
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestPanicsStayGo is about handlers for SIGSEGV, which MPI's transports install.
func TestPanicsStayGo(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *Comm) {
		defer func() {
			if r := fmt.Sprint(recover()); r != "runtime error: invalid memory address or nil pointer dereference" {
				t.Fatalf("recovered %q", r)
			}
		}()
		var p *int
		*p = 1
	})
}

// TestSignalsStayGo has a test double beside MPI take signals when MPI starts, as libraries do that
// MPI loads.
func TestSignalsStayGo(t *testing.T) {
	const double = "libsignals.so"
	if others := os.Getenv("LD_PRELOAD"); !strings.Contains(others, double) { // else a rank
		t.Setenv("LD_PRELOAD", strings.TrimSpace(testkit.BuildLibrary(t, t.TempDir(), double,
			filepath.Join("testdata", "signals.c"))+" "+others))
	}
	onRanks(t, []int{1}, func(t *testing.T, c *Comm) {
		for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT,
			syscall.SIGTERM, syscall.SIGURG, syscall.SIGUSR1, syscall.SIGUSR2} {
			heard := make(chan os.Signal, 1)
			signal.Notify(heard, sig)
			commtest.Must(t, syscall.Kill(os.Getpid(), sig))
			select {
			case <-heard:
			case <-mpirun.Patience(t).Done():
				t.Fatalf("%v is not heard", sig)
			}
			signal.Stop(heard)
		}
	})
}

func TestVersion(t *testing.T) {
	for _, tc := range []struct{ library, want string }{
		{"Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022", "Open MPI 4.1.4"},
		{"MPICH Version:      4.0.2\nMPICH Release date: Thu Apr  7 12:34:45 CDT 2022\n", "MPICH 4.0.2"},
		{"Intel(R) MPI Library 2021.9 for Linux* OS\n", "Intel(R) MPI Library 2021.9 for Linux* OS"},
	} {
		if got := shortVersion(tc.library); got != tc.want {
			t.Errorf("%q is short for %q", got, tc.library)
		}
	}
	if v := Version(); v == "" {
		t.Error("the library has no version")
	}
}
