package blas_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/blas"
	"lockstep/spmd/spmdtest"
)

// elemOf converts elements of T and knows how finely they are rounded.
type elemOf[T blas.Elem] struct {
	to   func(float64) T
	from func(T) float64
	eps  float64 // of one rounding, or of sums in it
}

var (
	inF32 = elemOf[float32]{func(x float64) float32 { return float32(x) },
		func(x float32) float64 { return float64(x) }, 2e-6}
	inF64  = elemOf[float64]{func(x float64) float64 { return x }, func(x float64) float64 { return x }, 1e-13}
	inBF16 = elemOf[spmd.BF16]{func(x float64) spmd.BF16 { return spmd.ToBF16(float32(x)) },
		func(x spmd.BF16) float64 { return float64(x.Float32()) }, 1.0 / 256}
	inE4M3 = elemOf[spmd.F8E4M3]{func(x float64) spmd.F8E4M3 { return spmd.ToF8E4M3(float32(x)) },
		func(x spmd.F8E4M3) float64 { return float64(x.Float32()) }, 1.0 / 16}
	inE5M2 = elemOf[spmd.F8E5M2]{func(x float64) spmd.F8E5M2 { return spmd.ToF8E5M2(float32(x)) },
		func(x spmd.F8E5M2) float64 { return float64(x.Float32()) }, 1.0 / 8}
	inF16 = elemOf[spmd.F16]{func(x float64) spmd.F16 { return spmd.ToF16(float32(x)) },
		func(x spmd.F16) float64 { return float64(x.Float32()) }, 1.0 / 2048}
)

// Every possible epilogue, against float64 by the definition: odd shapes and those that libraries
// like, both transpositions, rows apart, factors, empty products. Results were NaN before. Each
// runs eagerly and, captured, twice in a graph.
func TestGemmEpilogue(t *testing.T) {
	testkit.More(t, 6*7*len(epilogues)*3, "products with an epilogue")
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		testEpilogues(t, w, inF32, inF32)
		testEpilogues(t, w, inF64, inF64)
		testEpilogues(t, w, inBF16, inBF16)
		testEpilogues(t, w, inF16, inF16)
		testEpilogues(t, w, inF32, inBF16)
		testEpilogues(t, w, inF32, inF16)
	})
}

var epilogues = []string{"", "Accumulate", "Bias", "Bias Accumulate", "Residual", "Bias Residual", "GELU",
	"Bias GELU", "DGELU", "DGELU BiasGrad", "RowSums", "RowSums Accumulate"}

// One of fraction combinations of sizes, epilogues and transpositions is tried: half of them is
// enough, or an eighth if not all cases are asked for.
func fraction() int {
	if testkit.AllCases() {
		return 2
	}
	return 8
}

func testEpilogues[C, T blas.Elem](t *testing.T, w *spmd.World, ec elemOf[C], et elemOf[T]) {
	s := spmdtest.Stream(t, w, "s")
	defer func() { spmdtest.Must(t, s.Close()) }()
	r := rand.New(rand.NewPCG(1, 2))
	every := fraction()
	for i, size := range [][3]int{{5, 7, 3}, {64, 128, 32}, {33, 40, 65}, {0, 3, 2}, {3, 0, 2}, {3, 2, 0},
		{130, 72, 16}} {
		for j, names := range epilogues {
			for flags := range 8 {
				if (i+j+flags)%every == 0 {
					p := product[C, T, T]{m: size[0], n: size[1], k: size[2], names: strings.Fields(names), alpha: 1,
						gap: flags & 4 * 2, ec: ec, ea: et, eb: et, r: r}
					p.o.TransA, p.o.TransB = flags&1 != 0, flags&2 != 0
					if flags >= 6 {
						p.alpha, p.gap = 0.5, 3
					}
					p.run(t, w, s)
				}
			}
		}
	}
}

// product is one product with its operands before it runs.
type product[C, A, B blas.Elem] struct {
	m, n, k int
	names   []string
	alpha   float64
	gap     int // beyond the width of a row
	o       blas.Options
	ec      elemOf[C]
	ea      elemOf[A]
	eb      elemOf[B]
	r       *rand.Rand
	eager   bool // not in a graph

	scaleA, scaleB float32 // 0 for none
}

// sums is the error of a sum, in parts of the sum of sizes: tensor cores add products of 8 bits
// with some 13 bits behind the largest.
func (p *product[C, A, B]) sums() float64 {
	if _, eight := any(*new(B)).(spmd.F8E4M3); eight {
		return 1.0 / 4096
	}
	return min(p.ec.eps, 2e-6)
}

func (p *product[C, A, B]) has(name string) bool {
	return slices.Contains(p.names, name)
}

// matrix returns rows of random numbers, and NaN between them; or NaN alone.
func matrix[T blas.Elem](r *rand.Rand, e elemOf[T], rows, n, ld int, random bool) []T {
	x := make([]T, max(0, rows*ld))
	for i := range x {
		x[i] = e.to(math.NaN())
		if random && i%ld < n {
			x[i] = e.to(r.NormFloat64())
		}
	}
	return x
}

func put[T blas.Elem](t *testing.T, w *spmd.World, v []T) spmd.Buffer[T] {
	t.Helper()
	b := spmdtest.Alloc[T](t, w, len(v))
	spmdtest.Must(t, b.CopyFrom(v))
	return b
}

func take[T blas.Elem](t *testing.T, b spmd.Buffer[T]) []T {
	t.Helper()
	v := make([]T, b.Len())
	spmdtest.Must(t, b.CopyTo(v))
	return v
}

func (p *product[C, A, B]) run(t *testing.T, w *spmd.World, s *spmd.Stream) {
	t.Helper()
	rowsA, colsA, rowsB, colsB := p.m, p.k, p.k, p.n
	if p.o.TransA {
		rowsA, colsA = colsA, rowsA
	}
	if p.o.TransB {
		rowsB, colsB = colsB, rowsB
	}
	lda, ldb, ldc := max(1, colsA)+p.gap, max(1, colsB)+p.gap, max(1, p.n)+p.gap
	av, bv := matrix(p.r, p.ea, rowsA, colsA, lda, true), matrix(p.r, p.eb, rowsB, colsB, ldb, true)
	old := matrix(p.r, p.ec, p.m, p.n, ldc, p.has("Accumulate"))
	bias, residual := matrix(p.r, p.ec, 1, p.n, p.n, true), matrix(p.r, p.ec, p.m, p.n, ldc, true)
	x := matrix(p.r, p.ec, p.m, p.n, ldc, p.has("DGELU"))
	a, b, c := put(t, w, av), put(t, w, bv), put(t, w, old)
	aux, biasBuf, res := put(t, w, x), put(t, w, bias), put(t, w, residual)
	columns, rows := put(t, w, matrix(p.r, p.ec, 1, p.n, p.n, false)), put(t, w, matrix(p.r, p.ec, 1, p.m, p.m, false))
	p.o.Alpha, p.o.Accumulate = p.alpha, p.has("Accumulate")
	factor := p.alpha // of the product
	for arg, scale := range map[*spmd.Arg]float32{&p.o.ScaleA: p.scaleA, &p.o.ScaleB: p.scaleB} {
		if scale != 0 {
			b := put(t, w, []float32{scale})
			defer func() { spmdtest.Must(t, b.Free()) }()
			*arg, factor = b.Arg(), factor*float64(scale)
		}
	}
	if p.has("Bias") {
		p.o.Bias = biasBuf.Arg()
	}
	if p.has("Residual") {
		p.o.Residual = res.Arg()
	}
	if p.has("GELU") {
		p.o.GELU = aux.Arg()
	}
	if p.has("DGELU") {
		p.o.DGELU = aux.Arg()
	}
	if p.has("BiasGrad") {
		p.o.BiasGrad = columns.Arg()
	}
	if p.has("RowSums") {
		p.o.RowSums = rows.Arg()
	}
	gemm := func() error {
		return blas.Gemm(s, blas.Matrix[C]{Buffer: c, Rows: p.m, Cols: p.n, Stride: ldc},
			blas.Matrix[A]{Buffer: a, Rows: rowsA, Cols: colsA, Stride: lda},
			blas.Matrix[B]{Buffer: b, Rows: rowsB, Cols: colsB, Stride: ldb}, p.o)
	}
	what := fmt.Sprintf("%T from %T and %T, %dx%dx%d, %q, %+v", *new(C), *new(A), *new(B), p.m, p.n, p.k, p.names, p.o)
	check := func() {
		t.Helper()
		spmdtest.Must(t, s.Synchronize())
		got, pre, colSums, rowSums := take(t, c), take(t, aux), take(t, columns), take(t, rows)
		near := func(name string, i int, v C, want, size float64) {
			t.Helper()
			// A sum with a rounded product is rounded again, and the exponent may be another.
			if d := math.Abs(p.ec.from(v) - want); !(d <= 3*p.ec.eps*(math.Abs(want)+0.05)+p.sums()*size) {
				t.Fatalf("%s: %s[%d] is %v, want %v", what, name, i, p.ec.from(v), want)
			}
		}
		opA := func(i, l int) float64 {
			if p.o.TransA {
				i, l = l, i
			}
			return p.ea.from(av[i*lda+l])
		}
		sums, sizes := make([]float64, p.n), make([]float64, p.n)
		for i := range p.m {
			sum, size := 0.0, 0.0
			for l := range p.k {
				sum += opA(i, l)
				size += math.Abs(opA(i, l))
			}
			if p.has("RowSums") {
				near("RowSums", i, rowSums[i], sum, size)
			}
			for j := range p.n {
				at, v, size := i*ldc+j, 0.0, 1.0
				for l := range p.k {
					y := l*ldb + j
					if p.o.TransB {
						y = j*ldb + l
					}
					term := factor * opA(i, l) * p.eb.from(bv[y])
					v, size = v+term, size+math.Abs(term)
				}
				rounded := math.Abs(v) // what may be rounded on the way
				if p.has("Accumulate") {
					v += p.ec.from(old[at])
				}
				if p.has("Bias") {
					v += p.ec.from(bias[j])
				}
				if p.has("Residual") {
					v += p.ec.from(residual[at])
				}
				rounded += math.Abs(v)
				if p.has("Bias") {
					rounded += math.Abs(p.ec.from(bias[j]))
				}
				size += rounded * p.ec.eps / p.sums()
				if p.has("GELU") {
					near("GELU", at, pre[at], v, size)
					v = v / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v)))
				}
				if p.has("DGELU") {
					x := p.ec.from(x[at])
					th := math.Tanh(math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x))
					v *= (1+th)/2 + x/2*(1-th*th)*math.Sqrt(2/math.Pi)*(1+3*0.044715*x*x)
				}
				near("C", at, got[at], v, size)
				sums[j] += v
				sizes[j] += math.Abs(v)
			}
		}
		for j := range p.n {
			if p.has("BiasGrad") {
				near("BiasGrad", j, colSums[j], sums[j], sizes[j]*p.ec.eps/p.sums())
			}
		}
		for i := range got {
			if i%ldc >= p.n && !(math.IsNaN(p.ec.from(got[i])) && (math.IsNaN(p.ec.from(pre[i])))) {
				t.Fatalf("%s: element %d, between the rows, was written", what, i)
			}
		}
	}
	poison := func() {
		t.Helper()
		spmdtest.Must(t, c.CopyFrom(old))
		nan := p.ec.to(math.NaN())
		spmdtest.Must(t, columns.SetAll(nan))
		spmdtest.Must(t, rows.SetAll(nan))
		if p.has("GELU") {
			spmdtest.Must(t, aux.SetAll(nan))
		}
	}
	if err := gemm(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	check()
	poison()
	if p.eager {
		spmdtest.Must(t, gemm())
		check()
	}
	g, err := s.Capture(func() error { return gemm() })
	spmdtest.Must(t, err)
	for range 2 {
		if !p.eager {
			poison()
			spmdtest.Must(t, g.Launch(s))
			check()
		}
	}
	spmdtest.Must(t, g.Close())
	for _, free := range []func() error{a.Free, b.Free, c.Free, aux.Free, biasBuf.Free, res.Free,
		columns.Free, rows.Free} {
		spmdtest.Must(t, free())
	}
}

func TestGemmEpilogueRefused(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := spmdtest.Stream(t, w, "s")
		mem := spmdtest.Alloc[float32](t, w, 100)
		c, a, b := blas.MatrixOf(mem.Slice(0, 6), 2, 3), blas.MatrixOf(mem.Slice(10, 18), 2, 4),
			blas.MatrixOf(mem.Slice(20, 32), 4, 3)
		n3, n2, matrix := mem.Slice(40, 43).Arg(), mem.Slice(43, 45).Arg(), mem.Slice(50, 56).Arg()
		gone := spmdtest.Alloc[float32](t, w, 3)
		spmdtest.Must(t, gone.Free())
		gemm := func(o blas.Options) error { return blas.Gemm(s, c, a, b, o) }
		for want, o := range map[string]blas.Options{
			"Bias is a buffer of 2 float32, for this C it is a buffer of 3 float32":    {Bias: n2},
			"RowSums is a buffer of 3 float32, for this C it is a buffer of 2 float32": {RowSums: n3},
			"BiasGrad is a buffer of 2 float32":                                        {DGELU: matrix, BiasGrad: n2},
			"GELU has 3 elements, 2x3 with rows 3 apart, as C's, needs 6":              {GELU: n3},
			"Residual has 3 elements":                                                  {Residual: n3},
			"DGELU is a buffer of 6 bfloat16, for this C it is a buffer of 6 float32": {
				DGELU: spmdtest.Alloc[spmd.BF16](t, w, 6).Arg()},
			"Bias is int32": {Bias: spmd.I32(3)},
			"Bias, GELU with Accumulate: an epilogue is": {Bias: n3, GELU: matrix, Accumulate: true},
			"BiasGrad: an epilogue is":                   {BiasGrad: n3},
			"Bias, RowSums: an epilogue is":              {Bias: n3, RowSums: n2},
			"Residual, DGELU: an epilogue is":            {DGELU: matrix, Residual: mem.Slice(60, 66).Arg()},
			"Residual with Accumulate: an epilogue is":   {Residual: matrix, Accumulate: true},
			"was freed": {Bias: gone.Arg()},
		} {
			if err := gemm(o); !strings.Contains(fmt.Sprint(err), want) ||
				!strings.Contains(fmt.Sprint(err), "blas/epilogue_test.go:") && want != "was freed" {
				t.Errorf("error %v, want %q in it", err, want)
			}
		}
		if err := blas.Gemv(s, mem.Slice(0, 2), a, mem.Slice(60, 64),
			blas.Options{Bias: n2}); !strings.Contains(fmt.Sprint(err), "Gemv: an epilogue is Gemm's") {
			t.Error(err)
		}
		// Side by side in the rows of one matrix nothing overlaps; one further on it does.
		wide := spmdtest.Alloc[float32](t, w, 32)
		left := blas.Matrix[float32]{Buffer: wide.Slice(0, 32), Rows: 4, Cols: 3, Stride: 8}
		four := blas.MatrixOf(mem.Slice(60, 76), 4, 4)
		spmdtest.Must(t, blas.Gemm(s, left, four, b, blas.Options{GELU: wide.Slice(3, 30).Arg()}))
		spmdtest.Must(t, s.Synchronize())
		for _, at := range []int{2, 6} {
			if err := blas.Gemm(s, left, four, b, blas.Options{GELU: wide.Slice(at, 32).Arg()}); at == 2 &&
				!strings.Contains(fmt.Sprint(err), "C, which is written, overlaps GELU") {
				t.Errorf("at %d: %v", at, err)
			}
		}
		// A graph keeps account of the buffers of its products.
		bias := spmdtest.Alloc[float32](t, w, 3)
		g, err := s.Capture(func() error { return gemm(blas.Options{Bias: bias.Arg()}) })
		spmdtest.Must(t, err)
		spmdtest.Must(t, bias.Free())
		if err := g.Launch(s); !strings.Contains(fmt.Sprint(err), "the graph still uses it") {
			t.Error(err)
		}
	})
}

// A product with an epilogue allocates nothing once its stream has run one.
func TestNoAllocation(t *testing.T) { spmdtest.Run(t, []int{1}, noAllocation) }

func noAllocation(t *testing.T, w *spmd.World) {
	s := spmdtest.Stream(t, w, "s")
	a, b, c := spmdtest.Alloc[spmd.BF16](t, w, 16*32), spmdtest.Alloc[spmd.BF16](t, w, 32*64),
		spmdtest.Alloc[spmd.BF16](t, w, 16*64)
	bias, aux := spmdtest.Alloc[spmd.BF16](t, w, 64), spmdtest.Alloc[spmd.BF16](t, w, 16*64)
	x := spmdtest.Alloc[float32](t, w, 16*16)
	gemm := func(o blas.Options) func() error {
		return func() error {
			return blas.Gemm(s, blas.MatrixOf(c, 16, 64), blas.MatrixOf(a, 16, 32), blas.MatrixOf(b, 32, 64), o)
		}
	}
	calls := map[string]func() error{"Gemm": gemm(blas.Options{}),
		"Gemm with GELU": gemm(blas.Options{Bias: bias.Arg(), GELU: aux.Arg()})}
	if w.OnHost() { // of cuBLAS, which Gemv takes, there is no double
		calls["Gemv"] = func() error {
			return blas.Gemv(s, x.Slice(0, 8), blas.MatrixOf(x.Slice(16, 16+8*8), 8, 8), x.Slice(8, 16), blas.Options{})
		}
	}
	for name, enqueue := range calls {
		call := func() {
			if err := enqueue(); err != nil {
				t.Error(err)
			}
		}
		call()
		release := make(chan struct{})
		if w.OnHost() { // only the caller's allocations count, once the queue has its length
			grown := make(chan struct{})
			spmdtest.Must(t, s.HostFunc(func() error { <-grown; return nil }))
			for range 120 {
				call()
			}
			close(grown)
			for range 300 {
				call()
				spmdtest.Must(t, s.Synchronize())
			}
			spmdtest.Must(t, s.HostFunc(func() error { <-release; return nil }))
		}
		if got := testkit.Allocations(50, call); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
		close(release)
		spmdtest.Must(t, s.Synchronize())
	}
}
