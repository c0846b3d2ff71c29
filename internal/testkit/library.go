// Package testkit has what a test needs beside package testing: which cases are wanted, doubles of
// libraries that are bound at run time, and terminals.
//
// make test has one case of every kind, and few processes: LOCKSTEP_TESTS=quick asks for that. make
// test-all has all cases: each fault, each division of a model, each type by each size by each way.
// LOCKSTEP_TESTS=all asks for these.
package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// BuildLibrary compiles a shared library into dir under the name that dlopen looks for, such as
// "libcuda.so.1", and returns its path. args are C sources and flags for the compiler, $CC or cc. A
// process started with LD_LIBRARY_PATH=dir finds it.
//
// Without a compiler the test fails, since nothing here builds without one. A library that was
// built before from the same text is copied.
func BuildLibrary(t testing.TB, dir, soname string, args ...string) string {
	t.Helper()
	cc := strings.Fields(os.Getenv("CC"))
	if len(cc) == 0 {
		cc = []string{"cc"}
	}
	path := filepath.Join(dir, soname)
	cc = append(cc, "-shared", "-fPIC", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Wl,-soname,"+soname)
	kept := keptFile(cc, args)
	if fetch(kept, path) {
		return path
	}
	cc = append(cc, "-o", path)
	cc = append(append(cc, args...), "-ldl")
	if out, err := exec.Command(cc[0], cc[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cc, " "), err, out)
	}
	keep(kept, path)
	return path
}

// BuildCUDA builds the test double of the CUDA driver, libcuda.so.1, from cuda/testdata/fakecuda.c,
// which says what it can do. See HostOnly.
func BuildCUDA(t testing.TB, dir string, flags ...string) string {
	t.Helper()
	HostOnly(t)
	return BuildLibrary(t, dir, "libcuda.so.1",
		append(flags, filepath.Join(root(t), "cuda", "testdata", "fakecuda.c"))...)
}

// HostOnly skips a test with doubles if tests are to run on GPUs: it is the same on any machine.
func HostOnly(t testing.TB) {
	t.Helper()
	if os.Getenv("SPMDTEST_DEVICE") == "cuda" {
		t.Skip("test doubles are for machines without a GPU")
	}
}

// root returns the folder of the project above the working one. A test runs in the folder of its
// package, but not always on the machine where it was built.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("the test does not run in a folder of the project")
		}
	}
}

// WithoutSymbols returns flags that leave symbols out of a double: each is
// defined under another name.
func WithoutSymbols(symbols ...string) []string {
	flags := make([]string, len(symbols))
	for i, s := range symbols {
		flags[i] = "-D" + s + "=absent_" + s
	}
	return flags
}

// child is set to the name of the test that a child process runs.
const child = "LOCKSTEP_TEST_CHILD"

// RunWithLibraries runs body in a child process that finds the libraries in dir before all others.
// env has additional variables, KEY=VALUE. prepare builds the libraries into dir.
//
// The child is this test binary with the one test selected: it comes to the same call, without
// prepare. The child's failure, with its output, becomes t's. A skip there is one here.
func RunWithLibraries(t *testing.T, prepare func(dir string), env []string, body func(t *testing.T)) {
	t.Helper()
	if os.Getenv(child) == t.Name() {
		body(t)
		return
	}
	dir := t.TempDir()
	prepare(dir)
	path := dir
	if old := os.Getenv("LD_LIBRARY_PATH"); old != "" {
		path += string(os.PathListSeparator) + old
	}
	parts := strings.Split(t.Name(), "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	args := []string{"-test.run=" + strings.Join(parts, "/"), "-test.v"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	if deadline, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+timeLeft(deadline).String())
	}
	cmd := exec.Command(os.Args[0], append(args, CoverFlags()...)...)
	cmd.Env = append(append(os.Environ(), env...), "LD_LIBRARY_PATH="+path, child+"="+t.Name())
	out, err := cmd.CombinedOutput()
	text := string(out)
	switch {
	case err != nil:
		t.Fatalf("in the child process: %v\n%s", err, text)
	case !strings.Contains(text, "--- PASS: "+t.Name()+" "):
		if strings.Contains(text, "--- SKIP: "+t.Name()+" ") {
			t.Skip("in the child process:\n" + text)
		}
		t.Fatalf("the child process did not run the test:\n%s", text)
	}
}

// timeLeft leaves the parent time to report the child's output when the child is stopped.
func timeLeft(deadline time.Time) time.Duration {
	return max(time.Until(deadline)*9/10, time.Second)
}
