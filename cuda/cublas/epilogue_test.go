package cublas

import (
	"errors"
	"math"
	"math/rand/v2"
	"regexp"
	"testing"
	"unsafe"

	"lockstep/internal/elem"
	"lockstep/internal/testkit"
)

var allEpilogues = []Epilogue{NoEpilogue, Bias, GELU, BiasGELU, DGELU}

// epilogues tries every epilogue for a pair of types, in shapes that suit the library. Beta
// multiplies C, or another matrix. It returns the epilogues that the library refused.
func (m *machine) epilogues(p pair, mul func(g *Gemm, x *Beside, c, a, b ptr) error) (refused map[Epilogue]int) {
	m.t.Helper()
	refused = map[Epilogue]int{}
	r := rand.New(rand.NewPCG(1, 2))
	for _, shape := range [][3]int{{8, 16, 24}, {24, 8, 40}, {16, 128, 64}, {33, 72, 8}} {
		for trans := range 4 {
			for _, pad := range []int{0, 8} {
				for _, e := range allEpilogues {
					for _, apart := range []bool{false, true} {
						g := Gemm{M: shape[0], N: shape[1], K: shape[2], TransA: trans&1 != 0,
							TransB: trans&2 != 0, AB: p.ab, C: p.c, Alpha: 1, Epilogue: e}
						if apart {
							if e.aux() {
								continue
							}
							g.Beta = 1
						}
						if m.tryEpilogue(r, g, pad, apart, mul) {
							refused[e]++
						}
					}
				}
			}
		}
	}
	return refused
}

// tryEpilogue runs one product on random numbers. Results were NaN before. It compares them with
// float64.
func (m *machine) tryEpilogue(
	r *rand.Rand, g Gemm, pad int, apart bool, mul func(g *Gemm, x *Beside, c, a, b ptr) error,
) (refused bool) {
	m.t.Helper()
	rowsA, widthA, rowsB, widthB := g.M, g.K, g.K, g.N
	if g.TransA {
		rowsA, widthA = widthA, rowsA
	}
	if g.TransB {
		rowsB, widthB = widthB, rowsB
	}
	g.LdA, g.LdB, g.LdC = widthA+pad, widthB+pad, g.N+pad
	random := func(n int, t elem.Type) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = round(t, r.NormFloat64())
		}
		return v
	}
	nans := func(n int) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = math.NaN()
		}
		return v
	}
	a, b := random(rowsA*g.LdA, g.AB), random(rowsB*g.LdB, g.AB)
	add, aux, bias := random(g.M*g.LdC, g.C), random(g.M*g.LdC, g.C), random(g.N, g.C)
	// Operand 0 holds A, B and the bias; 1 the added matrix and the aux; 2 is C.
	const part = operandBytes / 4
	at := func(i, quarter int, t elem.Type, v []float64) ptr { return m.put(i, quarter*part/t.Size(), t, v) }
	pa, pb, pc := at(0, 0, g.AB, a), at(0, 1, g.AB, b), m.put(2, 0, g.C, nans(g.M*g.LdC))
	var x Beside
	if apart {
		x.Add = at(1, 0, g.C, add)
	}
	if g.Epilogue.bias() {
		x.Bias = at(0, 2, g.C, bias)
	}
	switch g.Epilogue {
	case GELU, BiasGELU:
		x.Aux = at(1, 1, g.C, nans(g.M*g.LdC))
	case DGELU:
		x.Aux = at(1, 1, g.C, aux)
	}
	switch err := mul(&g, &x, pc, pa, pb); {
	case errors.Is(err, ErrNoEpilogue):
		return true
	case err != nil:
		m.t.Errorf("%v: %v", &g, err)
		return false
	}
	got := m.take(pc, g.C, g.M*g.LdC)
	var pre []float64
	if x.Aux != nil {
		pre = m.take(x.Aux, g.C, g.M*g.LdC)
	}
	eps := map[elem.Type]float64{elem.Float32: 1e-5, elem.Float64: 1e-13, elem.BFloat16: 1.0 / 128,
		elem.Float16: 1.0 / 1024}[g.C]
	if !g.C.Half() && g.Epilogue.aux() {
		eps = 1e-3 // the library's gelu is approximate, in float64 too
	}
	near := func(name string, i int, v, want, size float64) bool {
		m.t.Helper()
		if d := math.Abs(v - want); !(d <= eps*(math.Abs(want)+size)/2) {
			m.t.Errorf("%v apart %v: %s[%d] = %v, want %v", &g, apart, name, i, v, want)
			return false
		}
		return true
	}
	for i := range g.M {
		for j := range g.N {
			v, size := 0.0, 1.0
			for l := range g.K {
				x, y := i*g.LdA+l, l*g.LdB+j
				if g.TransA {
					x = l*g.LdA + i
				}
				if g.TransB {
					y = j*g.LdB + l
				}
				v += g.Alpha * a[x] * b[y]
			}
			// Intermediate results may be rounded to the type, too.
			size += math.Abs(v)
			at := i*g.LdC + j
			if apart {
				v += g.Beta * add[at]
			}
			size += math.Abs(v)
			if g.Epilogue.bias() {
				v += bias[j]
			}
			if g.Epilogue == GELU || g.Epilogue == BiasGELU {
				if !near("aux", at, pre[at], v, size) {
					return false
				}
				v = v / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v)))
			}
			if g.Epilogue == DGELU {
				x, k := aux[at], math.Sqrt(2/math.Pi)
				t := math.Tanh(k * (x + 0.044715*x*x*x))
				v *= (1+t)/2 + x/2*(1-t*t)*k*(1+3*0.044715*x*x)
			}
			if !near("C", at, got[at], v, size) {
				return false
			}
		}
		for j := g.N; j < g.LdC; j++ {
			if !math.IsNaN(got[i*g.LdC+j]) {
				m.t.Errorf("%v: element %d behind row %d was written", &g, j, i)
			}
		}
	}
	return false
}

func (m *machine) beside(l *Lt) func(g *Gemm, x *Beside, c, a, b ptr) error {
	return func(g *Gemm, x *Beside, c, a, b ptr) error {
		return l.GemmBeside(m.s, g, x, c, a, b, m.dev[3], workspaceBytes)
	}
}

func fakeEpilogues(t *testing.T) {
	m := newMachine(t)
	l := m.openLt()
	for _, p := range ltPairs {
		for e, n := range m.epilogues(p, m.beside(l)) {
			if p.c != elem.Float64 || e == NoEpilogue {
				t.Errorf("%v of %v refused %d times", e, p, n)
			}
		}
	}
}

// The library's arguments for an epilogue, by hand: rows and columns change places.
func fakeEpilogueArguments(t *testing.T) {
	m := newMachine(t)
	l := m.openLt()
	zero := make([]float64, 1000)
	a, b, c := m.put(0, 0, elem.Float32, zero), m.put(1, 0, elem.Float32, zero), m.put(2, 0, elem.Float32, zero)
	add, bias, aux := unsafe.Add(c, 1024), unsafe.Add(b, 2048), unsafe.Add(a, 2048)
	g := Gemm{M: 2, N: 8, K: 4, LdA: 4, LdB: 8, LdC: 16, AB: elem.BFloat16, C: elem.BFloat16, Alpha: 1, Beta: 1}
	for _, tc := range []struct {
		e    Epilogue
		x    Beside
		want string
	}{
		{NoEpilogue, Beside{Add: add}, "epilogue=1 bias=.nil. of 0 aux=.nil. ldaux=0 .* C=" + hex(add)},
		{Bias, Beside{Add: add, Bias: bias},
			"epilogue=4 bias=" + hex(bias) + " of 14 aux=.nil. ldaux=0 .* C=" + hex(add)},
		{GELU, Beside{Aux: aux}, "epilogue=160 bias=.nil. of 0 aux=" + hex(aux) + " ldaux=16 .* C=" + hex(c)},
		{BiasGELU, Beside{Bias: bias, Aux: aux},
			"epilogue=164 bias=" + hex(bias) + " of 14 aux=" + hex(aux) + " ldaux=16 "},
		{DGELU, Beside{Aux: aux}, "epilogue=192 bias=.nil. of 0 aux=" + hex(aux) + " ldaux=16 "},
	} {
		lines := log(t)
		g.Epilogue = tc.e
		m.try(l.GemmBeside(m.s, &g, &tc.x, c, a, b, m.dev[3], 1000))
		wantLine(t, lines("cublasLtMatmul"), tc.want)
		wantLine(t, lines("cublasLtMatmul"), "D="+regexp.QuoteMeta(hex(c))+" ta=0 tb=0 m=8 n=2 k=4 ")
	}

	// A plan serves products with other addresses; a bias of float32 beside a C of float32.
	lines := log(t)
	g.Epilogue = Bias
	other := unsafe.Add(bias, 64)
	m.try(l.GemmBeside(m.s, &g, &Beside{Add: add, Bias: other}, c, a, b, m.dev[3], 1000))
	wantLine(t, lines("cublasLtMatmul"), "bias="+hex(other))
	if n := len(lines("cublasLtMatmulAlgoGetHeuristic")); n != 0 {
		t.Errorf("%d plans made anew", n)
	}
	g.C = elem.Float32
	m.try(l.GemmBeside(m.s, &g, &Beside{Add: add, Bias: other}, c, a, b, m.dev[3], 1000))
	wantLine(t, lines("cublasLtMatmulAlgoGetHeuristic"), "align=256,256,256,256 epilogue=4")
	m.try(l.GemmBeside(m.s, &g, &Beside{Add: unsafe.Add(add, 32), Bias: other}, c, a, b, m.dev[3], 1000))
	if got := lines("cublasLtMatmulAlgoGetHeuristic"); len(got) != 2 ||
		!regexp.MustCompile("align=256,256,32,256 ").MatchString(got[1]) {
		t.Errorf("%q", got)
	}
}

// An epilogue that the library cannot do is ErrNoEpilogue. It is asked for once, and enqueues
// nothing.
func fakeNoEpilogue(t *testing.T) {
	m := newMachine(t)
	l, h := m.openLt(), m.open()
	p := m.dev[0]
	g := Gemm{M: 2, N: 8, K: 4, LdA: 4, LdB: 8, LdC: 8, AB: elem.BFloat16, C: elem.BFloat16, Alpha: 1,
		Epilogue: BiasGELU}
	x := Beside{Bias: unsafe.Add(p, 4096), Aux: unsafe.Add(p, 8192)}
	run := func(change func(g *Gemm, x *Beside)) error {
		g, x := g, x
		change(&g, &x)
		return l.GemmBeside(m.s, &g, &x, m.dev[2], p, m.dev[1], nil, 0)
	}
	lines := log(t)
	t.Setenv("FAKECUBLAS_NONE", "36,164")
	for range 3 {
		if err := run(func(*Gemm, *Beside) {}); err != ErrNoEpilogue {
			t.Error(err)
		}
	}
	wantLine(t, lines("cublasLtMatmulAlgoGetHeuristic"), "epilogue=164 .*got=0")
	t.Setenv("FAKECUBLAS_NONE", "")
	t.Setenv("FAKECUBLAS_FAIL", "cublasLtMatmulAlgoGetHeuristic=7")
	if err := run(func(g *Gemm, _ *Beside) { g.K = 3 }); err != ErrNoEpilogue {
		t.Error(err)
	}
	t.Setenv("FAKECUBLAS_FAIL", "")
	for _, change := range []func(g *Gemm, x *Beside){
		func(g *Gemm, _ *Beside) { g.K = 0 },
		func(g *Gemm, _ *Beside) { g.Alpha = 0 },
		func(g *Gemm, _ *Beside) { g.M = 0 },
		func(g *Gemm, _ *Beside) { g.LdC = 12 },
		func(_ *Gemm, x *Beside) { x.Bias = unsafe.Add(x.Bias, 8) },
		func(_ *Gemm, x *Beside) { x.Aux = unsafe.Add(x.Aux, 2) },
	} {
		if err := run(change); err != ErrNoEpilogue {
			t.Error(err)
		}
	}
	testkit.Refused(t, run(func(_ *Gemm, x *Beside) { x.Aux = nil }), "Aux at 0x0", "with Bias and GELU")
	testkit.Refused(t, run(func(g *Gemm, x *Beside) { g.Epilogue = NoEpilogue }), "Bias at")
	testkit.Refused(t, h.Gemm(m.s, &g, m.dev[2], p, m.dev[1]), "cuBLASLt's")
	if got := lines("cublasLtMatmul"); len(got) > 0 {
		t.Errorf("called: %q", got)
	}
	if err := run(func(*Gemm, *Beside) {}); err != ErrNoEpilogue { // as it was found the first time
		t.Error(err)
	}
	// Without a product C is the added matrix, row by row if there is something between.
	add := m.put(1, 0, elem.BFloat16, matrix(2, 8, 12, 1, 5))
	c := m.put(2, 0, elem.BFloat16, matrix(2, 8, 12, 2, -77))
	m.try(run(func(g *Gemm, x *Beside) { *x, g.Epilogue, g.K, g.Beta, g.LdC = Beside{Add: add}, NoEpilogue, 0, 1, 12 }))
	want := matrix(2, 8, 12, 1, -77)
	for i, got := range m.take(c, elem.BFloat16, len(want)) {
		if got != want[i] {
			t.Errorf("C[%d] = %v, want %v", i, got, want[i])
		}
	}
}
