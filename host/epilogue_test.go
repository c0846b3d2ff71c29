package host

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"lockstep/internal/elem"
	"lockstep/internal/testkit"
)

// geluTanh and its derivative by the definition, in float64.
func geluTanh(x float64) float64 {
	return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}

func geluTanhDerivative(x float64) float64 {
	k := math.Sqrt(2 / math.Pi)
	t := math.Tanh(k * (x + 0.044715*x*x*x))
	return (1+t)/2 + x/2*(1-t*t)*k*(1+3*0.044715*x*x)
}

type anyElem interface{ float | half }

// Every epilogue alone and in the combinations that blas.Gemm knows, into every type, against
// float64: sizes that are odd, empty or without a sum, both transpositions, rows apart with NaN
// between them, which must stay.
func TestGemmEpilogue(t *testing.T) {
	onEachBLAS(t, func(t *testing.T) {
		t.Run("float32", func(t *testing.T) {
			testEpilogue(t, 2e-6, exactly[float32], float64of[float32], GemmEpilogue[float32])
		})
		t.Run("float64", func(t *testing.T) {
			testEpilogue(t, 1e-14, exactly[float64], float64of[float64], GemmEpilogue[float64])
		})
		bf := func(x float64) elem.BF16 { return elem.ToBF16(float32(x)) }
		fromBF := func(x elem.BF16) float64 { return float64(x.Float32()) }
		f16 := func(x float64) elem.F16 { return elem.ToF16(float32(x)) }
		fromF16 := func(x elem.F16) float64 { return float64(x.Float32()) }
		t.Run("bfloat16", func(t *testing.T) { testHalfEpilogue(t, 1.0/256, bf, fromBF, bf, fromBF) })
		t.Run("float16", func(t *testing.T) { testHalfEpilogue(t, 1.0/2048, f16, fromF16, f16, fromF16) })
		t.Run("bfloat16 into float32", func(t *testing.T) {
			testHalfEpilogue(t, 2e-6, bf, fromBF, exactly[float32], float64of[float32])
		})
		t.Run("float16 into float32", func(t *testing.T) {
			testHalfEpilogue(t, 2e-6, f16, fromF16, exactly[float32], float64of[float32])
		})
	})
}

func exactly[T float](x float64) T   { return T(x) }
func float64of[T float](x T) float64 { return float64(x) }

func testHalfEpilogue[C float32 | half, T half](
	t *testing.T, eps float64, to func(float64) T, from func(T) float64, toC func(float64) C, fromC func(C) float64,
) {
	testEpilogueOf(t, eps, to, from, toC, fromC,
		func(ta, tb bool, m, n, k int, alpha float64, a []T, lda int, b []T, ldb int, beta float64, c []C,
			ldc int, e Epilogue[C]) {
			GemmHalf(ta, tb, m, n, k, float32(alpha), a, lda, b, ldb, float32(beta), c, ldc, e)
		})
}

func testEpilogue[T float](
	t *testing.T, eps float64, to func(float64) T, from func(T) float64,
	gemm func(ta, tb bool, m, n, k int, alpha T, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int, e Epilogue[T]),
) {
	testEpilogueOf(t, eps, to, from, to, from,
		func(ta, tb bool, m, n, k int, alpha float64, a []T, lda int, b []T, ldb int, beta float64, c []T,
			ldc int, e Epilogue[T]) {
			gemm(ta, tb, m, n, k, T(alpha), a, lda, b, ldb, T(beta), c, ldc, e)
		})
}

func testEpilogueOf[C, T anyElem](t *testing.T, eps float64, to func(float64) T, from func(T) float64,
	toC func(float64) C, fromC func(C) float64,
	gemm func(ta, tb bool, m, n, k int, alpha float64, a []T, lda int, b []T, ldb int, beta float64, c []C,
		ldc int, e Epilogue[C])) {
	left := 0
	defer func() { testkit.More(t, left, "products with something behind them on the host") }()
	r := rand.New(rand.NewPCG(1, 2))
	nan := toC(math.NaN())
	// fresh returns rows of n random numbers, ld apart, or NaN throughout.
	fresh := func(rows, n, ld int, random bool) []C {
		x := make([]C, max(0, (rows-1)*ld+n))
		for i := range x {
			x[i] = nan
			if random && i%ld < n {
				x[i] = toC(r.NormFloat64())
			}
		}
		return x
	}
	for _, s := range [][3]int{{1, 1, 1}, {0, 3, 2}, {3, 0, 2}, {3, 2, 0}, {5, 7, 3}, {33, 35, 71},
		{130, 9, 40}, {9, 300, 17}} {
		m, n, k := s[0], s[1], s[2]
		for i, names := range []string{"", "Bias", "Residual", "Bias Residual", "GELU", "Bias GELU",
			"DGELU", "DGELU BiasGrad", "RowSums"} {
			for flags := i % 2; flags < 16; flags += 2 {
				if (m+i+flags/2)%4 != 0 && !testkit.AllCases() {
					left++
					continue
				}
				transA, transB, gap, alpha, beta := (flags+flags>>1)&1 != 0, flags&2 != 0, flags&4/4*3,
					0.5, float64(flags&8/8)
				if flags == 15 {
					alpha = 0
				}
				rowsA, colsA := stored(transA, m, k)
				rowsB, colsB := stored(transB, k, n)
				lda, ldb, ldc := max(1, colsA)+gap, max(1, colsB)+gap, max(1, n)+gap
				a, b := make([]T, max(0, (rowsA-1)*lda+colsA)), make([]T, max(0, (rowsB-1)*ldb+colsB))
				for i := range a {
					a[i] = to(r.NormFloat64())
				}
				for i := range b {
					b[i] = to(r.NormFloat64())
				}
				c := fresh(m, n, ldc, beta != 0)
				old := append([]C{}, c...)
				has := func(name string) bool { return strings.Contains(" "+names+" ", " "+name+" ") }
				var e Epilogue[C]
				if has("Bias") {
					e.Bias = fresh(1, n, max(1, n), true)
				}
				if has("Residual") {
					e.Residual = fresh(m, n, ldc, true)
				}
				if has("GELU") {
					e.GELU = fresh(m, n, ldc, false)
				}
				if has("DGELU") {
					e.DGELU = fresh(m, n, ldc, true)
				}
				if has("BiasGrad") {
					e.BiasGrad = fresh(1, n, max(1, n), false)
				}
				if has("RowSums") {
					e.RowSums = fresh(1, m, max(1, m), false)
				}
				gemm(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, e)
				what := fmt.Sprintf("%v %q transposed %v %v gap %d alpha %v beta %v", s, names, transA,
					transB, gap, alpha, beta)
				// near fails unless x is want; size is the sum of sizes behind it.
				near := func(name string, i int, x C, want, size float64) {
					t.Helper()
					if d := math.Abs(fromC(x) - want); !(d <= eps*(math.Abs(want)+1e-3)+2e-6*size*min(1, eps*1e6)) {
						t.Fatalf("%s: %s[%d] is %v, want %v", what, name, i, fromC(x), want)
					}
				}
				opA := func(i, l int) float64 {
					if transA {
						i, l = l, i
					}
					return from(a[i*lda+l])
				}
				colSum, colSize := make([]float64, n), make([]float64, n)
				for i := range m {
					rowSum, rowSize := 0.0, 0.0
					for l := range k {
						rowSum += opA(i, l)
						rowSize += math.Abs(opA(i, l))
					}
					if has("RowSums") {
						near("RowSums", i, e.RowSums[i], rowSum, rowSize)
					}
					for j := range n {
						v, size := 0.0, 1.0
						for l := range k {
							y := l*ldb + j
							if transB {
								y = j*ldb + l
							}
							v += alpha * opA(i, l) * from(b[y])
							size += math.Abs(opA(i, l) * from(b[y]))
						}
						at := i*ldc + j
						if beta != 0 {
							v += beta * fromC(old[at])
						}
						if has("Bias") {
							v += fromC(e.Bias[j])
						}
						if has("Residual") {
							v += fromC(e.Residual[at])
						}
						if has("GELU") {
							near("GELU", at, e.GELU[at], v, size)
							v = geluTanh(v)
						}
						if has("DGELU") {
							v *= geluTanhDerivative(fromC(e.DGELU[at]))
						}
						near("C", at, c[at], v, size)
						colSum[j] += v
						colSize[j] += size
					}
				}
				for j := range e.BiasGrad {
					near("BiasGrad", j, e.BiasGrad[j], colSum[j], colSize[j])
				}
				for i := range c {
					if i%ldc >= n && fromC(c[i]) == fromC(c[i]) {
						t.Fatalf("%s: element %d, between the rows, was written", what, i)
					}
				}
				for i := range e.GELU {
					if i%ldc >= n && fromC(e.GELU[i]) == fromC(e.GELU[i]) {
						t.Fatalf("%s: element %d of GELU, between the rows, was written", what, i)
					}
				}
			}
		}
	}
}

// Far from 0 both reach their limits; a NaN stays one.
func TestGELUAtTheEnds(t *testing.T) {
	x := []float32{-1e6, -100, -20, -8, 0, 8, 20, 100, 1e6, float32(math.NaN()), float32(math.Inf(1))}
	n := len(x)
	c, pre, one := make([]float32, n), make([]float32, n), []float32{1}
	GemmEpilogue(false, false, 1, n, 1, 1, one, 1, make([]float32, n), n, 0, c, n,
		Epilogue[float32]{Bias: x, GELU: pre})
	d := make([]float32, n)
	ones := make([]float32, n)
	for i := range ones {
		ones[i] = 1
	}
	GemmEpilogue(false, false, 1, n, 1, 1, one, 1, ones, n, 0, d, n, Epilogue[float32]{DGELU: x})
	for i, v := range x[:9] {
		want, slope := geluTanh(float64(v)), geluTanhDerivative(float64(v))
		if math.Abs(float64(c[i])-want) > 1e-6*math.Max(1, math.Abs(want)) || math.Abs(float64(d[i])-slope) > 1e-6 {
			t.Errorf("gelu(%v) = %v, want %v; its derivative %v, want %v", v, c[i], want, d[i], slope)
		}
	}
	if !math.IsNaN(float64(c[9])) || c[10] != x[10] {
		t.Errorf("gelu(NaN) = %v, gelu(Inf) = %v", c[9], c[10])
	}
}

func TestGemmEpiloguePanics(t *testing.T) {
	x := make([]float32, 12)
	for want, e := range map[string]Epilogue[float32]{
		"Bias has 2 elements, the matrix asks for 3":     {Bias: x[:2]},
		"BiasGrad has 4 elements, the matrix asks for 3": {BiasGrad: x[:4]},
		"RowSums has 3 elements, the matrix asks for 2":  {RowSums: x[:3]},
		"GELU has 5 elements, 2 x 3":                     {GELU: x[:5]},
		"DGELU has 5 elements, 2 x 3":                    {DGELU: x[:5]},
		"Residual has 5 elements, 2 x 3":                 {Residual: x[:5]},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("panic %q, want %q in it", got, want)
				}
			}()
			GemmEpilogue(false, false, 2, 3, 2, 1, x, 2, x, 3, 0, make([]float32, 6), 3, e)
		}()
	}
}

// One layer's epilogues of GPT-2 small at 256 tokens, beside the plain product that each stands
// behind.
func BenchmarkGemmEpilogue(b *testing.B) {
	const m, n, k = 256, 3072, 768
	x, w, c, aux, bias := random(1, m*k), random(2, n*k), make([]float32, m*n), random(3, m*n), random(4, n)
	grad := make([]float32, n)
	for name, e := range map[string]Epilogue[float32]{
		"none": {}, "Bias": {Bias: bias}, "Bias Residual": {Bias: bias, Residual: aux},
		"Bias GELU": {Bias: bias, GELU: append([]float32{}, aux...)},
		"DGELU":     {DGELU: aux}, "DGELU BiasGrad": {DGELU: aux, BiasGrad: grad},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				GemmEpilogue(false, true, m, n, k, 1, x, k, w, k, 0, c, n, e)
			}
		})
	}
}
