package nccl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/testkit"
)

// double is a test's wishes for the test doubles of NCCL and the driver.
type double struct {
	version int      // 22803 unless said
	missing []string // functions that the library lacks
	env     []string
	broken  bool // no library that can be opened
}

// built holds the folders of the compiled doubles, by what they lack. TestMain removes them.
var built = map[string]string{}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, path := range built {
		if err := os.RemoveAll(filepath.Dir(path)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// once links the library that build makes, once for each key, into dir.
func once(t *testing.T, key, dir string, build func(dir string) (path string)) {
	t.Helper()
	if built[key] == "" {
		own, err := os.MkdirTemp("", "nccl-double")
		check(t, err)
		built[key] = build(own)
	}
	check(t, os.Symlink(built[key], filepath.Join(dir, filepath.Base(built[key]))))
}

// in runs the calling test again in a process of its own that finds the test doubles, and reports
// whether this is that process. A library is loaded once in a process, and here by its true name.
func (d double) in(t *testing.T) bool {
	t.Helper()
	prepare := func(dir string) {
		testkit.HostOnly(t)
		once(t, "cuda", dir, func(dir string) string { return testkit.BuildCUDA(t, dir) })
		if !d.broken {
			once(t, strings.Join(d.missing, "-"), dir, func(dir string) string {
				return testkit.BuildLibrary(t, dir, "libnccl.so.2",
					append(testkit.WithoutSymbols(d.missing...), filepath.Join("testdata", "fakenccl.c"))...)
			})
			return
		}
		for _, name := range []string{"libnccl.so.2", "libnccl.so"} {
			testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte("no library"), 0o644))
		}
	}
	env := []string{"FAKENCCL_LOG=" + filepath.Join(t.TempDir(), "log")}
	if d.version != 0 {
		env = append(env, "FAKENCCL_VERSION="+strconv.Itoa(d.version))
	}
	inside := false
	testkit.RunWithLibraries(t, prepare, append(env, d.env...), func(*testing.T) { inside = true })
	return inside
}

// device opens the double's GPU with a stream.
func device(t *testing.T) (*cuda.Device, *cuda.Stream) {
	t.Helper()
	testkit.Must(t, cuda.Load())
	d, err := cuda.Open(0)
	testkit.Must(t, err)
	s, err := d.NewStream(0)
	testkit.Must(t, err)
	return d, s
}

func initComm(t *testing.T, d *cuda.Device, rank, size int, cfg Config) *Comm {
	t.Helper()
	id, err := NewID()
	testkit.Must(t, err)
	c, err := Init(context.Background(), d, id, rank, size, cfg)
	testkit.Must(t, err)
	newCalls(t)
	return c
}

// comm is the Comm that most tests need.
func comm(t *testing.T, rank, size int) (*Comm, *cuda.Stream) {
	t.Helper()
	d, s := device(t)
	return initComm(t, d, rank, size, Config{}), s
}

var read int // lines of the log seen so far

// newCalls returns the double's calls since the last newCalls, without the thread, as "ncclSend
// src=0x10 ...".
func newCalls(t *testing.T) []string {
	t.Helper()
	var calls []string
	for _, line := range newLines(t) {
		_, call, _ := strings.Cut(line, " ")
		calls = append(calls, call)
	}
	return calls
}

func newLines(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(os.Getenv("FAKENCCL_LOG"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if len(text) == 0 {
		lines = nil
	}
	fresh := lines[read:]
	read = len(lines)
	return fresh
}

func wantCalls(t *testing.T, want ...string) {
	t.Helper()
	got := newCalls(t)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("calls:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// fail tells the double what to fail, for the rest of the test or until the next fail.
func fail(t *testing.T, what string) {
	t.Helper()
	t.Setenv("FAKENCCL_FAIL", what)
}

// hang makes function hang until the returned function is called.
func hang(t *testing.T, function string) (release func()) {
	t.Helper()
	t.Setenv("FAKENCCL_HANG", function)
	file := os.Getenv("FAKENCCL_LOG") + ".hang"
	testkit.Must(t, os.WriteFile(file, nil, 0o644))
	return func() {
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
	}
}

// wantError checks that err is a *ccall.Error of a function and wraps a cause, and that its text
// has all parts.
func wantError(t *testing.T, err error, op string, cause error, parts ...string) {
	t.Helper()
	var e *ccall.Error
	if !errors.As(err, &e) {
		t.Errorf("got %v, want an error of %s", err, op)
		return
	}
	if e.Op != op || !errors.Is(err, cause) {
		t.Errorf("got %v, want %s and %v", err, op, cause)
	}
	if !strings.HasPrefix(e.At, "nccl/") || !strings.Contains(e.At, "_test.go:") {
		t.Errorf("blamed on %q, want the test", e.At)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%q does not say %q", err, p)
		}
	}
}

func wantVersionError(t *testing.T, err error, text string) {
	t.Helper()
	var e *VersionError
	if !errors.As(err, &e) || e.Error() != text {
		t.Errorf("got %v, want %s", err, text)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	testkit.Must(t, err)
}

// addr makes an address that nobody reads; below one page Go takes it for a mistake.
func addr(a uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }

func streamArg(s *cuda.Stream) string { return fmt.Sprintf("stream=%p", s.Handle()) }
