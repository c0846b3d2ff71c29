package spmd_test

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"lockstep/cuda/nvrtc"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// doublesEnv is the folder of the test doubles of libcuda and libnccl, and of the logs of the ranks
// that use them.
const doublesEnv = "SPMD_TEST_DOUBLES"

// doubles builds the test doubles into a folder. Only the kernel of Fill does anything. It skips
// the test if there is a GPU to test on, or no compiler for kernels.
func doubles(t *testing.T) (dir string) {
	t.Helper()
	spmdtest.HostOnly(t, "test doubles are for machines without a GPU")
	if err := nvrtc.Load(); err != nil {
		t.Skip(err)
	}
	dir = t.TempDir()
	testkit.BuildCUDA(t, dir)
	testkit.BuildLibrary(t, dir, "libnccl.so.2", filepath.Join("..", "nccl", "testdata", "fakenccl.c"))
	testkit.BuildLibrary(t, dir, "libfill.so", filepath.Join("testdata", "fill.cc"))
	t.Setenv("FAKECUDA_KERNELS", filepath.Join(dir, "libfill.so"))
	return dir
}

// calls is the log of this rank's doubles.
var calls testkit.CallLog

func openLog(file string) { calls.Open(file) }

// newCalls returns the calls since the last newCalls, see testkit.CallLog.
func newCalls(t *testing.T, prefixes ...string) []string {
	t.Helper()
	return calls.New(t, prefixes...)
}

func value(line, key string) string { return testkit.LogValue(line, key) }

func injected(what string, fn func()) { testkit.Injected(what, fn) }

func number64(t *testing.T, line, key string) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(value(line, key), 0, 64)
	if err != nil {
		t.Fatalf("no %s in %q", key, line)
	}
	return v
}

// addr returns the address of a buffer: a fill tells the driver.
func addr(t *testing.T, b spmd.Buffer[float32]) uint64 {
	t.Helper()
	was := calls.Read
	must(t, b.Slice(0, 1).SetAll(0))
	fills := newCalls(t, "cuMemsetD32Async")
	calls.Read = was
	return number64(t, fills[len(fills)-1], "dst")
}

// wantCalls checks the calls since the last look.
func wantCalls(t *testing.T, what string, prefixes []string, want ...string) {
	t.Helper()
	if got := newCalls(t, prefixes...); !slices.Equal(got, want) {
		t.Errorf("%s: calls\n  %s\nwant\n  %s", what, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// wantText checks that an error is there and says all of it.
func wantText(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", parts)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%q does not say %q", err, p)
		}
	}
}
