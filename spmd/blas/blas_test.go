package blas_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/blas"
	"lockstep/spmd/spmdtest"
)

func TestGemmAndGemv(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := spmdtest.Stream(t, w, "s")
		a, b, c := spmdtest.Alloc[float64](t, w, 6), spmdtest.Alloc[float64](t, w, 6), spmdtest.Alloc[float64](t, w, 4)
		spmdtest.Must(t, a.CopyFrom([]float64{1, 2, 3, 4, 5, 6}))    // 2x3
		spmdtest.Must(t, b.CopyFrom([]float64{7, 8, 9, 10, 11, 12})) // 3x2
		spmdtest.Must(t, c.SetAll(1))
		m := blas.MatrixOf[float64]
		equal := func(what string, got spmd.Buffer[float64], want ...float64) {
			t.Helper()
			spmdtest.Must(t, s.Synchronize())
			for i, x := range want {
				if got.At(i) != x {
					t.Errorf("%s: [%d] = %v, want %v", what, i, got.At(i), x)
				}
			}
		}
		spmdtest.Must(t, blas.Gemm(s, m(c, 2, 2), m(a, 2, 3), m(b, 3, 2), blas.Options{}))
		equal("A B", c, 58, 64, 139, 154)
		spmdtest.Must(t, blas.Gemm(s, m(c, 2, 2), m(a, 2, 3), m(b, 3, 2), blas.Options{Alpha: 2, Accumulate: true}))
		equal("C + 2 A B", c, 3*58, 3*64, 3*139, 3*154)
		spmdtest.Must(t, blas.Gemm(s, m(c, 2, 2), m(a, 3, 2), m(b, 2, 3), blas.Options{TransA: true, TransB: true}))
		equal("A' B'", c, 1*7+3*8+5*9, 1*10+3*11+5*12, 2*7+4*8+6*9, 2*10+4*11+6*12)
		y := c.Slice(0, 2)
		spmdtest.Must(t, blas.Gemv(s, y, m(a, 2, 3), b.Slice(0, 3), blas.Options{}))
		equal("A x", y, 1*7+2*8+3*9, 4*7+5*8+6*9)
		spmdtest.Must(t, blas.Gemv(s, c.Slice(0, 3), m(a, 2, 3), b.Slice(0, 2), blas.Options{TransA: true}))
		equal("A' x", c, 1*7+4*8, 2*7+5*8, 3*7+6*8)
	})
}

// Products of 16-bit floats, into their own type and into float32. With small integers every sum is
// exact, so that the result is the sum rounded once.
func TestGemmHalf(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		testGemmHalf(t, w, spmd.ToBF16, spmd.BF16.Float32)
		testGemmHalf(t, w, spmd.ToF16, spmd.F16.Float32)
	})
}

func testGemmHalf[T spmd.BF16 | spmd.F16](t *testing.T, w *spmd.World, to func(float32) T, from func(T) float32) {
	s := spmdtest.Stream(t, w, "s")
	for _, size := range [][3]int{{1, 1, 1}, {3, 5, 7}, {16, 8, 24}, {33, 40, 65}} {
		m, n, k := size[0], size[1], size[2]
		for flags := range 4 {
			o := blas.Options{TransA: flags&1 != 0, TransB: flags&2 != 0, Alpha: 0.5}
			a, b := spmdtest.Alloc[T](t, w, m*k), spmdtest.Alloc[T](t, w, k*n)
			av, bv := make([]T, m*k), make([]T, k*n)
			for i := range av {
				av[i] = to(float32(i*7%9 - 4))
			}
			for i := range bv {
				bv[i] = to(float32(i*5%11 - 5))
			}
			spmdtest.Must(t, a.CopyFrom(av))
			spmdtest.Must(t, b.CopyFrom(bv))
			am, bm := blas.MatrixOf(a, m, k), blas.MatrixOf(b, k, n)
			at, bt := func(i, l int) float32 { return from(av[i*k+l]) },
				func(l, j int) float32 { return from(bv[l*n+j]) }
			if o.TransA {
				am, at = blas.MatrixOf(a, k, m), func(i, l int) float32 { return from(av[l*m+i]) }
			}
			if o.TransB {
				bm, bt = blas.MatrixOf(b, n, k), func(l, j int) float32 { return from(bv[j*k+l]) }
			}
			c, c32 := spmdtest.Alloc[T](t, w, m*n), spmdtest.Alloc[float32](t, w, m*n)
			spmdtest.Must(t, c.SetAll(to(3)))
			spmdtest.Must(t, c32.SetAll(3))
			for _, o.Accumulate = range []bool{true, false} {
				spmdtest.Must(t, blas.Gemm(s, blas.MatrixOf(c, m, n), am, bm, o))
				spmdtest.Must(t, blas.Gemm(s, blas.MatrixOf(c32, m, n), am, bm, o))
				spmdtest.Must(t, s.Synchronize())
				got, got32 := make([]T, m*n), make([]float32, m*n)
				spmdtest.Must(t, c.CopyTo(got))
				spmdtest.Must(t, c32.CopyTo(got32))
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
							t.Fatalf("%T %dx%dx%d %+v: element (%d, %d) is %v, in float32 %v, want %v", x,
								m, n, k, o, i, j, from(x), y, sum)
						}
					}
				}
			}
		}
	}
}

// Bad shapes are refused at the call, with the shapes in the message. The stream goes on.
func TestRefusesShapes(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := spmdtest.Stream(t, w, "s")
		a3, a4 := spmdtest.Alloc[float64](t, w, 3), spmdtest.Alloc[float64](t, w, 4)
		square, small := blas.MatrixOf(a4, 2, 2), blas.MatrixOf(a3, 2, 2)
		freed := spmdtest.Alloc[float64](t, w, 4)
		spmdtest.Must(t, freed.Free())
		gone := blas.MatrixOf(freed, 2, 2)
		for what, err := range map[string]error{
			"C is 2x2, op(A) 1x3, op(B) 2x2": blas.Gemm(s, square,
				blas.MatrixOf(a3, 1, 3), square, blas.Options{}),
			"C is 2x2, op(A) 2x1, op(B) 2x2": blas.Gemm(s, square,
				blas.MatrixOf(a3, 1, 2), square, blas.Options{TransA: true}),
			"Gemm: A is 2x2 with rows 2 apart, its buffer has 3 elements": blas.Gemm(s, square, small,
				square, blas.Options{}),
			"Gemm: B is 2x2 with rows 2 apart, its buffer has 3 elements": blas.Gemm(s, square, square,
				small, blas.Options{}),
			"Gemm: C is 2x2 with rows 2 apart, its buffer has 3 elements": blas.Gemm(s, small, square,
				square, blas.Options{}),
			"y has 3 elements, op(A) is 2x2, x has 2": blas.Gemv(s, a3, square,
				a4.Slice(0, 2), blas.Options{}),
			"Gemv: A is 2x2 with rows 2 apart, its buffer has 3 elements": blas.Gemv(s, a4.Slice(0, 2),
				small, a4.Slice(2, 4), blas.Options{}),
			"the buffer of 32 bytes was freed at blas/blas_test.go:": blas.Gemm(s, square,
				blas.MatrixOf(a3, 2, 1), gone.Part(0, 1, 0, 2), blas.Options{}),
			"Transpose: src is 4294967296x1 with rows 4294967296 apart": blas.Transpose(s, square,
				blas.Matrix[float64]{Buffer: a4, Rows: 1 << 32, Cols: 1, Stride: 1 << 32}),
			"Copy: dst is 2x9223372036854775807 with": blas.Copy(s,
				blas.Matrix[float64]{Buffer: a4, Rows: 2, Cols: math.MaxInt, Stride: math.MaxInt}, square),
			"blas_test.go:": blas.Gemv(s, a4.Slice(0, 2), gone, a3.Slice(0, 2), blas.Options{}),
		} {
			if !strings.Contains(fmt.Sprint(err), what) || !strings.HasPrefix(fmt.Sprint(err), "blas/blas_test.go:") {
				t.Errorf("error %v, want %q in it", err, what)
			}
		}
		spmdtest.Must(t, s.Synchronize())
	})
}

// A product over no columns is 0, and one of no elements is nothing to do, as in NumPy.
func TestNothing(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := spmdtest.Stream(t, w, "s")
		c, m := spmdtest.Alloc[float64](t, w, 6), blas.MatrixOf[float64]
		x, none := spmdtest.Alloc[float64](t, w, 3), spmd.Buffer[float64]{}
		sums := spmdtest.Alloc[float64](t, w, 2)
		spmdtest.Must(t, x.CopyFrom([]float64{1, 2, 3}))
		for _, tc := range []struct {
			o    blas.Options
			want [6]float64
		}{
			{blas.Options{}, [6]float64{}},
			{blas.Options{TransA: true, TransB: true, Accumulate: true}, [6]float64{7, 7, 7, 7, 7, 7}},
			{blas.Options{TransA: true, Bias: x.Arg()}, [6]float64{1, 2, 3, 1, 2, 3}},
			{blas.Options{TransB: true, RowSums: sums.Arg()}, [6]float64{}},
		} {
			shape := func(trans bool, rows, cols int) blas.Matrix[float64] {
				if trans {
					return m(none, cols, rows)
				}
				return m(none, rows, cols)
			}
			spmdtest.Must(t, errors.Join(c.SetAll(7), sums.SetAll(7)))
			spmdtest.Must(t, blas.Gemm(s, m(c, 2, 3), shape(tc.o.TransA, 2, 0), shape(tc.o.TransB, 0, 3), tc.o))
			spmdtest.Must(t, s.Synchronize())
			for i, v := range tc.want {
				if c.At(i) != v || tc.o.RowSums != (spmd.Arg{}) && sums.At(i%2) != 0 {
					t.Errorf("%+v: element %d is %v, want %v", tc.o, i, c.At(i), v)
				}
			}
		}
		spmdtest.Must(t, errors.Join(c.SetAll(7),
			blas.Gemm(s, m(none, 0, 3), m(none, 0, 2), m(c, 2, 3), blas.Options{}),
			blas.Gemm(s, m(none, 2, 0), m(c, 2, 3), m(none, 3, 0), blas.Options{}),
			blas.Gemm(s, m(none, 0, 0), m(none, 0, 0), m(none, 0, 0), blas.Options{}),
			blas.Transpose(s, m(none, 0, 5), m(none, 5, 0)), blas.Copy(s, m(none, 5, 0), m(none, 5, 0)),
			blas.Gemv(s, none, m(none, 0, 3), x, blas.Options{}),
			blas.Gemv(s, none, m(none, 3, 0), x, blas.Options{TransA: true}),
			blas.Gemv(s, c.Slice(0, 2), m(none, 2, 0), none, blas.Options{}),
			blas.Gemv(s, c.Slice(2, 4), m(none, 0, 2), none, blas.Options{TransA: true, Accumulate: true}),
			s.Synchronize()))
		for i, v := range []float64{0, 0, 7, 7, 7, 7} {
			if c.At(i) != v {
				t.Errorf("element %d is %v, want %v", i, c.At(i), v)
			}
		}
	})
}

func TestGemmRefusesTypes(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := spmdtest.Stream(t, w, "s")
		f32, f64 := blas.MatrixOf(spmdtest.Alloc[float32](t, w, 1), 1, 1),
			blas.MatrixOf(spmdtest.Alloc[float64](t, w, 1), 1, 1)
		bf, f16 := blas.MatrixOf(spmdtest.Alloc[spmd.BF16](t, w, 1), 1, 1),
			blas.MatrixOf(spmdtest.Alloc[spmd.F16](t, w, 1), 1, 1)
		for want, err := range map[string]error{
			"C is float64, A and B are float32":  blas.Gemm(s, f64, f32, f32, blas.Options{}),
			"C is float32, A and B are float64":  blas.Gemm(s, f32, f64, f64, blas.Options{}),
			"C is bfloat16, A and B are float32": blas.Gemm(s, bf, f32, f32, blas.Options{}),
			"C is float64, A and B are bfloat16": blas.Gemm(s, f64, bf, bf, blas.Options{}),
			"C is float16, A and B are bfloat16": blas.Gemm(s, f16, bf, bf, blas.Options{}),
			"C is bfloat16, A and B are float16": blas.Gemm(s, bf, f16, f16, blas.Options{}),
			"blas/blas_test.go:":                 blas.Gemm(s, f16, f64, f64, blas.Options{}),
		} {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("error %v, want %q in it", err, want)
			}
		}
	})
}
