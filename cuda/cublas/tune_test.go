package cublas

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
	"lockstep/internal/testkit"
)

// The fastest algorithm that runs is chosen, on memory that is neither the caller's nor zero, and
// later products use it.
func fakeTune(t *testing.T) {
	m := newMachine(t)
	l := m.openLt()
	t.Setenv("FAKECUBLAS_SLOW", "8,-1,0,3")
	zero := make([]float64, 1000)
	a, b, c := m.put(0, 0, elem.BFloat16, zero), m.put(1, 0, elem.BFloat16, zero), m.put(2, 0, elem.BFloat16, zero)
	g := Gemm{M: 8, N: 16, K: 24, TransA: true, LdA: 8, LdB: 16, LdC: 16, AB: elem.BFloat16,
		C: elem.BFloat16, Alpha: 1, Beta: 1, Epilogue: Bias}
	x := Beside{Add: unsafe.Add(c, 32*32), Bias: unsafe.Add(b, 4096)}
	run := func() { m.try(l.GemmBeside(m.s, &g, &x, c, unsafe.Add(a, 32), b, m.dev[3], 1000)) }
	lines := log(t)
	run()
	wantLine(t, lines("cublasLtMatmul"), "algo=0 ")
	shapes := l.Shapes()
	if len(shapes) != 1 {
		t.Fatalf("%d shapes, want 1: %v", len(shapes), shapes)
	}
	lines = log(t)
	choice, timing, err := l.Tune(m.s, shapes[0], time.Second)
	testkit.Must(t, err)
	// Seconds are beyond any noise of the machine.
	if timing.Tried != 4 || timing.First < 8*time.Second || timing.Best > timing.First {
		t.Errorf("%+v", timing)
	}
	for _, line := range lines("cublasLtMatmul") {
		for _, p := range []ptr{a, b, c, x.Add, x.Bias, m.dev[3]} {
			if strings.Contains(line, "="+hex(p)+" ") {
				t.Errorf("operands of the caller in %q", line)
			}
		}
		if !strings.Contains(line, "epilogue=4 ") || !strings.Contains(line, "beta=1 ") ||
			strings.Contains(line, "C=.nil.") {
			t.Errorf("another product was timed: %q", line)
		}
	}
	if got := lines("cublasLtMatmulAlgoGetHeuristic"); len(got) != 2 ||
		!strings.Contains(got[0], "align=256,32,256,256 epilogue=4 want=24 got=4") ||
		!strings.Contains(got[1], "align=256,32,256,256 epilogue=4 want=1 got=1") {
		t.Errorf("asked %q", got)
	}
	lines = log(t)
	m.try(l.Choose(shapes[0], choice))
	run()
	wantLine(t, lines("cublasLtMatmul"), "algo=2 ")
	if got := lines("cublasLtMatmulAlgoGetHeuristic"); len(got) != 0 {
		t.Errorf("a new plan: %q", got)
	}

	// The first choice stays unless another is clearly faster. If no algorithm runs there is no
	// choice.
	g.M = 9
	g.TransA, g.LdA = false, 24
	t.Setenv("FAKECUBLAS_SLOW", "4,4,40")
	run()
	choice, _, err = l.Tune(m.s, l.Shapes()[1], time.Second)
	m.try(err)
	m.try(l.Choose(l.Shapes()[1], choice))
	lines = log(t)
	run()
	if got := lines("cublasLtMatmul"); len(got) != 1 || strings.Contains(got[0], "algo=2 ") {
		t.Errorf("the slowest was chosen: %q", got)
	}
	t.Setenv("FAKECUBLAS_SLOW", "-1,-1")
	_, _, err = l.Tune(m.s, l.Shapes()[1], time.Second)
	testkit.Refused(t, err, "no algorithm")
	t.Setenv("FAKECUBLAS_SLOW", "")

	testkit.Refused(t, l.Choose(shapes[0], Choice{Workspace: 1001}), "workspace of 1001")
	testkit.Refused(t, l.Choose(Shape{}, Choice{}), "no product")
	t.Setenv("FAKECUDA_MEMORY", "1000")
	t.Setenv("FAKECUDA_FAIL", "cuMemAlloc_v2=2")
	if _, _, err := l.Tune(m.s, shapes[0], time.Second); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Error(err)
	}
	t.Setenv("FAKECUDA_FAIL", "")
}

// Each step of a tuning that fails is an error, and gives its memory back.
func fakeTuneFails(t *testing.T) {
	m := newMachine(t)
	l := m.openLt()
	g := Gemm{M: 8, N: 16, K: 24, LdA: 24, LdB: 16, LdC: 16, AB: elem.BFloat16, C: elem.BFloat16, Alpha: 1}
	m.try(l.Gemm(m.s, &g, m.dev[2], m.dev[0], m.dev[1], nil, 0))
	sh := l.Shapes()[0]
	for _, fn := range []string{"cuMemAlloc_v2", "cuMemHostAlloc", "cuEventCreate", "cuMemcpyAsync",
		"cuEventRecord", "cuEventSynchronize", "cuMemFree_v2"} {
		t.Setenv("FAKECUDA_FAIL", fn+"=700")
		if _, _, err := l.Tune(m.s, sh, time.Second); !errors.Is(err, cuda.Result(700)) {
			t.Errorf("%s: %v", fn, err)
		}
	}
	t.Setenv("FAKECUDA_FAIL", "")
	_, _, err := l.Tune(m.s, sh, time.Second)
	m.try(err)
}
