package cublas

import (
	"testing"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/internal/testkit"
)

// eight tries products of 8-bit floats, with scales and without. The operands are small integers
// whose sums are exact in any order.
func (m *machine) eight(l *Lt) {
	m.t.Helper()
	scaleA, scaleB := m.put(3, workspaceBytes/8, elem.Float32, []float64{0.5}),
		m.put(3, workspaceBytes/8+4, elem.Float32, []float64{-0.25})
	for _, shape := range [][3]int{{16, 16, 16}, {3, 32, 64}, {48, 16, 32}, {130, 272, 512}} {
		for flags := range 16 {
			g := Gemm{M: shape[0], N: shape[1], K: shape[2], TransB: true, LdA: shape[2], LdB: shape[2], LdC: shape[1],
				AB: elem.Float8E4M3, C: elem.BFloat16, Alpha: 1, FastAccum: flags&1 != 0}
			if flags&8 != 0 {
				g.AB = elem.Float8E5M2 // and B is not
			}
			a, b, c := matrix(g.M, g.K, g.LdA, 1, 0), matrix(g.N, g.K, g.LdB, 2, 0), make([]float64, g.M*g.N)
			want := make([]float64, g.M*g.N)
			var x Beside
			factor := 1.0
			if flags&2 != 0 {
				x.ScaleA, factor = scaleA, factor*0.5
			}
			if flags&4 != 0 {
				x.ScaleB, factor = scaleB, factor*-0.25
			}
			reference(&g, want, a, b)
			for i := range want {
				want[i] = round(elem.BFloat16, want[i]*factor)
			}
			pa, pb, pc := m.put(0, 0, g.AB, a), m.put(1, 0, elem.Float8E4M3, b), m.put(2, 0, g.C, c)
			if err := l.GemmBeside(m.s, &g, &x, pc, pa, pb, m.dev[3], workspaceBytes/2); err != nil {
				m.t.Fatalf("%v: %v", &g, err)
			}
			for i, v := range m.take(pc, g.C, len(want)) {
				if v != want[i] {
					m.t.Fatalf("%v, scales %v: C[%d] is %v, want %v", &g, factor, i, v, want[i])
				}
			}
		}
	}
}

func TestGPULtEight(t *testing.T) {
	m := onGPU(t, loadLt)
	if major, minor := m.d.Capability(); major*10+minor < 89 {
		t.Skip("no tensor cores for it")
	}
	m.eight(m.openLt())
}

// The library's arguments: the scales change places, as the operands do.
func fakeEight(t *testing.T) {
	m := newMachine(t)
	l := m.openLt()
	m.eight(l)
	zero := make([]float64, 256)
	a, b, c := m.put(0, 0, elem.Float32, zero), m.put(1, 0, elem.Float32, zero), m.put(2, 0, elem.Float32, zero)
	x := Beside{ScaleA: unsafe.Add(a, 512), ScaleB: unsafe.Add(b, 512)}
	g := Gemm{M: 2, N: 16, K: 32, TransB: true, LdA: 32, LdB: 32, LdC: 16, AB: elem.Float8E4M3,
		C: elem.BFloat16, Alpha: 1, FastAccum: true}
	lines := log(t)
	m.try(l.GemmBeside(m.s, &g, &x, c, a, b, m.dev[3], 1000))
	wantLine(t, lines("cublasLtMatmul"), "fast=1 scales="+hex(x.ScaleB)+","+hex(x.ScaleA)+
		" .* ta=1 tb=0 m=16 n=2 k=32 lda=32 ldb=32 ldc=16 ab=28 c=14 ")
	// Another scale needs no other plan; another way to sum does.
	x.ScaleA = unsafe.Add(a, 528)
	m.try(l.GemmBeside(m.s, &g, &x, c, a, b, m.dev[3], 1000))
	g.FastAccum = false
	m.try(l.GemmBeside(m.s, &g, &x, c, a, b, m.dev[3], 1000))
	if n := len(lines("cublasLtMatmulAlgoGetHeuristic")); n != 2 {
		t.Errorf("%d plans, want 2", n)
	}
	g.AB = elem.BFloat16
	testkit.Refused(t, l.GemmBeside(m.s, &g, &x, c, a, b, m.dev[3], 1000),
		"scales, or fast sums, of A and B that are not 8-bit floats")
	g.AB, x.ScaleB = elem.Float8E4M3, unsafe.Add(b, 516)
	testkit.Refused(t, l.GemmBeside(m.s, &g, &x, c, a, b, m.dev[3], 1000), "want addresses that are multiples of 16")
	// It is tuned with its scales.
	for _, sh := range l.Shapes() {
		if sh.key.ab == elem.Float8E4M3 && sh.key.m == 2 {
			lines = log(t)
			_, _, err := l.Tune(m.s, sh, 0)
			m.try(err)
			for _, line := range lines("cublasLtMatmul") {
				if !sh.key.fast {
					wantLine(t, []string{line}, "fast=0 scales=0x.*,0x.* epilogue=1 .* = 0$")
				} else {
					wantLine(t, []string{line}, "fast=1 scales=0x.*,0x.* epilogue=1 .* = 0$")
				}
			}
		}
	}
}
