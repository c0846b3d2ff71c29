package cudampi

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/internal/fakelib"
	"lockstep/internal/mpirun"
)

// onRanks runs fn on each number of ranks with MPI running. A rank that fails ends the job through MPI.
func onRanks(t *testing.T, ranks []int, fn func(t *testing.T, c *Comm)) {
	t.Helper()
	mpirun.Run(t, ranks, func(t *testing.T) {
		c, err := Start()
		if err != nil {
			t.Fatal(err)
		}
		mpirun.OnFail = func() { c.Abort(1) }
		fn(t, c)
		// Only a job that went well stops MPI, which waits for all ranks.
		if err := Stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// alone runs fn in a process of its own, without mpirun, and returns what that printed. In that process it does not return.
func alone(t *testing.T, fn func(t *testing.T, c *Comm)) ([]byte, error) {
	t.Helper()
	const env = "LOCKSTEP_CUDAMPI_ALONE"
	if os.Getenv(env) == t.Name() {
		c, err := Start()
		must(t, err)
		fn(t, c)
		os.Exit(0)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=50s")
	cmd.Env = append(mpirun.Env(1), env+"="+t.Name())
	return cmd.CombinedOutput()
}

// TestMain stops MPI after the benchmarks, which leave it on, and removes the doubles.
func TestMain(m *testing.M) {
	code := m.Run()
	if err := os.RemoveAll(doubles); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code == 0 {
		if err := Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

var counts = []int{1, 2, 3, 4} // of ranks

// lower makes every call of more than a few elements take the paths for counts beyond MPI's, until the test ends.
func lower(t *testing.T) {
	old := []int{maxCount, maxHalf, maxMessage, maxSwap}
	maxCount, maxHalf, maxMessage, maxSwap = 7, 5, 7, 3
	t.Cleanup(func() { maxCount, maxHalf, maxMessage, maxSwap = old[0], old[1], old[2], old[3] })
}

// memory is n elements between two guards, which a call must not touch.
type memory[T elem.Elem] struct {
	all []T
	n   int
}

const guards = 3

func alloc[T elem.Elem](n int) memory[T] {
	m := memory[T]{make([]T, n+2*guards), n}
	for i := range m.all {
		m.all[i] = T(99)
	}
	return m
}

func (m memory[T]) data() []T { return m.all[guards : guards+m.n] }

// ptr is nil for no elements, as callers may pass it.
func (m memory[T]) ptr() unsafe.Pointer { return ptr(m.data()) }

func ptr[T any](s []T) unsafe.Pointer {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Pointer(&s[0])
}

func (m memory[T]) intact() bool {
	for i := range guards {
		if m.all[i] != T(99) || m.all[guards+m.n+i] != T(99) {
			return false
		}
	}
	return true
}

// same fails the test unless the memory holds want, bit by bit, between intact guards.
func (m memory[T]) same(t *testing.T, c *Comm, want []T, format string, args ...any) {
	t.Helper()
	what := fmt.Sprintf(format, args...)
	if !m.intact() {
		t.Fatalf("rank %d of %d: %s of %v: wrote outside of dst", c.rank, c.size, what, elem.Of[T]())
	}
	for i, got := range m.data() {
		if got != want[i] {
			t.Fatalf("rank %d of %d: %s of %d %v: [%d] is %v, want %v", c.rank, c.size, what, m.n, elem.Of[T](), i, got, want[i])
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// value is element i of a rank's input. Floats are such that sums and products of four are exact in float32, but sums
// of the 16-bit types are not representable in them: only one rounding, at the end, gives the reference.
func value[T elem.Elem](rank, i int) T {
	h := uint64(rank*7919+i+1) * 0x9e3779b97f4a7c15
	h ^= h >> 29
	var z T
	switch p := any(&z).(type) {
	case *elem.F16:
		*p = elem.ToF16(fewBits(h))
	case *elem.BF16:
		*p = elem.ToBF16(fewBits(h))
	case *float32:
		*p = float32(int(h%33) - 16)
	case *float64:
		*p = float64(int(h%33) - 16)
	default: // all bits, so that integers wrap round
		bits := h
		z = *(*T)(unsafe.Pointer(&bits))
	}
	return z
}

// fewBits is a number of five significant bits, of very different sizes.
func fewBits(h uint64) float32 {
	f := float32(h>>8%31+1) / float32(uint(1)<<(h>>16%11))
	if h&1 == 1 {
		return -f
	}
	return f
}

func input[T elem.Elem](rank, n int) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = value[T](rank, i)
	}
	return s
}

func filled[T elem.Elem](rank, n int) memory[T] {
	m := alloc[T](n)
	copy(m.data(), input[T](rank, n))
	return m
}

// reduced is op over all ranks of n elements, from Go's own arithmetic: integers wrap, floats in float64.
func reduced[T elem.Elem](size, n int, op elem.Op) []T {
	out := make([]T, n)
	for i := range out {
		in := make([]T, size)
		for r := range in {
			in[r] = value[T](r, i)
		}
		out[i] = fold(in, op)
	}
	return out
}

func fold[T elem.Elem](in []T, op elem.Op) T {
	var out T
	switch in := any(in).(type) {
	case []int8:
		out = T(foldInt(in, op))
	case []uint8:
		out = T(foldInt(in, op))
	case []int32:
		out = T(foldInt(in, op))
	case []uint32:
		out = T(foldInt(in, op))
	case []int64:
		out = T(foldInt(in, op))
	case []uint64:
		out = T(foldInt(in, op))
	case []elem.F16:
		*any(&out).(*elem.F16) = elem.ToF16(fold32(in, elem.F16.Float32, op))
	case []elem.BF16:
		*any(&out).(*elem.BF16) = elem.ToBF16(fold32(in, elem.BF16.Float32, op))
	case []float32:
		*any(&out).(*float32) = fold32(in, func(x float32) float32 { return x }, op)
	case []float64:
		f := foldFloat(in, func(x float64) float64 { return x }, op)
		if op == elem.Avg {
			f /= float64(len(in))
		}
		*any(&out).(*float64) = f
	}
	return out
}

func foldInt[I int8 | uint8 | int32 | uint32 | int64 | uint64](in []I, op elem.Op) I {
	out := in[0]
	for _, x := range in[1:] {
		switch op {
		case elem.Sum, elem.Avg:
			out += x
		case elem.Prod:
			out *= x
		case elem.Min:
			out = min(out, x)
		case elem.Max:
			out = max(out, x)
		}
	}
	if op == elem.Avg {
		out /= I(len(in))
	}
	return out
}

func fold32[T any](in []T, f func(T) float32, op elem.Op) float32 {
	out := foldFloat(in, func(x T) float64 { return float64(f(x)) }, op)
	if out != float64(float32(out)) {
		panic(fmt.Sprintf("the test's input is not exact in float32: %v", out))
	}
	if op == elem.Avg {
		return float32(out) / float32(len(in))
	}
	return float32(out)
}

func foldFloat[T any](in []T, f func(T) float64, op elem.Op) float64 {
	out := f(in[0])
	for _, x := range in[1:] {
		switch op {
		case elem.Sum, elem.Avg:
			out += f(x)
		case elem.Prod:
			out *= f(x)
		case elem.Min:
			out = math.Min(out, f(x))
		case elem.Max:
			out = math.Max(out, f(x))
		}
	}
	return out
}

func TestStart(t *testing.T) {
	onRanks(t, []int{1, 2}, func(t *testing.T, c *Comm) {
		if again, err := Start(); again != c || err != nil {
			t.Fatalf("a second Start gives %v, %v", again, err)
		}
		if c.Rank() < 0 || c.Rank() >= c.Size() {
			t.Fatalf("rank %d of %d", c.Rank(), c.Size())
		}
		must(t, Stop())
		must(t, Stop())
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
		must(t, c.AllReduce(ptr(x), ptr(x), 2, elem.Float64, elem.Avg))
		must(t, Stop())
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

// TestSignalsStayGo has a test double beside MPI take signals when MPI starts, as libraries do that MPI loads.
func TestSignalsStayGo(t *testing.T) {
	const double = "libsignals.so"
	if others := os.Getenv("LD_PRELOAD"); !strings.Contains(others, double) { // else a rank
		t.Setenv("LD_PRELOAD", strings.TrimSpace(fakelib.Build(t, t.TempDir(), double, filepath.Join("testdata", "signals.c"))+" "+others))
	}
	onRanks(t, []int{1}, func(t *testing.T, c *Comm) {
		for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGURG, syscall.SIGUSR1, syscall.SIGUSR2} {
			heard := make(chan os.Signal, 1)
			signal.Notify(heard, sig)
			must(t, syscall.Kill(os.Getpid(), sig))
			select {
			case <-heard:
			case <-time.After(10 * time.Second):
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
