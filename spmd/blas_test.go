package spmd_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// Products of 16-bit floats, into their own type and into float32: with small
// integers every sum is exact, so that what is stored is the sum rounded once.
func TestGemmHalf(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		testGemmHalf(t, w, spmd.ToBF16, spmd.BF16.Float32)
		testGemmHalf(t, w, spmd.ToF16, spmd.F16.Float32)
	})
}

func testGemmHalf[T spmd.BF16 | spmd.F16](t *testing.T, w *spmd.World, to func(float32) T, from func(T) float32) {
	s := stream(t, w, "s")
	for _, size := range [][3]int{{1, 1, 1}, {3, 5, 7}, {16, 8, 24}, {33, 40, 65}} {
		m, n, k := size[0], size[1], size[2]
		for flags := range 4 {
			o := spmd.GemmOpt{TransA: flags&1 != 0, TransB: flags&2 != 0, Alpha: 0.5}
			a, b := alloc[T](t, w, m*k), alloc[T](t, w, k*n)
			av, bv := make([]T, m*k), make([]T, k*n)
			for i := range av {
				av[i] = to(float32(i*7%9 - 4))
			}
			for i := range bv {
				bv[i] = to(float32(i*5%11 - 5))
			}
			must(t, a.CopyFrom(av))
			must(t, b.CopyFrom(bv))
			am, bm := spmd.MatrixOf(a, m, k), spmd.MatrixOf(b, k, n)
			at, bt := func(i, l int) float32 { return from(av[i*k+l]) }, func(l, j int) float32 { return from(bv[l*n+j]) }
			if o.TransA {
				am, at = spmd.MatrixOf(a, k, m), func(i, l int) float32 { return from(av[l*m+i]) }
			}
			if o.TransB {
				bm, bt = spmd.MatrixOf(b, n, k), func(l, j int) float32 { return from(bv[j*k+l]) }
			}
			c, c32 := alloc[T](t, w, m*n), alloc[float32](t, w, m*n)
			must(t, c.SetAll(to(3)))
			must(t, c32.SetAll(3))
			for _, o.Accumulate = range []bool{true, false} {
				must(t, spmd.Gemm(s, spmd.MatrixOf(c, m, n), am, bm, o))
				must(t, spmd.Gemm(s, spmd.MatrixOf(c32, m, n), am, bm, o))
				must(t, s.Synchronize())
				got, got32 := make([]T, m*n), make([]float32, m*n)
				must(t, c.CopyTo(got))
				must(t, c32.CopyTo(got32))
				for i := range m {
					for j := range n {
						sum := float32(0)
						for l := range k {
							sum += at(i, l) * bt(l, j)
						}
						sum /= 2
						if o.Accumulate {
							sum += 3
						}
						if x, y := got[i*n+j], got32[i*n+j]; x != to(sum) || y != sum {
							if math.Abs(float64(from(x)-from(to(sum)))) == 0 && y == sum { // the two zeros
								continue
							}
							t.Fatalf("%T %dx%dx%d %+v: element (%d, %d) is %v, in float32 %v, want %v", x, m, n, k, o, i, j, from(x), y, sum)
						}
					}
				}
			}
		}
	}
}

func TestGemmRefusesTypes(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := stream(t, w, "s")
		f32, f64 := spmd.MatrixOf(alloc[float32](t, w, 1), 1, 1), spmd.MatrixOf(alloc[float64](t, w, 1), 1, 1)
		bf, f16 := spmd.MatrixOf(alloc[spmd.BF16](t, w, 1), 1, 1), spmd.MatrixOf(alloc[spmd.F16](t, w, 1), 1, 1)
		for want, err := range map[string]error{
			"C is float64, A and B are float32":  spmd.Gemm(s, f64, f32, f32, spmd.GemmOpt{}),
			"C is float32, A and B are float64":  spmd.Gemm(s, f32, f64, f64, spmd.GemmOpt{}),
			"C is bfloat16, A and B are float32": spmd.Gemm(s, bf, f32, f32, spmd.GemmOpt{}),
			"C is float64, A and B are bfloat16": spmd.Gemm(s, f64, bf, bf, spmd.GemmOpt{}),
			"C is float16, A and B are bfloat16": spmd.Gemm(s, f16, bf, bf, spmd.GemmOpt{}),
			"C is bfloat16, A and B are float16": spmd.Gemm(s, bf, f16, f16, spmd.GemmOpt{}),
			"spmd/blas_test.go:":                 spmd.Gemm(s, f16, f64, f64, spmd.GemmOpt{}),
		} {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("error %v, want %q in it", err, want)
			}
		}
	})
}
