package cublas

import (
	"math"
	"runtime"
	"testing"

	"lockstep/cuda"
	"lockstep/internal/elem"
)

// onGPU skips the test without a GPU or the library.
func onGPU(t *testing.T, library func() error) *machine {
	t.Helper()
	if err := cuda.Load(); err != nil {
		t.Skip(err)
	}
	if err := library(); err != nil {
		t.Skip(err)
	}
	return newMachine(t)
}

func TestGPULtGemm(t *testing.T) {
	m := onGPU(t, loadLt)
	mul := m.in(m.openLt())
	m.table(ltPairs, append([][3]int{{65, 129, 31}, {128, 64, 256}}, smallShapes...), mul)
	m.stacks([][3]int{{3, 5, 7}, {64, 32, 48}, {65, 33, 31}}, mul)
	for _, p := range ltPairs {
		m.try1(Gemm{M: 40, N: 136, K: 72, Count: 5, TransA: true, AB: p.ab, C: p.c, Alpha: 1, Beta: 1}, 0, mul)
		m.try1(Gemm{M: 511, N: 257, K: 96, TransB: true, AB: p.ab, C: p.c, Alpha: 1, Beta: 1}, 0, mul)
	}
}

func TestGPULtGemmWithoutWorkspace(t *testing.T) {
	m := onGPU(t, loadLt)
	l := m.openLt()
	m.table(ltPairs, [][3]int{{33, 64, 65}},
		func(s *cuda.Stream, g *Gemm, c, a, b ptr) error { return l.Gemm(s, g, c, a, b, nil, 0) })
}

func TestGPUHandleGemm(t *testing.T) {
	m := onGPU(t, load)
	h := m.open()
	m.try(h.SetWorkspace(m.dev[3], workspaceBytes))
	m.table(plainPairs, append([][3]int{{65, 129, 31}}, smallShapes...), h.Gemm)
}

func TestGPUGemv(t *testing.T) {
	m := onGPU(t, load)
	m.vectors(m.open(), [][2]int{{1, 1}, {3, 5}, {127, 65}, {1, 300}, {300, 1}, {0, 4}, {4, 0}})
}

// A float32 product keeps bits that TF32, with 11 of them, would lose.
func TestGPUFloat32IsNotTF32(t *testing.T) {
	m := onGPU(t, loadLt)
	const n = 64
	x := 1 + math.Ldexp(1, -20)
	ones, xs := make([]float64, n*n), make([]float64, n*n)
	for i := range n {
		ones[i*n+i] = 1
	}
	for i := range xs {
		xs[i] = x
	}
	g := Gemm{M: n, N: n, K: n, LdA: n, LdB: n, LdC: n, AB: elem.Float32, C: elem.Float32, Alpha: 1}
	products := map[string]multiply{"Lt": m.in(m.openLt())}
	if err := load(); err == nil {
		products["Handle"] = m.open().Gemm
	}
	for name, mul := range products {
		a, b, c := m.put(0, 0, g.AB, xs), m.put(1, 0, g.AB, ones), m.put(2, 0, g.C, ones)
		m.try(mul(m.s, &g, c, a, b))
		for i, got := range m.take(c, g.C, n*n) {
			if got != x {
				t.Fatalf("%s: C[%d] = %v, want %v", name, i, got, x)
			}
		}
	}
}

// 4096 times 1 is 2048 if a sum is kept in float16, and 256 in bfloat16. Few rows and many terms
// ask for a sum split over blocks, whose parts must not be rounded either.
func TestGPUHalvesSumInFloat32(t *testing.T) {
	m := onGPU(t, loadLt)
	mul := m.in(m.openLt())
	const n, k = 16, 1<<15 + 8
	a, b := make([]float64, n*k), make([]float64, n*k)
	for i := range a {
		a[i], b[i] = 1, 1
	}
	for _, p := range ltPairs[2:] {
		g := Gemm{M: n, N: n, K: k, TransB: true, LdA: k, LdB: k, LdC: n, AB: p.ab, C: p.c, Alpha: 1.0 / 16}
		pa, pb, pc := m.put(0, 0, p.ab, a), m.put(1, 0, p.ab, b), m.put(2, 0, p.c, make([]float64, n*n))
		m.try(mul(m.s, &g, pc, pa, pb))
		for i, got := range m.take(pc, p.c, n*n) {
			if want := round(p.c, k/16.0); got != want {
				t.Fatalf("%v to %v: C[%d] = %v, want %v", p.ab, p.c, i, got, want)
			}
		}
	}
}

// A graph that captured calls of either library can be launched again and again.
func TestGPUCapture(t *testing.T) {
	m := onGPU(t, loadLt)
	runtime.LockOSThread() // a capture ends on the thread where it began
	defer runtime.UnlockOSThread()
	products := map[string]multiply{"Lt": m.in(m.openLt())}
	if err := load(); err == nil {
		h := m.open()
		m.try(h.SetWorkspace(m.dev[3], workspaceBytes))
		products["Handle"] = h.Gemm
	}
	g := Gemm{M: 5, N: 6, K: 7, LdA: 7, LdB: 6, LdC: 6, AB: elem.Float32, C: elem.Float32, Alpha: 1, Beta: 1}
	for name, mul := range products {
		a, b := matrix(5, 7, 7, 1, 0), matrix(7, 6, 6, 2, 0)
		want := matrix(5, 6, 6, 3, 0)
		pa, pb, pc := m.put(0, 0, g.AB, a), m.put(1, 0, g.AB, b), m.put(2, 0, g.C, want)
		m.try(mul(m.s, &g, pc, pa, pb)) // chooses the algorithm
		m.try(m.s.BeginCapture(cuda.ThreadLocal))
		m.try(mul(m.s, &g, pc, pa, pb))
		graph, err := m.s.EndCapture()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		exec, err := graph.Instantiate()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		m.try(exec.Launch(m.s))
		m.try(exec.Launch(m.s))
		for range 3 {
			reference(&g, want, a, b)
		}
		for i, got := range m.take(pc, g.C, len(want)) {
			if got != want[i] {
				t.Errorf("%s: C[%d] = %v, want %v", name, i, got, want[i])
			}
		}
		m.try(exec.Close())
		m.try(graph.Close())
	}
}

// Every epilogue into every type, with float64 as the judge. For results of 16 bits the library has
// them all; its refusals of the others are in the log.
func TestGPULtEpilogues(t *testing.T) {
	m := onGPU(t, loadLt)
	l := m.openLt()
	for _, p := range ltPairs {
		refused := m.epilogues(p, m.beside(l))
		for _, e := range allEpilogues {
			if refused[e] == 0 {
				continue
			}
			t.Logf("%v into %v: %v refused %d times", p.ab, p.c, e, refused[e])
			if e == NoEpilogue || p.c.Half() {
				t.Errorf("%v into %v: %v refused", p.ab, p.c, e)
			}
		}
	}
}
