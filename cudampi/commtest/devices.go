package commtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"lockstep/cuda"
	"lockstep/cudampi"
	"lockstep/internal/mpirun"
	"lockstep/internal/testkit"
)

// Counts are numbers of ranks: in make test those that find the most.
var Counts = func() []int {
	if testkit.AllCases() {
		return []int{1, 2, 3, 4}
	}
	return []int{1, 3}
}()

// CountsLeft says what Counts leave out of a test.
func CountsLeft(t *testing.T) {
	t.Helper()
	testkit.More(t, 2, "numbers of ranks whose devices exchange")
}

// OnGPU reports whether the tests are to run on GPUs.
func OnGPU() bool { return os.Getenv("SPMDTEST_DEVICE") == "cuda" }

// NeedsDouble skips a test on GPUs.
func NeedsDouble(t *testing.T) {
	if OnGPU() {
		t.Skip("injects what only the double of libcuda does")
	}
}

const awareEnv = "LOCKSTEP_MPI_CUDA" // of cudampi.CUDAAware

// OnDevices runs fn on each number of ranks with MPI running, with a device on each rank, in a job
// that may run other tests. env is for the double, beside what all tests need. fn may close c.
//
// The devices are of the double of libcuda, whose memory several processes share; the kernels run
// on the host, from the same source. With SPMDTEST_DEVICE=cuda they are the GPUs of this machine,
// of which ranks may share one.
func OnDevices(t *testing.T, ranks []int, env map[string]string,
	fn func(t *testing.T, c *cudampi.Comm, d *cuda.Device)) {
	t.Helper()
	const ready = "LOCKSTEP_DEVTEST_DOUBLE"
	if !OnGPU() && os.Getenv(ready) == "" { // not in the processes that mpirun starts
		if _, err := exec.LookPath("g++"); err != nil {
			t.Skip("the kernels are compiled for the host by g++: " + err.Error())
		}
		dir := Double(t)
		t.Setenv("FAKECUDA_KERNELS", filepath.Join(dir, "libemulate.so"))
		path := dir
		if old := os.Getenv("LD_LIBRARY_PATH"); old != "" {
			path += ":" + old
		}
		t.Setenv("LD_LIBRARY_PATH", path)
		t.Setenv("FAKECUDA_SHARED", "1")
		t.Setenv("FAKECUDA_DEVICES", "4")
		t.Setenv(awareEnv, "no")
		for k, v := range env {
			t.Setenv(k, v)
		}
		t.Setenv(ready, "1")
		defer os.Unsetenv(ready)
	}
	OnRanks(t, ranks, func(t *testing.T, c *cudampi.Comm) {
		index := c.Rank() % Must1(cuda.Count())(t)
		Must(t, hold(index))
		d := Must1(cuda.Open(index))(t)
		fn(t, c, d)
		Must(t, d.Close())
	})
}

// OnRanks runs fn on each number of ranks with MPI running, in a job that may run other tests. A
// rank that fails ends the job through MPI. fn may close c.
func OnRanks(t *testing.T, ranks []int, fn func(t *testing.T, c *cudampi.Comm)) {
	t.Helper()
	mpirun.Run(t, ranks, func(t *testing.T) {
		base, err := cudampi.Start()
		Must(t, err)
		mpirun.OnFail = func() { base.Abort(1) }
		c := Must1(base.Dup())(t)
		fn(t, c)
		Must(t, c.Close())
		mpirun.AtEnd(cudampi.Stop) // of a job that went well only: it waits for all ranks
	})
}

// held is the rank's device for as long as its job runs tests: the context of a GPU takes
// longer to make than most tests.
var held *cuda.Device

// hold opens held. MPI, which may know the context, stops before it is given up.
func hold(index int) error {
	if held != nil {
		return nil
	}
	d, err := cuda.Open(index)
	if err != nil {
		return err
	}
	if !mpirun.AtEnd(d.Close) { // the job is of one test
		return d.Close()
	}
	held = d
	return nil
}

// doubles is where the libraries are.
var doubles string

// Double builds the double of libcuda and the kernels for the host, once, and returns the folder.
// The test runs in a folder two below the root of the module, or one.
func Double(t *testing.T) string {
	t.Helper()
	if doubles == "" {
		dir, err := os.MkdirTemp("", "lockstep-double")
		Must(t, err)
		doubles = dir
		testkit.BuildCUDA(t, dir)
		Kernels(t, dir)
	}
	return doubles
}

// Kernels builds libemulate.so in dir: the kernels of package peer for the host.
func Kernels(t *testing.T, dir string) {
	t.Helper()
	source := filepath.Join("spmd", "internal", "peer", "testdata", "emulate.cc")
	for {
		if _, err := os.Stat(source); err == nil || len(source) > 100 {
			break
		}
		source = filepath.Join("..", source)
	}
	testkit.BuildLibrary(t, dir, "libemulate.so", "-std=c++14", "-Wno-unknown-pragmas", source)
}

// Main is a TestMain that removes the doubles after all tests, and stops MPI after the benchmarks,
// which leave it on.
func Main(m *testing.M) {
	code := mpirun.Main(m)
	err := os.RemoveAll(doubles)
	if code == 0 {
		err = errors.Join(err, cudampi.Stop())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// Must1 is for a call of two results: Must1(f())(t).
func Must1[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T { t.Helper(); Must(t, err); return v }
}
