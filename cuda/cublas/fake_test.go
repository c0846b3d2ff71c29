package cublas

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/internal/testkit"
)

type ptr = unsafe.Pointer

// fake runs body in a process with the test doubles of the driver and of both libraries.
func fake(t *testing.T, body func(t *testing.T), flags ...string) {
	t.Helper()
	source, err := filepath.Abs("testdata/fakecublas.c")
	testkit.Must(t, err)
	testkit.RunWithLibraries(t, func(dir string) {
		testkit.BuildCUDA(t, dir)
		args := append(append([]string{}, flags...), source, "-lm")
		testkit.BuildLibrary(t, dir, "libcublasLt.so.13", args...)
		testkit.BuildLibrary(t, dir, "libcublas.so.13", args...)
	}, nil, body)
}

// log starts a new log of the doubles' calls, and returns a function that reads it.
func log(t *testing.T) (lines func(fn string) []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "log")
	t.Setenv("FAKECUBLAS_LOG", file)
	return func(fn string) (found []string) {
		t.Helper()
		b, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for l := range strings.Lines(string(b)) {
			if strings.HasPrefix(l, fn+" ") {
				found = append(found, strings.TrimSpace(l))
			}
		}
		return found
	}
}

func wantLine(t *testing.T, lines []string, pattern string) {
	t.Helper()
	if len(lines) != 1 || !regexp.MustCompile(pattern).MatchString(lines[0]) {
		t.Errorf("calls %q, want one like %q", lines, pattern)
	}
}

func TestFake(t *testing.T) {
	fake(t, func(t *testing.T) {
		t.Run("lt", func(t *testing.T) {
			m := newMachine(t)
			m.table(ltPairs, smallShapes, m.in(m.openLt()))
		})
		t.Run("stacks", func(t *testing.T) {
			m := newMachine(t)
			m.stacks([][3]int{{3, 5, 7}, {8, 16, 24}, {0, 3, 2}, {3, 2, 0}}, m.in(m.openLt()))
		})
		t.Run("handle", func(t *testing.T) {
			m := newMachine(t)
			m.table(plainPairs, smallShapes, m.open().Gemm)
		})
		t.Run("vectors", func(t *testing.T) {
			m := newMachine(t)
			m.vectors(m.open(), [][2]int{{1, 1}, {3, 5}, {12, 7}, {0, 4}, {4, 0}, {0, 0}})
		})
		t.Run("opened again", fakeOpenedAgain)
		t.Run("arguments", fakeArguments)
		t.Run("epilogues", fakeEpilogues)
		t.Run("arguments of epilogues", fakeEpilogueArguments)
		t.Run("no epilogue", fakeNoEpilogue)
		t.Run("8 bits", fakeEight)
		t.Run("tuning", fakeTune)
		t.Run("tuning fails", fakeTuneFails)
		t.Run("plans", fakePlans)
		t.Run("refused", fakeRefused)
		t.Run("statuses", fakeStatuses)
		t.Run("context", fakeContext)
		t.Run("workspace", fakeWorkspace)
		t.Run("wide", fakeWide)
		t.Run("close", fakeClose)
		t.Run("close elsewhere", fakeCloseElsewhere)
		t.Run("goroutines", fakeGoroutines)
		t.Run("allocations", fakeAllocations)
	})
}

// A file that does not open leaves the libraries in use: TestWithoutLibraries may come between two
// tests of them.
func fakeOpenedAgain(t *testing.T) {
	newMachine(t).openLt()
	TestWithoutLibraries(t)
	m := newMachine(t)
	m.table(ltPairs, [][3]int{{3, 5, 7}}, m.in(m.openLt()))
	m.table(plainPairs, [][3]int{{3, 5, 7}}, m.open().Gemm)
}

// The arguments of each library are given by hand here: the operands change places, as row-major
// matrices are the transposes of what the libraries take them for.
func fakeArguments(t *testing.T) {
	m := newMachine(t)
	l, h := m.openLt(), m.open()
	lines := log(t)
	zero := make([]float64, 1000)
	a, b, c := m.put(0, 0, elem.Float64, zero), m.put(1, 0, elem.Float64, zero), m.put(2, 0, elem.Float64, zero)
	addresses := regexp.QuoteMeta(strings.Join([]string{"A=" + hex(b), "B=" + hex(a), "C=" + hex(c),
		"stream=" + hex(m.s.Handle())}, " "))

	g := Gemm{M: 2, N: 3, K: 4, LdA: 5, LdB: 6, LdC: 7, TransA: true, AB: elem.BFloat16, C: elem.Float32,
		Alpha: 0.5, Beta: 2}
	m.try(l.Gemm(m.s, &g, c, a, b, m.dev[3], 1000))
	wantLine(t, lines("cublasLtMatmul"), "ta=0 tb=1 m=3 n=2 k=4 lda=6 ldb=5 ldc=7 ab=14 c=0 compute=68 "+
		"alpha=0.5 beta=2 bytes=500 "+addresses+" = 0")
	wantLine(t, lines("cublasLtMatmulDescCreate"), "compute=68 scale=0 ")
	wantLine(t, lines("cublasLtMatmulAlgoGetHeuristic"), "mask=7 workspace=1000 align=256,256,256,256 ")

	lines = log(t)
	g = Gemm{M: 2, N: 3, K: 4, LdA: 4, LdB: 4, LdC: 3, TransB: true, AB: elem.Float64, C: elem.Float64,
		Alpha: 1.0 / 3, Beta: 0}
	m.try(l.Gemm(m.s, &g, c, a, b, nil, 0))
	wantLine(t, lines("cublasLtMatmul"), "ta=1 tb=0 m=3 n=2 k=4 lda=4 ldb=4 ldc=3 ab=1 c=1 "+
		"compute=70 .* bytes=0 "+addresses)
	wantLine(t, lines("cublasLtMatmulDescCreate"), "compute=70 scale=1 ")

	// A 16-bit result: only sums in float32. Addresses less than 256 bytes apart show so.
	lines = log(t)
	g = Gemm{M: 1, N: 1, K: 1, LdA: 1, LdB: 1, LdC: 1, AB: elem.Float16, C: elem.Float16, Alpha: 1}
	m.try(l.Gemm(m.s, &g, unsafe.Add(c, 2), unsafe.Add(a, 8), unsafe.Add(b, 64), nil, 0))
	wantLine(t, lines("cublasLtMatmulAlgoGetHeuristic"), "mask=2 workspace=0 align=64,8,2,2 ")
	wantLine(t, lines("cublasLtMatmul"), "ab=2 c=2 compute=68")

	lines = log(t)
	g = Gemm{M: 2, N: 3, K: 4, LdA: 5, LdB: 6, LdC: 7, TransA: true, AB: elem.Float32, C: elem.Float32,
		Alpha: 0.5, Beta: 2}
	m.try(h.Gemm(m.s, &g, c, a, b))
	wantLine(t, lines("cublasSgemm_v2"), "ta=0 tb=1 m=3 n=2 k=4 lda=6 ldb=5 ldc=7 alpha=0.5 beta=2 "+addresses)
	g.AB, g.C = elem.Float64, elem.Float64
	m.try(h.Gemm(m.s, &g, c, a, b))
	wantLine(t, lines("cublasDgemm_v2"), "ta=0 tb=1 m=3 n=2 k=4 lda=6 ldb=5 ldc=7 alpha=0.5 beta=2 "+addresses)
	m.try(h.Gemv(m.s, elem.Float32, false, 2, 3, 0.5, a, 4, b, 2, c))
	wantLine(t, lines("cublasSgemv_v2"), "t=1 m=3 n=2 lda=4 alpha=0.5 beta=2 A="+hex(a)+" x="+hex(b)+" y="+
		hex(c)+" stream="+hex(m.s.Handle()))
	m.try(h.Gemv(m.s, elem.Float64, true, 2, 3, 0.5, a, 4, b, 2, c))
	wantLine(t, lines("cublasDgemv_v2"), "t=0 m=3 n=2 lda=4 alpha=0.5 beta=2 ")
}

func hex(p ptr) string { return fmt.Sprintf("%p", p) }

// A plan serves every product of its shape. A change of any of its parts makes a new one.
func fakePlans(t *testing.T) {
	m := newMachine(t)
	l := m.openLt()
	lines := log(t)
	zero := make([]float64, 1000)
	a, b, c := m.put(0, 0, elem.Float64, zero), m.put(1, 0, elem.Float64, zero), m.put(2, 0, elem.Float64, zero)
	g := Gemm{M: 4, N: 4, K: 4, LdA: 4, LdB: 4, LdC: 4, AB: elem.Float16, C: elem.Float16, Alpha: 1}
	plans := func(want int, what string) {
		t.Helper()
		if got := len(lines("cublasLtMatmulAlgoGetHeuristic")); got != want {
			t.Errorf("%s: %d plans made so far, want %d", what, got, want)
		}
	}
	run := func(g Gemm, off, bytes int) { m.try(l.Gemm(m.s, &g, c, unsafe.Add(a, off), b, m.dev[3], bytes)) }
	run(g, 0, 512)
	plans(1, "the first")
	for i := range 5 {
		h := g
		h.Alpha = float64(i + 1)
		run(h, 256*i, 512)
	}
	plans(1, "other factors and addresses")
	if got := len(lines("cublasLtMatmul")); got != 6 {
		t.Errorf("%d products, want 6", got)
	}
	want := 1
	for what, change := range map[string]func(g *Gemm){
		"M": func(g *Gemm) { g.M = 3 }, "N": func(g *Gemm) { g.N = 3 }, "K": func(g *Gemm) { g.K = 3 },
		"TransA": func(g *Gemm) { g.TransA = true }, "TransB": func(g *Gemm) { g.TransB = true },
		"LdA": func(g *Gemm) { g.LdA = 5 }, "LdB": func(g *Gemm) { g.LdB = 5 }, "LdC": func(g *Gemm) { g.LdC = 5 },
		"C": func(g *Gemm) { g.C = elem.Float32 }, "AB": func(g *Gemm) { g.AB, g.C = elem.BFloat16, elem.BFloat16 },
	} {
		h := g
		change(&h)
		for range 2 {
			run(h, 0, 512)
		}
		want++
		plans(want, what)
	}
	run(g, 64, 512)
	plans(want+1, "alignment")
	run(g, 0, 1024)
	plans(want+2, "workspace")
	run(g, 0, 512)
	plans(want+2, "the first again")
	for beta := range 3 {
		h := g
		h.Beta = float64(beta)
		run(h, 0, 512)
	}
	plans(want+3, "with something to add")
	for range 2 {
		h := g
		h.Beta = 1
		m.try(l.GemmBeside(m.s, &h, &Beside{Add: m.dev[0]}, c, a, b, m.dev[3], 512))
	}
	plans(want+4, "another matrix than C")
}

func fakeRefused(t *testing.T) {
	m := newMachine(t)
	l, h := m.openLt(), m.open()
	lines := log(t)
	p := m.dev[0]
	good := Gemm{M: 2, N: 3, K: 4, LdA: 4, LdB: 3, LdC: 3, AB: elem.Float32, C: elem.Float32, Alpha: 1}
	for _, tc := range []struct {
		change func(g *Gemm)
		want   []string
	}{
		{func(g *Gemm) { g.LdA = 3 }, []string{"A 3 of 4"}},
		{func(g *Gemm) { g.LdB = 2 }, []string{"B 2 of 3"}},
		{func(g *Gemm) { g.LdC = 2 }, []string{"C 2 of 3"}},
		{func(g *Gemm) { g.TransB = true }, []string{"B 3 of 4"}},
		{func(g *Gemm) { g.TransA, g.LdA = true, 1 }, []string{"A 1 of 2"}},
		{func(g *Gemm) { g.M = -1 }, []string{"M -1"}},
		{func(g *Gemm) { g.AB = elem.Float64 }, []string{"float64", "float32"}},
		{func(g *Gemm) { g.AB, g.C = elem.Int32, elem.Int32 }, []string{"int32"}},
	} {
		g := good
		tc.change(&g)
		testkit.Refused(t, l.Gemm(m.s, &g, p, p, p, nil, 0), tc.want...)
		testkit.Refused(t, h.Gemm(m.s, &g, p, p, p), tc.want...)
	}
	half := good
	half.AB = elem.BFloat16
	testkit.Refused(t, h.Gemm(m.s, &half, p, p, p), "bfloat16")
	for i := range 3 {
		args := [3]ptr{p, p, p}
		args[i] = nil
		testkit.Refused(t, l.Gemm(m.s, &good, args[0], args[1], args[2], nil, 0), "nil address")
		testkit.Refused(t, h.Gemm(m.s, &good, args[0], args[1], args[2]), "nil address")
		testkit.Refused(t, h.Gemv(m.s, elem.Float32, false, 2, 3, 1, args[0], 3, args[1], 0, args[2]), "nil address")
	}
	testkit.Refused(t, l.Gemm(m.s, &good, p, p, p, nil, 64), "64 bytes")
	testkit.Refused(t, l.Gemm(m.s, &good, p, p, p, p, -1), "-1 bytes")
	testkit.Refused(t, h.SetWorkspace(nil, 64), "64 bytes")
	testkit.Refused(t, h.Gemv(m.s, elem.Float16, false, 2, 3, 1, p, 3, p, 0, p), "float16")
	testkit.Refused(t, h.Gemv(m.s, elem.Float32, false, 2, 3, 1, p, 2, p, 0, p), "A(2, 3)", "stride of 2")
	testkit.Refused(t, h.Gemv(m.s, elem.Float32, false, -2, 3, 1, p, 3, p, 0, p), "A(-2, 3)")
	for _, fn := range []string{"cublasLtMatmul", "cublasSgemm_v2", "cublasSgemv_v2", "cublasSetWorkspace_v2"} {
		if got := lines(fn); len(got) > 0 {
			t.Errorf("called: %q", got)
		}
	}
}

func fakeStatuses(t *testing.T) {
	m := newMachine(t)
	p := m.dev[0]
	f32 := Gemm{M: 2, N: 3, K: 4, LdA: 4, LdB: 3, LdC: 3, AB: elem.Float32, C: elem.Float32, Alpha: 1}
	f16 := Gemm{M: 2, N: 3, K: 4, LdA: 4, LdB: 3, LdC: 3, AB: elem.Float16, C: elem.Float16, Alpha: 1}
	scaled := f32
	scaled.Alpha, scaled.Beta = 0, 0.5
	ltCall := func(g Gemm) func() error {
		return func() error {
			l, err := OpenLt(m.d)
			if err != nil {
				return err
			}
			return errors.Join(l.Gemm(m.s, &g, m.dev[2], p, m.dev[1], nil, 0), l.Close())
		}
	}
	call := func(do func(h *Handle) error) func() error {
		return func() error {
			h, err := Open(m.d)
			if err != nil {
				return err
			}
			return errors.Join(do(h), h.Close())
		}
	}
	for _, tc := range []struct {
		fn   string
		call func() error
	}{
		{"cublasLtCreate", ltCall(f32)},
		{"cublasLtDestroy", ltCall(f32)},
		{"cublasLtMatmulDescCreate", ltCall(f32)},
		{"cublasLtMatmulDescDestroy", ltCall(f32)},
		{"cublasLtMatmulDescSetAttribute", ltCall(f32)},
		{"cublasLtMatrixLayoutCreate", ltCall(f32)},
		{"cublasLtMatrixLayoutDestroy", ltCall(f32)},
		{"cublasLtMatmulPreferenceCreate", ltCall(f32)},
		{"cublasLtMatmulPreferenceDestroy", ltCall(f32)},
		{"cublasLtMatmulPreferenceSetAttribute", ltCall(f16)},
		{"cublasLtMatmulAlgoGetHeuristic", ltCall(f32)},
		{"cublasLtMatmul", ltCall(f32)},
		{"cublasLtMatrixTransformDescCreate", ltCall(scaled)},
		{"cublasLtMatrixTransformDescDestroy", ltCall(scaled)},
		{"cublasLtMatrixTransform", ltCall(scaled)},
		{"cublasLtMatrixLayoutCreate", ltCall(scaled)},
		{"cublasLtMatrixLayoutDestroy", ltCall(scaled)},
		{"cublasCreate_v2", call(func(*Handle) error { return nil })},
		{"cublasDestroy_v2", call(func(*Handle) error { return nil })},
		{"cublasSetStream_v2", call(func(h *Handle) error { return h.Gemm(m.s, &f32, m.dev[2], p, m.dev[1]) })},
		{"cublasSetWorkspace_v2", call(func(h *Handle) error { return h.SetWorkspace(p, 64) })},
		{"cublasSgemm_v2", call(func(h *Handle) error { return h.Gemm(m.s, &f32, m.dev[2], p, m.dev[1]) })},
		{"cublasSgemv_v2", call(func(h *Handle) error {
			return h.Gemv(m.s, elem.Float32, false, 2, 3, 1, p, 3, m.dev[1], 0, m.dev[2])
		})},
		{"cublasSgeam", call(func(h *Handle) error { return h.Gemm(m.s, &scaled, m.dev[2], p, m.dev[1]) })},
		{"cublasDgeam", call(func(h *Handle) error {
			return h.Gemv(m.s, elem.Float64, false, 2, 3, 0, p, 3, m.dev[1], 2, m.dev[2])
		})},
	} {
		t.Setenv("FAKECUBLAS_FAIL", tc.fn+"=14")
		err := tc.call()
		t.Setenv("FAKECUBLAS_FAIL", "")
		var e *ccall.Error
		if !errors.Is(err, ErrInternal) || !errors.As(err, &e) || e.Op != tc.fn || e.Rank != -1 {
			t.Errorf("%s: %v", tc.fn, err)
			continue
		}
		testkit.Refused(t, err, "CUBLAS_STATUS_INTERNAL_ERROR")
		if err := tc.call(); err != nil {
			t.Errorf("%s, afterwards: %v", tc.fn, err)
		}
	}

	// A library that has no algorithm says so by an empty list, not by a status.
	t.Setenv("FAKECUBLAS_NONE", "1") // the plain product
	err := ltCall(f16)()
	if !errors.Is(err, ErrNotSupported) {
		t.Errorf("%v", err)
	}
	testkit.Refused(t, err, "cublasLtMatmulAlgoGetHeuristic", "CUBLAS_STATUS_NOT_SUPPORTED", "float16 C(2, 3)")
}

// A context that cannot be made current is the driver's failure, not the library's.
func fakeContext(t *testing.T) {
	m := newMachine(t)
	l, h := m.openLt(), m.open()
	p := m.dev[0]
	g := Gemm{M: 1, N: 1, K: 1, LdA: 1, LdB: 1, LdC: 1, AB: elem.Float32, C: elem.Float32, Alpha: 1}
	m.try(l.Gemm(m.s, &g, m.dev[2], p, p, nil, 0))
	// This thread is given the context of another device.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	t.Setenv("FAKECUDA_DEVICES", "2")
	other, err := cuda.Open(1)
	testkit.Must(t, err)
	t.Cleanup(func() { m.try(other.Close()) })
	m.try(other.Synchronize())
	t.Setenv("FAKECUDA_FAIL", "cuCtxSetCurrent=709")
	shape := g
	shape.LdA = 2
	for i, err := range []error{
		l.Gemm(m.s, &g, m.dev[2], p, p, nil, 0), l.Gemm(m.s, &shape, m.dev[2], p, p, nil, 0),
		h.Gemm(m.s, &g, m.dev[2], p, p), h.SetWorkspace(nil, 0),
	} {
		var e *ccall.Error
		if !errors.Is(err, cuda.Result(709)) || !errors.As(err, &e) || e.Op != "cuCtxSetCurrent" {
			t.Errorf("call %d: %v", i, err)
		}
	}
	t.Setenv("FAKECUDA_FAIL", "")
	m.try(l.Gemm(m.s, &g, m.dev[2], p, p, nil, 0))
}

// The library forgets the workspace when the stream changes.
func fakeWorkspace(t *testing.T) {
	m := newMachine(t)
	h := m.open()
	other, err := m.d.NewStream(0)
	testkit.Must(t, err)
	t.Cleanup(func() { m.try(other.Close()) })
	lines := log(t)
	g := Gemm{M: 1, N: 1, K: 1, LdA: 1, LdB: 1, LdC: 1, AB: elem.Float32, C: elem.Float32, Alpha: 1}
	m.try(h.Gemm(m.s, &g, m.dev[2], m.dev[0], m.dev[1]))
	m.try(h.SetWorkspace(m.dev[3], 4096))
	for _, s := range []*cuda.Stream{m.s, m.s, other, other, m.s} {
		m.try(h.Gemm(s, &g, m.dev[2], m.dev[0], m.dev[1]))
	}
	m.try(h.SetWorkspace(nil, 0))
	m.try(h.Gemm(other, &g, m.dev[2], m.dev[0], m.dev[1]))
	var got []string
	for _, l := range lines("cublasSgemm_v2") {
		_, bytes, _ := strings.Cut(l, "workspace=")
		got = append(got, strings.TrimSuffix(bytes, " = 0"))
	}
	if want := "0 4096 4096 4096 4096 4096 0"; strings.Join(got, " ") != want {
		t.Errorf("workspaces %q, want %q", got, want)
	}
	if n := len(lines("cublasSetStream_v2")); n != 4 {
		t.Errorf("the stream was set %d times, want 4", n)
	}
}

// wideCalls are three calls with a stride beyond 32 bits, of one row, so that it is never used.
func wideCalls(m *machine, h *Handle) []error {
	const ld = 1 << 32
	zero := make([]float64, 16)
	a, b, c := m.put(0, 0, elem.Float64, zero), m.put(1, 0, elem.Float64, zero), m.put(2, 0, elem.Float64, zero)
	g := Gemm{M: 1, N: 2, K: 3, LdA: ld, LdB: 2, LdC: 2, AB: elem.Float64, C: elem.Float64, Alpha: 1}
	scale := Gemm{M: 1, N: 2, K: 0, LdA: 1, LdB: 2, LdC: ld, AB: elem.Float32, C: elem.Float32, Beta: 0.5}
	return []error{
		h.Gemm(m.s, &g, c, a, b), h.Gemm(m.s, &scale, c, a, b),
		h.Gemv(m.s, elem.Float32, false, 1, 3, 1, a, ld, b, 0, c),
	}
}

func fakeWide(t *testing.T) {
	m := newMachine(t)
	lines := log(t)
	for _, err := range wideCalls(m, m.open()) {
		m.try(err)
	}
	wantLine(t, lines("cublasDgemm_v2_64"), "ldb=4294967296 ")
	wantLine(t, lines("cublasSgeam_64"), "m=2 n=1 ")
	wantLine(t, lines("cublasSgemv_v2_64"), "t=1 m=3 n=1 lda=4294967296 ")
}

// Before CUDA 12 the library counted with 32 bits only.
func TestFakeWithout64Bits(t *testing.T) {
	fake(t, func(t *testing.T) {
		m := newMachine(t)
		h := m.open()
		for _, err := range wideCalls(m, h) {
			testkit.Refused(t, err, "32 bits", "4294967296")
		}
		m.table(plainPairs, [][3]int{{3, 5, 7}}, h.Gemm)
	}, testkit.WithoutSymbols("cublasSgemm_v2_64", "cublasDgeam_64")...)
}

func TestFakeMissingSymbols(t *testing.T) {
	fake(t, func(t *testing.T) {
		m := newMachine(t)
		for range 2 {
			_, err := OpenLt(m.d)
			testkit.Refused(t, err, "libcublasLt.so.13", "cublasLtMatmulAlgoGetHeuristic")
			_, err = Open(m.d)
			testkit.Refused(t, err, "libcublas.so.13", "cublasSgemv_v2")
		}
	}, testkit.WithoutSymbols("cublasLtMatmulAlgoGetHeuristic", "cublasSgemv_v2")...)
}

func TestWithoutLibraries(t *testing.T) {
	_, err := openLtLibrary([]string{"libcublasLt-nowhere.so.1"})
	testkit.Refused(t, err, "libcublasLt-nowhere.so.1")
	_, err = openLibrary([]string{"libcublas-nowhere.so.1"})
	testkit.Refused(t, err, "libcublas-nowhere.so.1")
}

func TestResultNames(t *testing.T) {
	if got := ErrNotSupported.Error(); !strings.HasPrefix(got, "CUBLAS_STATUS_NOT_SUPPORTED: ") {
		t.Error(got)
	}
	if got := Result(4711).Error(); got != "cublasStatus_t 4711" {
		t.Error(got)
	}
}
