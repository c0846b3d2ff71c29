package host

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// onEachBLAS runs test on OpenBLAS, if there is one, and on gonum, each with one and six cores.
func onEachBLAS(t *testing.T, test func(t *testing.T)) {
	defer func(old func() backend) { chosen = old }(chosen)
	defer SetThreads(Threads())
	defer func(old int) { gemmGrain = old }(gemmGrain)
	gemmGrain = 1 << 12 // small matrices, too, are divided among the cores
	for _, want := range []string{"openblas", "gonum"} {
		b := choose(want)
		for _, n := range []int{1, 6} {
			t.Run(fmt.Sprintf("%s/threads=%d", want, n), func(t *testing.T) {
				if b.err != nil {
					t.Skip(b.err)
				}
				if forced := os.Getenv("LOCKSTEP_BLAS"); forced == "gonum" && want != forced {
					t.Skip("LOCKSTEP_BLAS=gonum")
				}
				chosen = func() backend { return b }
				SetThreads(n)
				test(t)
			})
		}
	}
}

// matrix is an (m, n) matrix of small integers, exact in every order of summation, with
// row stride ld and NaN in the gaps, which must neither be read nor written.
func matrix[T float](r *rand.Rand, m, n, ld int) []T {
	x := make([]T, max(0, (m-1)*ld+n))
	for i := range x {
		if i%ld < n {
			x[i] = T(r.IntN(9) - 4)
		} else {
			x[i] = T(math.NaN())
		}
	}
	return x
}

func at[T float](trans bool, x []T, ld, i, j int) float64 {
	if trans {
		i, j = j, i
	}
	return float64(x[i*ld+j])
}

// same fails unless got holds the values of the float64 reference, gaps included.
func same[T float](t *testing.T, got []T, want []float64) {
	t.Helper()
	for i := range want {
		if float64(got[i]) != want[i] && !(math.IsNaN(want[i]) && got[i] != got[i]) {
			t.Fatalf("element %d of %d is %v, want %v", i, len(want), got[i], want[i])
		}
	}
}

func testGemm[T float](t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	sizes := [][3]int{{1, 1, 1}, {0, 3, 2}, {3, 0, 2}, {3, 2, 0}, {5, 7, 3}, {17, 1, 33}, {1, 65, 19},
		{33, 35, 71}, {130, 9, 40}, {20, 150, 37}}
	factors := [][2]T{{1, 0}, {1, 1}, {-2, 0.5}, {0, 2}, {0, 0}}
	for _, s := range sizes {
		m, n, k := s[0], s[1], s[2]
		for flags := range 8 {
			transA, transB, gap := flags&1 != 0, flags&2 != 0, flags&4/4*3
			rowsA, colsA := stored(transA, m, k)
			rowsB, colsB := stored(transB, k, n)
			lda, ldb, ldc := max(1, colsA)+gap, max(1, colsB)+2*gap, max(1, n)+gap
			a, b := matrix[T](r, rowsA, colsA, lda), matrix[T](r, rowsB, colsB, ldb)
			product := make([]float64, m*n)
			for i := range m {
				for j := range n {
					for l := range k {
						product[i*n+j] += at(transA, a, lda, i, l) * at(transB, b, ldb, l, j)
					}
				}
			}
			for _, f := range factors {
				alpha, beta := f[0], f[1]
				c := matrix[T](r, m, n, ldc)
				want := make([]float64, len(c))
				for i := range c {
					want[i] = float64(c[i])
				}
				for i := range m {
					for j := range n {
						want[i*ldc+j] = float64(alpha)*product[i*n+j] + float64(beta)*want[i*ldc+j]
						if beta == 0 {
							c[i*ldc+j] = T(math.NaN()) // does not count
						}
					}
				}
				t.Run(fmt.Sprintf("%dx%dx%d/%v,%v/gap=%d/%v,%v", m, n, k, transA, transB, gap, alpha, beta),
					func(t *testing.T) {
						Gemm(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
						same(t, c, want)
					})
			}
		}
	}
}

func testGemv[T float](t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	sizes := [][2]int{{1, 1}, {0, 3}, {3, 0}, {5, 7}, {4, 16}, {7, 4099}, {4099, 7}, {130, 1000}, {1003, 129}}
	factors := [][2]T{{1, 0}, {1, 1}, {-2, 0.5}, {0, 2}, {0, 0}}
	for _, s := range sizes {
		m, n := s[0], s[1]
		for flags := range 4 {
			trans, gap := flags&1 != 0, flags&2/2*5
			rows, cols := stored(trans, m, n)
			lda := max(1, n) + gap
			a, x := matrix[T](r, m, n, lda), matrix[T](r, 1, cols, max(1, cols))
			product := make([]float64, rows)
			for i := range rows {
				for l := range cols {
					product[i] += at(trans, a, lda, i, l) * float64(x[l])
				}
			}
			for _, f := range factors {
				alpha, beta := f[0], f[1]
				y := matrix[T](r, 1, rows, max(1, rows))
				want := make([]float64, rows)
				for i := range rows {
					want[i] = float64(alpha)*product[i] + float64(beta)*float64(y[i])
					if beta == 0 {
						y[i] = T(math.NaN()) // does not count
					}
				}
				t.Run(fmt.Sprintf("%dx%d/%v/gap=%d/%v,%v", m, n, trans, gap, alpha, beta), func(t *testing.T) {
					Gemv(trans, m, n, alpha, a, lda, x, beta, y)
					same(t, y, want)
				})
			}
		}
	}
}

func TestGemm(t *testing.T) {
	onEachBLAS(t, func(t *testing.T) {
		t.Run("float32", testGemm[float32])
		t.Run("float64", testGemm[float64])
	})
}

func TestGemv(t *testing.T) {
	onEachBLAS(t, func(t *testing.T) {
		t.Run("float32", testGemv[float32])
		t.Run("float64", testGemv[float64])
	})
}

// Rounding: with random data every element stays within the bound of a dot product of length k
// summed in float32 in the worst order, k * 2^-24 * sum |a||b|.
func TestGemmRounding(t *testing.T) {
	onEachBLAS(t, func(t *testing.T) {
		const m, n, k = 70, 90, 500
		a, b, c := random(5, m*k), random(6, k*n), make([]float32, m*n)
		Gemm(false, false, m, n, k, 1, a, k, b, n, 0, c, n)
		for i := range m {
			for j := range n {
				sum, size := 0.0, 0.0
				for l := range k {
					p := float64(a[i*k+l]) * float64(b[l*n+j])
					sum += p
					size += math.Abs(p)
				}
				if d := math.Abs(float64(c[i*n+j]) - sum); d > k*0x1p-24*size {
					t.Fatalf("element (%d, %d) is off by %g", i, j, d)
				}
			}
		}
	})
}

// An element of y must not depend on the number of cores, with data that round.
func TestGemvSameBitsOnAnyCores(t *testing.T) {
	defer SetThreads(Threads())
	const m, n = 211, 5003
	a := random(7, m*n)
	for _, trans := range []bool{false, true} {
		rows, cols := stored(trans, m, n)
		var first []float32
		for _, cores := range []int{1, 2, 3, 8} {
			SetThreads(cores)
			y := make([]float32, rows)
			Gemv(trans, m, n, 1, a, n, a[:cols], 0, y)
			if first == nil {
				first = y
			}
			for i := range y {
				if y[i] != first[i] {
					t.Fatalf("trans %v, %d cores: element %d is %v, on one core %v", trans, cores, i, y[i], first[i])
				}
			}
		}
	}
}

func TestBLASMisuse(t *testing.T) {
	x := make([]float32, 6)
	cases := map[string]struct {
		call func()
		want []string
	}{
		"short a": {func() { Gemm(false, false, 2, 2, 4, 1, x, 4, make([]float32, 8), 2, 0, x, 2) },
			[]string{"a has 6", "needs 8"}},
		"short b": {func() { Gemm(false, true, 2, 4, 2, 1, x, 2, x, 2, 0, make([]float32, 8), 4) },
			[]string{"b has 6", "needs 8"}},
		"short c": {func() { Gemm(false, false, 2, 3, 2, 1, x, 2, x, 3, 0, x, 4) },
			[]string{"c has 6", "needs 7"}},
		"stride": {func() { Gemm(false, false, 2, 3, 2, 1, x, 2, x, 2, 0, x, 3) },
			[]string{"stride of b is 2", "3 elements"}},
		"negative": {func() { Gemm(false, false, 2, 3, -1, 1, x, 2, x, 3, 0, x, 3) },
			[]string{"a is 2 x -1", "negative"}},
		"negative, 0": {func() { Gemm(false, false, 2, 3, -1, 0, x, 2, x, 3, 0, x, 3) },
			[]string{"a is 2 x -1", "negative"}},
		"gemv short a": {func() { Gemv(false, 3, 3, 1, x, 3, x[:3], 0, x[:3]) }, []string{"a has 6", "needs 9"}},
		"gemv x":       {func() { Gemv(false, 2, 3, 1, x, 3, x[:2], 0, x[:2]) }, []string{"x has 2", "asks for 3"}},
		"gemv y":       {func() { Gemv(true, 2, 3, 1, x, 3, x[:2], 0, x[:2]) }, []string{"y has 2", "asks for 3"}},
		"dot":          {func() { Dot(x[:2], x[:3]) }, []string{"2", "3"}},
		"axpy":         {func() { Axpy(x[:4], 1, x[:3]) }, []string{"4", "3"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			defer func() {
				got := fmt.Sprint(recover())
				for _, want := range c.want {
					if !strings.Contains(got, want) {
						t.Errorf("panic %q does not say %q", got, want)
					}
				}
			}()
			c.call()
		})
	}
}

func TestChoice(t *testing.T) {
	if b := choose("gonum"); b.open || b.err != nil || !strings.HasPrefix(b.name, "gonum (pure Go): ") {
		t.Errorf("gonum: %+v", b)
	}
	if b := choose("mkl"); b.err == nil || !strings.Contains(b.err.Error(), `"mkl"`) {
		t.Errorf("mkl: %+v", b)
	}

	defer func(old []string) { openBLASFiles = old }(openBLASFiles)
	keep := openblas // Open clears the table when it fails
	defer func() { openblas = keep }()
	openBLASFiles = []string{"/nonexistent/libopenblas.so"}
	if b := choose("auto"); b.open || b.err != nil || !strings.Contains(b.name, openBLASFiles[0]) {
		t.Errorf("auto without OpenBLAS: %+v", b)
	}
	b := choose("openblas")
	if b.err == nil || !strings.Contains(b.err.Error(), openBLASFiles[0]) {
		t.Errorf("openblas without OpenBLAS: %+v", b)
	}

	defer func(old func() backend) { chosen = old }(chosen)
	chosen = func() backend { return b }
	if CheckBLAS() == nil || BLAS() != b.err.Error() {
		t.Errorf("CheckBLAS gives %v, BLAS %q", CheckBLAS(), BLAS())
	}
	defer func() {
		if recover() == nil {
			t.Error("Gemm without a BLAS does not panic")
		}
	}()
	one := []float32{1}
	Gemm(false, false, 1, 1, 1, 1, one, 1, one, 1, 0, []float32{0}, 1)
}

func TestOneCoreAllocatesNothing(t *testing.T) {
	defer SetThreads(Threads())
	SetThreads(1)
	x, y, c := make([]float32, 1024), make([]float32, 32), make([]float32, 1024)
	if CheckBLAS() != nil || !chosen().open {
		t.Skip(BLAS()) // gonum allocates
	}
	allocs := testkit.Allocations(20, func() {
		Gemm(false, true, 32, 32, 32, 1, x, 32, x, 32, 0, c, 32)
		Gemv(false, 32, 32, 1, x, 32, x[:32], 0, y)
		Sum(x)
		Dot(x, x)
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func BenchmarkGemm(b *testing.B) {
	for _, s := range [][3]int{{512, 512, 512}, {256, 3072, 768}, {256, 768, 3072}, {64, 64, 64}} {
		m, n, k := s[0], s[1], s[2]
		b.Run(fmt.Sprintf("%dx%dx%d", m, n, k), func(b *testing.B) {
			x, y, c := random(1, m*k), random(2, k*n), make([]float32, m*n) // not zeros: gonum skips them
			b.ReportAllocs()
			for b.Loop() {
				Gemm(false, false, m, n, k, 1, x, k, y, n, 0, c, n)
			}
			b.ReportMetric(2e-9*float64(m)*float64(n)*float64(k)*float64(b.N)/b.Elapsed().Seconds(), "GFLOP/s")
		})
	}
}

func BenchmarkGemv(b *testing.B) {
	const m, n = 2000, 60000
	a := random(1, m*n)
	for _, trans := range []bool{false, true} {
		b.Run(fmt.Sprintf("trans=%v", trans), func(b *testing.B) {
			rows, cols := stored(trans, m, n)
			y := make([]float32, rows)
			b.SetBytes(4 * m * n)
			for b.Loop() {
				Gemv(trans, m, n, 1, a, n, a[:cols], 0, y)
			}
		})
	}
}
