package spmdtest_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"lockstep/internal/mpirun"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestMain(m *testing.M) { spmdtest.Main(m, nil) }

func TestRun(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		x, err := spmd.Alloc[int64](w, 2)
		spmdtest.Must(t, err)
		spmdtest.Must(t, x.CopyFrom([]int64{1, int64(w.Rank())}))
		spmdtest.Must(t, spmd.AllReduce(w.Comm(), x, x, spmd.Sum))
		n := int64(w.Size())
		if x.At(0) != n || x.At(1) != n*(n-1)/2 {
			t.Fatalf("rank %d of %d: got %d and %d", w.Rank(), n, x.At(0), x.At(1))
		}
	})
}

// Every rank finds in the folder what the others have put there. It is gone after the test.
func TestTempDir(t *testing.T) {
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		var dir string
		t.Run("inner", func(t *testing.T) {
			dir = spmdtest.TempDir(t, w)
			spmdtest.Must(t, os.WriteFile(fmt.Sprintf("%s/%d", dir, w.Rank()), nil, 0o666))
			spmdtest.Must(t, spmd.Barrier(w.Comm()))
			if there, err := os.ReadDir(dir); err != nil || len(there) != w.Size() {
				t.Errorf("rank %d finds %v, %v", w.Rank(), there, err)
			}
			spmdtest.Must(t, spmd.Barrier(w.Comm()))
		})
		spmdtest.Must(t, spmd.Barrier(w.Comm()))
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	})
}

// The test is skipped, with the reason, as its ranks are.
func TestSkip(t *testing.T) {
	ok := t.Run("inner", func(t *testing.T) {
		spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) { t.Skip("no device of this kind") })
	})
	if !ok {
		t.Error("a skipped test failed")
	}
}

// helperEnv makes a test run use a helper, which fails. A user may set SPMDTEST_TIMEOUT, but not
// this.
const helperEnv = "SPMDTEST_TEST_HELPER"

// TestHelperHang hangs: rank 1 is in a collective that rank 0 never enters.
func TestHelperHang(t *testing.T) {
	if os.Getenv(helperEnv) == "" {
		t.Skip("helper of TestHangReport")
	}
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		if w.Rank() == 0 {
			select {}
		}
		t.Fatal(spmd.Barrier(w.Comm()))
	})
}

// TestHelperMiddle fails in its middle, on one rank while the others are in a collective.
func TestHelperMiddle(t *testing.T) {
	if os.Getenv(helperEnv) == "" {
		t.Skip("helper of TestFailureInTheMiddle")
	}
	for _, name := range []string{"before", "in the middle", "behind"} {
		t.Run(name, func(t *testing.T) {
			spmdtest.Run(t, []int{3}, func(t *testing.T, w *spmd.World) {
				if name == "in the middle" && w.Rank() == 1 {
					t.Fatal("rank 1 does not like it")
				}
				spmdtest.Must(t, spmd.Barrier(w.Comm()))
			})
		})
	}
}

// A test that fails on one rank ends on all of them at once, and the next one passes.
func TestFailureInTheMiddle(t *testing.T) {
	spmdtest.Ranks(t, 3)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperMiddle$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), helperEnv+"=1", "SPMDTEST_TIMEOUT=1h")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("a test that fails passes")
	}
	for _, want := range []string{"--- PASS: TestHelperMiddle/before/3_ranks",
		"--- FAIL: TestHelperMiddle/in_the_middle/3_ranks", "rank 1|     spmdtest_test.go",
		"rank 1 does not like it", "--- PASS: TestHelperMiddle/behind/3_ranks"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// A test that hangs in a collective ends with the framework's report, long before the
// test binary has to end.
func TestHangReport(t *testing.T) {
	spmdtest.Ranks(t, 2)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperHang$", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), helperEnv+"=1", "SPMDTEST_TIMEOUT=1s")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("a test that hangs passes")
	}
	for _, want := range []string{"Barrier", "spmdtest_test.go", "rank 0"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestHelperOpen leaves a World open on one rank.
func TestHelperOpen(t *testing.T) {
	if os.Getenv(helperEnv) == "" {
		t.Skip("helper of TestWorldLeftOpen")
	}
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		left, err := spmd.Open(spmdtest.Config())
		spmdtest.Must(t, err)
		if w.Rank() == 0 {
			spmdtest.Must(t, left.Close())
		}
	})
}

// A job whose test has left a World open does not end well, since MPI still runs there.
func TestWorldLeftOpen(t *testing.T) {
	spmdtest.Ranks(t, 2)
	spmdtest.HostOnly(t, "where GPUs reach each other, the rank that closes its World waits for the other")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperOpen$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), helperEnv+"=1", "SPMDTEST_TIMEOUT=1s")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--- PASS: TestHelperOpen/2_ranks") ||
		!strings.Contains(string(out), "rank 1| a test has left a World open") {
		t.Errorf("ended with %v\n%s", err, out)
	}
}

// Worlds that are closed as soon as they are watched: no rank is gone before another has joined.
func TestShortWorlds(t *testing.T) {
	spmdtest.Run(t, []int{3}, func(t *testing.T, w *spmd.World) {
		for range 100 {
			short, err := spmd.Open(spmdtest.Config())
			spmdtest.Must(t, err)
			spmdtest.Must(t, short.Watch())
			spmdtest.Must(t, short.Close())
		}
	})
}

// Few programs are in their start at once, whoever starts them. A second call of started does not
// count.
func TestTurn(t *testing.T) {
	var now, most atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			started := mpirun.Turn()
			for n := now.Add(1); n > most.Load(); {
				most.Store(n)
			}
			runtime.Gosched()
			now.Add(-1)
			started()
			started()
		})
	}
	wg.Wait()
	if n := most.Load(); n < 1 || n > 4 {
		t.Errorf("%d at once, want up to 4", n)
	}
}
