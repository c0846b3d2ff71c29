package spmdtest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestMain(m *testing.M) { spmdtest.Main(m, nil) }

func TestRun(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		x, err := spmd.Alloc[int64](w, 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := x.CopyFrom([]int64{1, int64(w.Rank())}); err != nil {
			t.Fatal(err)
		}
		if err := spmd.AllReduce(w.Comm, x, x, spmd.Sum); err != nil {
			t.Fatal(err)
		}
		n := int64(w.Size())
		if x.At(0) != n || x.At(1) != n*(n-1)/2 {
			t.Fatalf("rank %d of %d: got %d and %d", w.Rank(), n, x.At(0), x.At(1))
		}
	})
}

// TestSkip is skipped, with the reason, as its ranks are.
func TestSkip(t *testing.T) {
	ok := t.Run("inner", func(t *testing.T) {
		spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) { t.Skip("no device of this kind") })
	})
	if !ok {
		t.Error("a skipped test failed")
	}
}

// TestHelperHang hangs: rank 1 is in a collective that rank 0 never enters.
func TestHelperHang(t *testing.T) {
	if os.Getenv("SPMDTEST_TIMEOUT") == "" {
		t.Skip("helper of TestHangReport")
	}
	spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) {
		if w.Rank() == 0 {
			select {}
		}
		t.Fatal(spmd.Barrier(w.Comm))
	})
}

// A test that hangs in a collective ends with the framework's report, long before the
// test binary has to end.
func TestHangReport(t *testing.T) {
	spmdtest.Ranks(t, 2)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperHang$", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), "SPMDTEST_TIMEOUT=1s")
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
