package cudnn

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/internal/testkit"
)

// fake runs body in a process with the test doubles of the driver and of cuDNN.
func fake(t *testing.T, body func(t *testing.T), flags ...string) {
	t.Helper()
	source, err := filepath.Abs("testdata/fakecudnn.c")
	testkit.Must(t, err)
	testkit.RunWithLibraries(t, func(dir string) {
		testkit.BuildCUDA(t, dir)
		testkit.BuildLibrary(t, dir, "libcudnn.so.9", append(append([]string{}, flags...), source, "-lm", "-O2")...)
	}, nil, body)
}

var small = Shape{Batch: 2, Tokens: 128, Heads: 2, Size: 8, Type: elem.BFloat16}

func TestFake(t *testing.T) {
	fake(t, func(t *testing.T) {
		t.Run("attention", fakeAttention)
		t.Run("refused", fakeRefused)
		t.Run("engines", fakeEngines)
		t.Run("tuned", fakeTuned)
		t.Run("versions", fakeVersions)
		t.Run("statuses", fakeStatuses)
		t.Run("context", fakeContext)
		t.Run("capture", fakeCapture)
		t.Run("streams", fakeStreams)
		t.Run("close", fakeClose)
		t.Run("allocations", fakeAllocations)
	})
}

func fakeAttention(t *testing.T) {
	m := newMachine(t)
	half := small
	half.Type = elem.Float16
	for _, s := range []Shape{small, half, {1, 256, 1, 24, elem.BFloat16}} {
		for _, deterministic := range []bool{true, false} {
			m.trial(s, deterministic).check(s.Batch * s.Heads)
		}
	}
}

// A shape without an engine is told before the library is asked. Operands that the library would
// take wrongly are refused.
func fakeRefused(t *testing.T) {
	m := newMachine(t)
	for _, tc := range []struct {
		change func(s *Shape)
		kind   error
		want   string
	}{
		{func(s *Shape) { s.Tokens = 200 }, ErrNotSupported, "200 tokens"},
		{func(s *Shape) { s.Size = 20 }, ErrNotSupported, "20 channels"},
		{func(s *Shape) { s.Type = elem.Float32 }, ErrNotSupported, "float32"},
		{func(s *Shape) { s.Batch = 0 }, nil, "0 sequences"},
	} {
		s := small
		tc.change(&s)
		_, err := m.h.NewAttention(s, true, Choice{})
		wantError(t, err, tc.kind, tc.want)
	}
	r := m.trial(small, true)
	a, n := r.a, r.a.BackwardWorkspace()
	wantError(t, a.Forward(m.s, r.pout, r.plse, r.pqkv, r.w, a.ForwardWorkspace()-1), nil, "workspace")
	wantError(t, a.Forward(m.s, r.pout, r.plse, r.pqkv, nil, a.ForwardWorkspace()), nil, "workspace")
	for i := range 5 {
		p := [5]ptr{r.pdqkv, r.pdout, r.pout, r.plse, r.pqkv}
		p[i] = nil
		wantError(t, a.Backward(m.s, p[0], p[1], p[2], p[3], p[4], r.w, n), nil, "operand", "16 bytes")
		p = [5]ptr{r.pdqkv, r.pdout, r.pout, r.plse, r.pqkv}
		p[i] = ptr(uintptr(p[i]) + 8)
		wantError(t, a.Backward(m.s, p[0], p[1], p[2], p[3], p[4], r.w, n), nil, "operand", "16 bytes")
	}
}

// The first engine that can be made ready is taken; without one the error says so.
func fakeEngines(t *testing.T) {
	m := newMachine(t)
	r := m.trial(small, true)
	if f, b := r.a.Engines(); f != 1 || b != 1 || !r.a.Deterministic() {
		t.Errorf("engines %d and %d, deterministic %v; want 1, 1, true", f, b, r.a.Deterministic())
	}
	for n, want := range map[string]string{"0": "no engine", "1": "none of 1 engines"} {
		t.Setenv("FAKECUDNN_ENGINES", n)
		_, err := m.h.NewAttention(small, true, Choice{})
		wantError(t, err, ErrNotSupported, "attention forward", want)
	}
	t.Setenv("FAKECUDNN_ENGINES", "3")
	for engine := range 3 {
		t.Setenv("FAKECUDNN_REFUSED", strconv.Itoa(engine))
		for _, deterministic := range []bool{true, false} {
			a, err := m.h.NewAttention(small, deterministic, Choice{})
			m.must(err)
			if f, b := a.Engines(); f != engine || b != engine || a.Deterministic() != (deterministic && engine < 2) {
				t.Errorf("engines %d and %d, deterministic %v of %v; want %d", f, b, a.Deterministic(),
					deterministic, engine)
			}
			m.try(a.Close())
		}
	}
}

func TestFastest(t *testing.T) {
	for _, tc := range []struct {
		times []time.Duration
		want  int
	}{{[]time.Duration{100}, 0}, {[]time.Duration{100, 99}, 0}, {[]time.Duration{100, 97}, 1},
		{[]time.Duration{100, 97, 96, 98}, 2}, {[]time.Duration{90, 91, 200}, 0}} {
		if got := fastest(tc.times); got != tc.want {
			t.Errorf("%v: %d, want %d", tc.times, got, tc.want)
		}
	}
}

// The fastest engine is found, and the library's first if none is faster. Later attention takes the
// choice.
func fakeTuned(t *testing.T) {
	m := newMachine(t)
	one := Shape{1, 128, 1, 8, elem.BFloat16}
	t.Setenv("FAKECUDNN_REFUSED", "0")
	for _, tc := range []struct{ engines, slow string }{{"3", "0"}, {"2", "1"}, {"1", "0"}} {
		t.Setenv("FAKECUDNN_ENGINES", tc.engines)
		t.Setenv("FAKECUDNN_SLOW", tc.slow)
		c, err := m.h.TuneAttention(one, true)
		m.must(err)
		if tc.engines == "3" && (c.Forward == 0 || c.Backward == 0) || tc.engines != "3" && c != (Choice{}) {
			t.Errorf("of %s engines, %s slow: %+v", tc.engines, tc.slow, c)
		}
	}
	t.Setenv("FAKECUDNN_ENGINES", "3")
	a, err := m.h.NewAttention(one, true, Choice{2, 1})
	m.must(err)
	if f, b := a.Engines(); f != 2 || b != 1 {
		t.Errorf("engines %d and %d, want 2 and 1", f, b)
	}
	m.try(a.Close())
	// A choice that does not exist is the first.
	t.Setenv("FAKECUDNN_REFUSED", "2")
	a, err = m.h.NewAttention(one, true, Choice{1, 9})
	m.must(err)
	if f, b := a.Engines(); f != 2 || b != 2 {
		t.Errorf("engines %d and %d, want the one that can be made ready", f, b)
	}
	m.try(a.Close())
	// Without room it says so, and gives back what it took.
	t.Setenv("FAKECUDA_FAIL", "cuMemAlloc_v2=2@3")
	if _, err := m.h.TuneAttention(one, true); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("without memory: %v", err)
	}
}

// Versions before 9.10 mask by the lowest number, and two of them compute wrongly.
func fakeVersions(t *testing.T) {
	m := newMachine(t)
	for v, want := range map[string]float32{"90600": -math.MaxFloat32, "90999": -math.MaxFloat32,
		"91002": float32(math.Inf(-1)), "91400": float32(math.Inf(-1))} {
		t.Setenv("FAKECUDNN_VERSION", v)
		if got := hidden(); got != want {
			t.Errorf("version %s masks by %v, want %v", v, got, want)
		}
		m.trial(Shape{1, 128, 1, 8, elem.BFloat16}, true).check(1)
	}
	for _, v := range []string{"91000", "91001"} {
		t.Setenv("FAKECUDNN_VERSION", v)
		_, err := m.h.NewAttention(small, true, Choice{})
		wantError(t, err, ErrNotSupported, "9.10."+v[4:])
	}
	t.Setenv("FAKECUDNN_VERSION", "91401")
	if got := Version(); got != "9.14.1" {
		t.Errorf("version %q", got)
	}
}

// Every call's failure is told, with the library's words on one line, and leaves nothing behind.
func fakeStatuses(t *testing.T) {
	m := newMachine(t)
	r := m.trial(small, true)
	m.try(r.forward())
	all := func() error {
		h, err := Open(m.d)
		if err != nil {
			return err
		}
		a, err := h.NewAttention(small, true, Choice{})
		if err == nil {
			err = errors.Join(a.Forward(m.s, r.pout, r.plse, r.pqkv, r.w, a.ForwardWorkspace()), a.Close())
		}
		return errors.Join(err, h.Close())
	}
	for _, fn := range []string{"cudnnCreate", "cudnnDestroy", "cudnnSetStream", "cudnnBackendCreateDescriptor",
		"cudnnBackendDestroyDescriptor", "cudnnBackendSetAttribute", "cudnnBackendGetAttribute",
		"cudnnBackendFinalize", "cudnnBackendExecute"} {
		t.Setenv("FAKECUDNN_FAIL", fn+"=4002")
		err := all()
		t.Setenv("FAKECUDNN_FAIL", "")
		var e *ccall.Error
		if !errors.Is(err, ErrInternal) || !errors.As(err, &e) || e.Op != fn || e.Rank != -1 {
			t.Errorf("%s: %v", fn, err)
			continue
		}
		wantError(t, err, Result(4002), "CUDNN_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE", "; as the double says")
		if err := all(); err != nil {
			t.Errorf("%s, afterwards: %v", fn, err)
		}
	}
	// A failure on the way leaves no descriptor.
	live := filepath.Join(t.TempDir(), "live")
	t.Setenv("FAKECUDNN_LIVE", live)
	count := func() string {
		t.Helper()
		h, err := Open(m.d)
		m.must(err)
		m.try(h.Close())
		b, err := os.ReadFile(live)
		m.must(err)
		return strings.TrimSpace(string(b))
	}
	before := count()
	failed := 0
	for i := 1; i < 400; i += 7 {
		for _, fn := range []string{"cudnnBackendCreateDescriptor", "cudnnBackendSetAttribute",
			"cudnnBackendGetAttribute", "cudnnBackendFinalize"} {
			t.Setenv("FAKECUDNN_FAIL", fmt.Sprintf("%s=4000@%d", fn, i))
			a, err := m.h.NewAttention(small, true, Choice{})
			if err == nil {
				m.try(a.Close())
				continue
			}
			failed++
		}
	}
	t.Setenv("FAKECUDNN_FAIL", "")
	if after := count(); after != before || failed < 60 {
		t.Errorf("%s descriptors alive before %d failures, %s after", before, failed, after)
	}
}

// A context that cannot be made current is the driver's failure, not the library's.
func fakeContext(t *testing.T) {
	m := newMachine(t)
	r := m.trial(small, true)
	// This thread is given the context of another device.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	t.Setenv("FAKECUDA_DEVICES", "2")
	other, err := cuda.Open(1)
	m.must(err)
	t.Cleanup(func() { m.try(other.Close()) })
	m.try(other.Synchronize())
	t.Setenv("FAKECUDA_FAIL", "cuCtxSetCurrent=709")
	_, made := m.h.NewAttention(small, true, Choice{})
	for i, err := range []error{r.forward(), r.backward(), made} {
		var e *ccall.Error
		if !errors.Is(err, cuda.Result(709)) || !errors.As(err, &e) || e.Op != "cuCtxSetCurrent" {
			t.Errorf("call %d: %v", i, err)
		}
	}
	t.Setenv("FAKECUDA_FAIL", "")
	m.try(r.forward())
}

// A captured run is carried out when the graph is launched, with the operands of the capture, and
// not before.
func fakeCapture(t *testing.T) {
	m := newMachine(t)
	r := m.trial(small, true)
	r.check(2)
	n := 6 * r.Batch * r.Tokens * r.Heads * r.Size
	want := m.bits(r.pdqkv, n)
	runtime.LockOSThread() // a capture ends on the thread where it began
	defer runtime.UnlockOSThread()
	m.poison(r.pdqkv, n)
	poison := m.bits(r.pdqkv, n)
	m.must(m.s.BeginCapture(cuda.ThreadLocal))
	m.try(r.forward())
	m.try(r.backward())
	graph, err := m.s.EndCapture()
	m.must(err)
	exec, err := graph.Instantiate()
	m.must(err)
	m.try(graph.Close())
	if m.bits(r.pdqkv, n) != poison {
		t.Error("the capture has run already")
	}
	for range 2 {
		m.poison(r.pdqkv, n)
		m.poison(r.pout, n/3)
		m.try(exec.Launch(m.s))
		if m.bits(r.pdqkv, n) != want {
			t.Error("a replay differs")
		}
	}
	m.try(exec.Close())
}

// One Attention serves several streams and goroutines, each call on the stream it is given.
func fakeStreams(t *testing.T) {
	t.Setenv("FAKECUDA_DELAY", "200")
	m := newMachine(t)
	a, err := m.h.NewAttention(small, true, Choice{})
	m.must(err)
	defer func() { m.try(a.Close()) }()
	var trials []*trial
	for range 4 {
		s, err := m.d.NewStream(0)
		m.must(err)
		n := *m
		n.s = s
		r := n.trial(small, true)
		m.try(r.a.Close())
		r.a = a
		trials = append(trials, r)
	}
	var wg sync.WaitGroup
	for _, r := range trials {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 2 {
				m.try(r.forward())
				m.try(r.backward())
			}
		}()
	}
	wg.Wait()
	for _, r := range trials {
		r.check(2)
		m.try(r.s.Close())
	}
}

func fakeClose(t *testing.T) {
	m := newMachine(t)
	r := m.trial(small, true)
	for range 2 {
		m.try(r.a.Close())
	}
	wantError(t, r.forward(), errClosed)
	wantError(t, r.backward(), errClosed)
	h, err := Open(m.d)
	m.must(err)
	for range 2 {
		m.try(h.Close())
	}
	_, err = h.NewAttention(small, true, Choice{})
	wantError(t, err, errClosed)
}

func fakeAllocations(t *testing.T) {
	m := newMachine(t)
	r := m.trial(Shape{1, 128, 1, 8, elem.BFloat16}, true)
	if n := testkit.Allocations(5, func() {
		m.try(r.forward())
		m.try(r.backward())
	}); n != 0 {
		t.Errorf("%v allocations a run", n)
	}
}

// A library that lacks something, or of another version, is refused with the reason; an absent one,
// too.
func TestLoad(t *testing.T) {
	t.Run("lacks", func(t *testing.T) {
		fake(t, func(t *testing.T) { wantError(t, Load(), nil, "cuDNN 9 cannot be used", "cudnnBackendExecute") },
			testkit.WithoutSymbols("cudnnBackendExecute")...)
	})
	t.Run("old", func(t *testing.T) {
		fake(t, func(t *testing.T) {
			t.Setenv("FAKECUDNN_VERSION", "90501")
			wantError(t, Load(), nil, "9.5.1", "9.6.0")
			if Version() != "" {
				t.Errorf("version %q", Version())
			}
		})
	})
	t.Run("absent", func(t *testing.T) {
		testkit.RunWithLibraries(t, func(dir string) { testkit.BuildCUDA(t, dir) }, nil, func(t *testing.T) {
			names9 = []string{"libcudnn-nowhere.so.9"}
			err := Load()
			wantError(t, err, nil, "cuDNN 9 cannot be used", "libcudnn-nowhere.so.9")
			if strings.Contains(fmt.Sprint(err), "\n") {
				t.Errorf("several lines: %q", err)
			}
		})
	})
	t.Run("home", func(t *testing.T) {
		fake(t, func(t *testing.T) {
			home := t.TempDir()
			testkit.Must(t, os.MkdirAll(filepath.Join(home, "lib"), 0o755))
			real := filepath.Join(strings.Split(os.Getenv("LD_LIBRARY_PATH"), ":")[0], "libcudnn.so.9")
			testkit.Must(t, os.Symlink(real, filepath.Join(home, "lib", "libcudnn-here.so.9")))
			names9 = []string{"libcudnn-here.so.9"}
			t.Setenv("CUDNN_HOME", home)
			if err := Load(); err != nil || !strings.HasSuffix(Path(), "libcudnn-here.so.9") {
				t.Errorf("%q, %v", Path(), err)
			}
		})
	})
}
