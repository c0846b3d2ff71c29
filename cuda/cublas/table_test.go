package cublas

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"lockstep/cuda"
	"lockstep/internal/elem"
	"lockstep/internal/testkit"
)

// The tables below run on the test double and, if there is one, on a GPU. Their numbers are small
// integers and simple factors. So every sum is exact in float32 in any order and the result is
// rounded once: it must be right to the bit.

// machine is a device with a stream and memory for three operands and a workspace.
type machine struct {
	t    *testing.T
	d    *cuda.Device
	s    *cuda.Stream
	dev  [4]unsafe.Pointer
	host unsafe.Pointer // pinned
}

const (
	operandBytes   = 4 << 20
	workspaceBytes = 4 << 20
)

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t}
	var err error
	must := func() {
		t.Helper()
		testkit.Must(t, err)
	}
	m.d, err = cuda.Open(0)
	must()
	t.Cleanup(func() { m.try(m.d.Close()) })
	m.s, err = m.d.NewStream(0)
	must()
	t.Cleanup(func() { m.try(m.s.Close()) })
	for i := range m.dev {
		m.dev[i], err = m.d.Malloc(operandBytes + 256)
		must()
		t.Cleanup(func() { m.try(m.d.Free(m.dev[i])) })
	}
	m.host, err = m.d.MallocHost(operandBytes)
	must()
	t.Cleanup(func() { m.try(m.d.FreeHost(m.host)) })
	t.Cleanup(func() { m.try(m.s.Synchronize()) })
	return m
}

func (m *machine) try(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Error(err)
	}
}

// put writes numbers of a type to operand i, offset elements past its beginning, and returns the
// address.
func (m *machine) put(i, offset int, t elem.Type, v []float64) unsafe.Pointer {
	m.t.Helper()
	n := len(v) * t.Size()
	if n+offset*t.Size() > operandBytes {
		m.t.Fatalf("an operand of %d bytes", n)
	}
	encode(unsafe.Slice((*byte)(m.host), n), t, v)
	p := unsafe.Add(m.dev[i], offset*t.Size())
	if n > 0 {
		m.try(m.s.Copy(p, m.host, n))
		m.try(m.s.Synchronize())
	}
	return p
}

// take reads what put wrote.
func (m *machine) take(p unsafe.Pointer, t elem.Type, n int) []float64 {
	m.t.Helper()
	if n > 0 {
		m.try(m.s.Copy(m.host, p, n*t.Size()))
	}
	m.try(m.s.Synchronize())
	return decode(unsafe.Slice((*byte)(m.host), n*t.Size()), t, n)
}

func encode(b []byte, t elem.Type, v []float64) {
	for i, x := range v {
		p := unsafe.Pointer(&b[i*t.Size()])
		switch t {
		case elem.Float16:
			*(*elem.F16)(p) = elem.ToF16(float32(x))
		case elem.BFloat16:
			*(*elem.BF16)(p) = elem.ToBF16(float32(x))
		case elem.Float32:
			*(*float32)(p) = float32(x)
		case elem.Float8E4M3:
			*(*elem.F8E4M3)(p) = elem.ToF8E4M3(float32(x))
		case elem.Float8E5M2:
			*(*elem.F8E5M2)(p) = elem.ToF8E5M2(float32(x))
		default:
			*(*float64)(p) = x
		}
	}
}

func decode(b []byte, t elem.Type, n int) []float64 {
	v := make([]float64, n)
	for i := range v {
		p := unsafe.Pointer(&b[i*t.Size()])
		switch t {
		case elem.Float16:
			v[i] = float64((*(*elem.F16)(p)).Float32())
		case elem.BFloat16:
			v[i] = float64((*(*elem.BF16)(p)).Float32())
		case elem.Float32:
			v[i] = float64(*(*float32)(p))
		case elem.Float8E4M3:
			v[i] = float64((*(*elem.F8E4M3)(p)).Float32())
		case elem.Float8E5M2:
			v[i] = float64((*(*elem.F8E5M2)(p)).Float32())
		default:
			v[i] = *(*float64)(p)
		}
	}
	return v
}

// round returns x rounded to a type.
func round(t elem.Type, x float64) float64 {
	var b [8]byte
	encode(b[:], t, []float64{x})
	return decode(b[:], t, 1)[0]
}

// matrix returns rows of width small integers, ld apart, with gap in between and after.
func matrix(rows, width, ld, seed int, gap float64) []float64 {
	v := make([]float64, rows*ld)
	for i := range v {
		v[i] = gap
	}
	for i := range rows {
		for j := range width {
			v[i*ld+j] = float64((i*7+j*5+i*j*3+seed)%9 - 4)
		}
	}
	return v
}

// reference is C = alpha op(A) op(B) + beta C by the definition, for each matrix of a stack.
func reference(g *Gemm, c, a, b []float64) {
	rowsA, rowsB := g.M, g.K
	if g.TransA {
		rowsA = g.K
	}
	if g.TransB {
		rowsB = g.N
	}
	for i := range max(1, g.Count) {
		from := func(x []float64, at int) []float64 { return x[min(at, len(x)):] }
		referenceOf(g, from(c, i*g.M*g.LdC), from(a, i*rowsA*g.LdA), from(b, i*rowsB*g.LdB))
	}
}

func referenceOf(g *Gemm, c, a, b []float64) {
	for i := range g.M {
		for j := range g.N {
			sum := 0.0
			for k := range g.K {
				x, y := i*g.LdA+k, k*g.LdB+j
				if g.TransA {
					x = k*g.LdA + i
				}
				if g.TransB {
					y = j*g.LdB + k
				}
				if g.Alpha != 0 {
					sum += a[x] * b[y]
				}
			}
			v := 0.0
			if g.Alpha != 0 {
				v = g.Alpha * sum
			}
			if g.Beta != 0 {
				v += g.Beta * c[i*g.LdC+j]
			}
			c[i*g.LdC+j] = round(g.C, v)
		}
	}
}

func same(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }

type multiply func(s *cuda.Stream, g *Gemm, c, a, b unsafe.Pointer) error

// try1 runs one product whose strides are pad more than the widths and whose operands begin pad
// elements late. The gaps between rows are NaN in A and B, and must stay as they are in C. A C that
// is not to be read holds NaN.
func (m *machine) try1(g Gemm, pad int, mul multiply) {
	m.t.Helper()
	rowsA, widthA, rowsB, widthB := g.M, g.K, g.K, g.N
	if g.TransA {
		rowsA, widthA = widthA, rowsA
	}
	if g.TransB {
		rowsB, widthB = widthB, rowsB
	}
	count := max(1, g.Count)
	rowsA, rowsB = count*rowsA, count*rowsB
	g.LdA, g.LdB, g.LdC = widthA+pad, widthB+pad, g.N+pad
	nan := math.NaN()
	a, b := matrix(rowsA, widthA, g.LdA, 1, nan), matrix(rowsB, widthB, g.LdB, 2, nan)
	c := matrix(count*g.M, g.N, g.LdC, 3, -77)
	if g.Beta == 0 {
		for i := range count * g.M {
			for j := range g.N {
				c[i*g.LdC+j] = nan
			}
		}
	}
	if g.Alpha == 0 {
		for i := range a {
			a[i] = math.Inf(1)
		}
	}
	pa, pb, pc := m.put(0, pad, g.AB, a), m.put(1, pad, g.AB, b), m.put(2, pad, g.C, c)
	err := mul(m.s, &g, pc, pa, pb)
	if !g.empty() && g.scales() && g.C.Half() && g.Beta != 0 && g.Beta != 1 {
		if err == nil {
			m.t.Errorf("%v alpha %v beta %v: 16-bit floats were scaled, which the library cannot", &g, g.Alpha, g.Beta)
		}
		return
	}
	if err != nil {
		m.t.Errorf("%v alpha %v beta %v: %v", &g, g.Alpha, g.Beta, err)
		return
	}
	got := m.take(pc, g.C, len(c))
	reference(&g, c, a, b)
	for i := range c {
		if g.C.Half() && g.Beta != 0 && math.Abs(got[i]-c[i]) <= math.Abs(c[i])/(1<<7) {
			continue // NVIDIA's kernels may round the product before they add C
		}
		if !same(got[i], c[i]) {
			m.t.Errorf("%v alpha %v beta %v: C(%d, %d) = %v, want %v", &g, g.Alpha, g.Beta, i/g.LdC,
				i%g.LdC, got[i], c[i])
			return
		}
	}
}

type pair struct{ ab, c elem.Type }

var ltPairs = []pair{
	{elem.Float32, elem.Float32}, {elem.Float64, elem.Float64}, {elem.BFloat16, elem.BFloat16},
	{elem.Float16, elem.Float16}, {elem.BFloat16, elem.Float32}, {elem.Float16, elem.Float32},
}

var plainPairs = []pair{{elem.Float32, elem.Float32}, {elem.Float64, elem.Float64}}

var factors = [][2]float64{{1, 0}, {1, 1}, {-0.5, 2}, {0, 0.5}, {0, 0}, {0, 1}}

// table tries every type, transposition and factor in each shape, without and with strides.
func (m *machine) table(pairs []pair, shapes [][3]int, mul multiply) {
	m.counted(0, pairs, shapes, mul)
}

// stacks is table for stacks of matrices.
func (m *machine) stacks(shapes [][3]int, mul multiply) { m.counted(3, ltPairs, shapes, mul) }

func (m *machine) counted(count int, pairs []pair, shapes [][3]int, mul multiply) {
	for _, p := range pairs {
		for _, shape := range shapes {
			for trans := range 4 {
				for _, f := range factors {
					for _, pad := range []int{0, 3} {
						m.try1(Gemm{M: shape[0], N: shape[1], K: shape[2], Count: count, TransA: trans&1 != 0,
							TransB: trans&2 != 0, AB: p.ab, C: p.c, Alpha: f[0], Beta: f[1]}, pad, mul)
					}
				}
			}
		}
	}
}

var smallShapes = [][3]int{{1, 1, 1}, {3, 5, 7}, {17, 1, 33}, {1, 19, 4}, {8, 16, 24}, {0, 3, 2},
	{3, 0, 2}, {3, 2, 0}, {0, 0, 0}}

// vectors tries Gemv as table does Gemm.
func (m *machine) vectors(h *Handle, shapes [][2]int) {
	for _, t := range []elem.Type{elem.Float32, elem.Float64} {
		for _, shape := range shapes {
			for _, trans := range []bool{false, true} {
				for _, f := range factors {
					for _, pad := range []int{0, 3} {
						m.tryVector(h, t, trans, shape[0], shape[1], pad, f[0], f[1])
					}
				}
			}
		}
	}
}

func (m *machine) tryVector(h *Handle, t elem.Type, trans bool, rows, cols, pad int, alpha, beta float64) {
	m.t.Helper()
	// As a product: y(ny, 1) = op(A)(ny, nx) x(nx, 1).
	g := Gemm{M: rows, N: 1, K: cols, TransA: trans, LdA: cols + pad, LdB: 1, LdC: 1, AB: t, C: t,
		Alpha: alpha, Beta: beta}
	if trans {
		g.M, g.K = cols, rows
	}
	a, x, y := matrix(rows, cols, g.LdA, 1, math.NaN()), matrix(g.K, 1, 1, 2, 0), matrix(g.M, 1, 1, 3, 0)
	y = append(y, -77) // must stay
	if beta == 0 {
		for i := range g.M {
			y[i] = math.NaN()
		}
	}
	if alpha == 0 {
		for i := range x {
			x[i] = math.Inf(1)
		}
	}
	pa, px, py := m.put(0, pad, t, a), m.put(1, pad, t, x), m.put(2, pad, t, y)
	what := fmt.Sprintf("%v A(%d, %d)+%d transposed %v, alpha %v beta %v", t, rows, cols, pad, trans, alpha, beta)
	if err := h.Gemv(m.s, t, trans, rows, cols, alpha, pa, g.LdA, px, beta, py); err != nil {
		m.t.Errorf("%s: %v", what, err)
		return
	}
	got := m.take(py, t, len(y))
	reference(&g, y[:g.M], a, x)
	for i := range y {
		if !same(got[i], y[i]) {
			m.t.Errorf("%s: y[%d] = %v, want %v", what, i, got[i], y[i])
			return
		}
	}
}

func (m *machine) openLt() *Lt {
	m.t.Helper()
	l, err := OpenLt(m.d)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { m.try(l.Close()) })
	return l
}

func (m *machine) open() *Handle {
	m.t.Helper()
	h, err := Open(m.d)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { m.try(h.Close()) })
	return h
}

// in gives a product of l the machine's workspace.
func (m *machine) in(l *Lt) multiply {
	return func(s *cuda.Stream, g *Gemm, c, a, b unsafe.Pointer) error {
		return l.Gemm(s, g, c, a, b, m.dev[3], workspaceBytes)
	}
}
