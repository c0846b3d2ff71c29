package host

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"lockstep/internal/elem"
)

// Every 16-bit value goes to float32 and back, and float32 values of every kind go as elem converts
// them.
func TestWidenAndRound(t *testing.T) {
	t.Run("bfloat16", func(t *testing.T) { testWidenAndRound(t, elem.ToBF16, elem.BF16.Float32) })
	t.Run("float16", func(t *testing.T) { testWidenAndRound(t, elem.ToF16, elem.F16.Float32) })
}

func testWidenAndRound[T half](t *testing.T, to func(float32) T, from func(T) float32) {
	all := make([]T, 1<<16)
	for i := range all {
		all[i] = T(i)
	}
	wide := make([]float32, len(all))
	Widen(wide, all)
	for i, x := range wide {
		if want := from(all[i]); math.Float32bits(x) != math.Float32bits(want) {
			t.Fatalf("%#04x is %v, want %v", all[i], x, want)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1 << 18 {
		wide = append(wide, math.Float32frombits(r.Uint32()))
	}
	for _, x := range wide[:1<<16] { // ties, and what lies beside them
		b := math.Float32bits(x)
		for _, d := range []uint32{1 << 15, 1<<15 + 1, 1<<15 - 1, 1 << 12, 1<<12 + 1, 1<<12 - 1} {
			wide = append(wide, math.Float32frombits(b+d))
		}
	}
	back := make([]T, len(wide))
	Round(back, wide)
	for i, x := range wide {
		if want := to(x); back[i] != want {
			t.Fatalf("%v (%#08x) becomes %#04x, want %#04x", x, math.Float32bits(x), back[i], want)
		}
	}
}

// halves rounds x, its NaNs included.
func halves[T half](x []float32) []T {
	h := make([]T, len(x))
	Round(h, x)
	return h
}

func testGemmHalf[C float | half, T half](t *testing.T, wideC func([]C) []float32, narrowC func([]float32) []C) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, s := range [][3]int{{1, 1, 1}, {0, 3, 2}, {3, 0, 2}, {3, 2, 0}, {5, 7, 3}, {17, 1, 33},
		{33, 35, 71}, {130, 9, 40}} {
		m, n, k := s[0], s[1], s[2]
		for flags := range 8 {
			transA, transB, gap := flags&1 != 0, flags&2 != 0, flags&4/4*3
			rowsA, colsA := stored(transA, m, k)
			rowsB, colsB := stored(transB, k, n)
			lda, ldb, ldc := max(1, colsA)+gap, max(1, colsB)+2*gap, max(1, n)+gap
			a, b := matrix[float32](r, rowsA, colsA, lda), matrix[float32](r, rowsB, colsB, ldb)
			for _, f := range [][2]float32{{1, 0}, {1, 1}, {-2, 0.5}, {0, 2}, {0, 0}} {
				alpha, beta := f[0], f[1]
				want := matrix[float32](r, m, n, ldc)
				c := narrowC(want)
				Gemm(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, want, ldc)
				half := func() {
					t.Helper()
					switch c := any(c).(type) {
					case []float32:
						GemmHalf(transA, transB, m, n, k, alpha, halves[T](a), lda, halves[T](b), ldb, beta, c, ldc,
							Epilogue[float32]{})
					case []T:
						GemmHalf(transA, transB, m, n, k, alpha, halves[T](a), lda, halves[T](b), ldb, beta, c, ldc,
							Epilogue[T]{})
					}
				}
				half()
				got, rounded := wideC(c), wideC(narrowC(want)) // sums of some hundred small integers need rounding
				for i := range rounded {
					if got[i] != rounded[i] && !(got[i] != got[i] && rounded[i] != rounded[i]) {
						t.Fatalf("%dx%dx%d %v,%v gap %d factors %v: element %d is %v, want %v", m, n, k,
							transA, transB, gap, f, i, got[i], rounded[i])
					}
				}
			}
		}
	}
}

func TestGemmHalf(t *testing.T) {
	same := func(x []float32) []float32 { return append([]float32(nil), x...) }
	onEachBLAS(t, func(t *testing.T) {
		t.Run("bfloat16", func(t *testing.T) { testGemmHalf[elem.BF16, elem.BF16](t, widened, halves) })
		t.Run("float16", func(t *testing.T) { testGemmHalf[elem.F16, elem.F16](t, widened, halves) })
		t.Run("bfloat16 into float32", func(t *testing.T) { testGemmHalf[float32, elem.BF16](t, same, same) })
		t.Run("float16 into float32", func(t *testing.T) { testGemmHalf[float32, elem.F16](t, same, same) })
	})
}

func widened[T half](x []T) []float32 {
	w := make([]float32, len(x))
	Widen(w, x)
	return w
}

func TestHalfMisuse(t *testing.T) {
	x, w := make([]elem.BF16, 6), make([]float32, 6)
	for _, c := range []struct {
		call func()
		want []string
	}{
		{func() { Widen(w, x[:5]) }, []string{"Widen", "6", "5"}},
		{func() { Round(x[:4], w) }, []string{"Round", "4", "6"}},
		{func() {
			GemmHalf(false, false, 2, 2, 4, 1, x, 4, make([]elem.BF16, 8), 2, 0, w, 2, Epilogue[float32]{})
		},
			[]string{"a has 6", "needs 8"}},
		{func() { GemmHalf(false, false, 2, 3, 2, 1, x, 2, x, 3, 0, w, 4, Epilogue[float32]{}) },
			[]string{"c has 6", "needs 7"}},
		{func() {
			GemmHalf(false, false, 1, 1, 1, 1, x, 1, x, 1, 0, make([]elem.F16, 1), 1, Epilogue[elem.F16]{})
		},
			[]string{"another 16-bit float"}},
	} {
		func() {
			defer func() {
				got := fmt.Sprint(recover())
				for _, want := range c.want {
					if !strings.Contains(got, want) {
						t.Errorf("panic %q does not say %q", got, want)
					}
				}
			}()
			c.call()
		}()
	}
}
