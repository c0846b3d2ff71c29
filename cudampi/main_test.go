package cudampi_test

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"lockstep/cudampi"
	"lockstep/cudampi/commtest"
	"lockstep/internal/elem"
	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
)

func TestMain(m *testing.M) { commtest.Main(m) }

var onRanks = commtest.OnRanks

// alone runs fn in a process of its own, without mpirun, and returns the output of that. In that
// process it does not return.
func alone(t *testing.T, fn func(t *testing.T, c *cudampi.Comm)) ([]byte, error) {
	t.Helper()
	const env = "LOCKSTEP_CUDAMPI_ALONE"
	if os.Getenv(env) == t.Name() {
		c, err := cudampi.Start()
		commtest.Must(t, err)
		fn(t, c)
		os.Exit(0)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=50s")
	cmd.Env = append(mpirun.Env(1), env+"="+t.Name())
	return cmd.CombinedOutput()
}

var counts = []int{1, 2, 3, 4} // of ranks

func TestStart(t *testing.T) {
	mpirun.RunAlone(t, []int{1, 2}, func(t *testing.T) {
		c, err := cudampi.Start()
		commtest.Must(t, err)
		mpirun.OnFail = func() { c.Abort(1) }
		if again, err := cudampi.Start(); again != c || err != nil {
			t.Fatalf("a second Start gives %v, %v", again, err)
		}
		if !cudampi.Running() {
			t.Fatal("MPI does not run after Start")
		}
		if c.Rank() < 0 || c.Rank() >= c.Size() {
			t.Fatalf("rank %d of %d", c.Rank(), c.Size())
		}
		commtest.Must(t, cudampi.Stop())
		commtest.Must(t, cudampi.Stop())
		if cudampi.Running() {
			t.Fatal("MPI runs after Stop")
		}
		if _, err := cudampi.Start(); err == nil {
			t.Fatal("MPI starts twice")
		}
		if err := c.Barrier(); err == nil {
			t.Fatal("a Comm works after Stop")
		}
	})
}

// TestStartAlone is a program without mpirun: a world of one.
func TestStartAlone(t *testing.T) {
	out, err := alone(t, func(t *testing.T, c *cudampi.Comm) {
		if c.Rank() != 0 || c.Size() != 1 {
			t.Fatalf("rank %d of %d", c.Rank(), c.Size())
		}
		x := []float64{1, 2}
		commtest.Must(t, c.AllReduce(commtest.Ptr(x), commtest.Ptr(x), 2, elem.Float64, elem.Avg))
		commtest.Must(t, cudampi.Stop())
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestPanicsStayGo is about handlers for SIGSEGV, which MPI's transports install.
func TestPanicsStayGo(t *testing.T) {
	onRanks(t, []int{2}, func(t *testing.T, c *cudampi.Comm) {
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
	onRanks(t, []int{1}, func(t *testing.T, c *cudampi.Comm) {
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

// TestAware asks the library at hand, which has an answer and is not hurt by the question.
func TestAware(t *testing.T) {
	onRanks(t, []int{1}, func(t *testing.T, c *cudampi.Comm) {
		a, err := cudampi.CUDAAware()
		if err != nil || a.Reason == "" {
			t.Fatalf("%+v, %v", a, err)
		}
	})
}
