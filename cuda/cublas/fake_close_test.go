package cublas

import (
	"errors"
	"runtime"
	"runtime/pprof"
	"sync"
	"testing"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/internal/testkit"
)

func fakeClose(t *testing.T) {
	m := newMachine(t)
	l, err := OpenLt(m.d)
	m.try(err)
	h, err := Open(m.d)
	m.try(err)
	g := Gemm{M: 1, N: 1, K: 1, LdA: 1, LdB: 1, LdC: 1, AB: elem.Float32, C: elem.Float32, Alpha: 1}
	m.try(l.Gemm(m.s, &g, m.dev[2], m.dev[0], m.dev[1], nil, 0))
	lines := log(t)
	for range 2 {
		m.try(l.Close())
		m.try(h.Close())
	}
	for fn, want := range map[string]int{
		"cublasLtDestroy": 1, "cublasDestroy_v2": 1, "cublasLtMatmulDescDestroy": 1, "cublasLtMatrixLayoutDestroy": 3,
	} {
		if got := len(lines(fn)); got != want {
			t.Errorf("%s was called %d times, want %d", fn, got, want)
		}
	}
	zero := g
	zero.K = 0
	for _, err := range []error{
		l.Gemm(m.s, &g, m.dev[2], m.dev[0], m.dev[1], nil, 0), l.Gemm(m.s, &zero, m.dev[2], nil, nil, nil, 0),
		h.Gemm(m.s, &g, m.dev[2], m.dev[0], m.dev[1]), h.SetWorkspace(nil, 0),
		h.Gemv(m.s, elem.Float32, false, 1, 1, 1, m.dev[0], 1, m.dev[1], 0, m.dev[2]),
	} {
		testkit.Refused(t, err, "used after Close")
	}
}

// One Lt serves several goroutines; each shape is made ready once.
func fakeGoroutines(t *testing.T) {
	m := newMachine(t)
	l := m.openLt()
	lines := log(t)
	zero := make([]float64, 4096)
	a, b := m.put(0, 0, elem.Float64, zero), m.put(1, 0, elem.Float64, zero)
	var wg sync.WaitGroup
	for i := range 4 {
		c := unsafe.Add(m.dev[2], i*4096)
		wg.Go(func() {
			for n := range 8 {
				g := Gemm{M: n + 1, N: 3, K: 4, LdA: 4, LdB: 3, LdC: 3, AB: elem.Float32, C: elem.Float32, Alpha: 1}
				if err := l.Gemm(m.s, &g, c, a, b, nil, 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n, made := len(lines("cublasLtMatmul")), len(lines("cublasLtMatmulAlgoGetHeuristic")); n != 32 || made != 8 {
		t.Errorf("%d products by %d plans, want 32 by 8", n, made)
	}
}

// Close works on a thread that has no context yet.
func fakeCloseElsewhere(t *testing.T) {
	m := newMachine(t)
	g := Gemm{M: 1, N: 1, K: 1, LdA: 1, LdB: 1, LdC: 1, AB: elem.Float32, C: elem.Float32, Alpha: 1}
	n := 2 * pprof.Lookup("threadcreate").Count() // more threads at once than there are
	var arrived, done sync.WaitGroup
	arrived.Add(n)
	for range n {
		l, h := m.openLt(), m.open()
		m.try(l.Gemm(m.s, &g, m.dev[2], m.dev[0], m.dev[1], nil, 0))
		done.Go(func() {
			runtime.LockOSThread() // for good: the thread ends with the goroutine
			arrived.Done()
			arrived.Wait()
			if err := errors.Join(l.Close(), h.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	done.Wait()
}

func fakeAllocations(t *testing.T) {
	m := newMachine(t)
	l, h := m.openLt(), m.open()
	g := Gemm{M: 2, N: 3, K: 4, LdA: 4, LdB: 3, LdC: 3, AB: elem.Float32, C: elem.Float32, Alpha: 1}
	for name, call := range map[string]func() error{
		"Lt.Gemm":     func() error { return l.Gemm(m.s, &g, m.dev[2], m.dev[0], m.dev[1], nil, 0) },
		"Handle.Gemm": func() error { return h.Gemm(m.s, &g, m.dev[2], m.dev[0], m.dev[1]) },
		"Gemv": func() error {
			return h.Gemv(m.s, elem.Float32, false, 2, 3, 1, m.dev[0], 3, m.dev[1], 0, m.dev[2])
		},
	} {
		if n := testkit.Allocations(50, func() { m.try(call()) }); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
