package blas_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/blas"
	"lockstep/spmd/spmdtest"
)

// A batch makes the products of its matrices one by one. Small integers have exact sums, to compare
// with sums by the definition.
func TestGemmBatch(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		testGemmBatch(t, w, func(x float32) float32 { return x })
		testGemmBatch(t, w, spmd.ToBF16)
	})
}

func testGemmBatch[T float32 | spmd.BF16](t *testing.T, w *spmd.World, to func(float32) T) {
	s := spmdtest.Stream(t, w, "s")
	const n = 3
	for _, size := range [][3]int{{1, 1, 1}, {3, 5, 7}, {16, 8, 24}, {33, 40, 17}} {
		rows, cols, depth := size[0], size[1], size[2]
		stack := func(per, factor int) ([]float32, spmd.Buffer[T]) {
			x, y := make([]float32, n*per), make([]T, n*per)
			for i := range x {
				x[i] = float32(i*factor%9 - 4)
				y[i] = to(x[i])
			}
			b := spmdtest.Alloc[T](t, w, n*per)
			spmdtest.Must(t, b.CopyFrom(y))
			return x, b
		}
		for kind := range 12 {
			av, a := stack(rows*depth, 7)
			bv, b := stack(depth*cols, 5)
			rv, r := stack(rows*cols, 4)
			o := blas.Options{TransA: kind&1 != 0, TransB: kind&2 != 0, Batch: n, Alpha: 2}
			am, bm := blas.MatrixOf(a, n*rows, depth), blas.MatrixOf(b, n*depth, cols)
			if o.TransA {
				am = blas.MatrixOf(a, n*depth, rows)
			}
			if o.TransB {
				bm = blas.MatrixOf(b, n*cols, depth)
			}
			c, add := spmdtest.Alloc[T](t, w, n*rows*cols), 0
			switch kind / 4 {
			case 1:
				o.Residual, add = r.Arg(), 1
			case 2:
				o.Accumulate, add = true, 1
				spmdtest.Must(t, c.CopyFrom(valuesOf(t, r)))
			}
			spmdtest.Must(t, blas.Gemm(s, blas.MatrixOf(c, n*rows, cols), am, bm, o))
			spmdtest.Must(t, s.Synchronize())
			want := make([]T, n*rows*cols)
			for m := range n {
				for i := range rows {
					for j := range cols {
						at, sum := (m*rows+i)*cols+j, float32(0)
						for l := range depth {
							x, y := i*depth+l, l*cols+j
							if o.TransA {
								x = l*rows + i
							}
							if o.TransB {
								y = j*depth + l
							}
							sum += av[m*rows*depth+x] * bv[m*depth*cols+y]
						}
						want[at] = to(2*sum + float32(add)*rv[at])
					}
				}
			}
			if got := valuesOf(t, c); !slices.Equal(got, want) {
				t.Fatalf("%T %v %+v: %v, want %v", want[0], size, o, got, want)
			}
		}
	}
}

func valuesOf[T spmd.Stored](t *testing.T, b spmd.Buffer[T]) []T {
	t.Helper()
	x := make([]T, b.Len())
	spmdtest.Must(t, b.CopyTo(x))
	return x
}

func TestGemmBatchRefused(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s := spmdtest.Stream(t, w, "s")
		x, y, z := spmdtest.Alloc[float32](t, w, 24), spmdtest.Alloc[float32](t, w, 24),
			spmdtest.Alloc[float32](t, w, 24)
		m := blas.MatrixOf[float32]
		for want, err := range map[string]error{
			"a Batch of 2: A of float32 has 3 rows": blas.Gemm(s, m(x, 6, 3), m(y, 3, 3),
				m(z, 6, 3), blas.Options{Batch: 2}),
			"a Batch of -1": blas.Gemm(s, m(x, 6, 3), m(y, 6, 3),
				m(z, 6, 3), blas.Options{Batch: -1}),
			"C is 4x3, op(A) 4x3, op(B) 4x3": blas.Gemm(s, m(x, 8, 3), m(y, 8, 3),
				m(z, 8, 3), blas.Options{Batch: 2}),
			"its epilogue is Residual alone": blas.Gemm(s, m(x, 6, 3), m(y, 6, 3),
				m(z, 6, 3), blas.Options{Batch: 2, Bias: z.Slice(0, 3).Arg()}),
			"Residual has 12 elements": blas.Gemm(s, m(x, 6, 3), m(y, 6, 3),
				m(z, 6, 3), blas.Options{Batch: 2, Residual: z.Slice(0, 12).Arg()}),
			"C, which is written, overlaps Residual": blas.Gemm(s, m(x, 6, 3), m(y, 6, 3),
				m(z, 6, 3), blas.Options{Batch: 2, Residual: x.Slice(6, 24).Arg()}),
			"A is 6x3 with rows 3 apart, its buffer has 9": blas.Gemm(s, m(x, 6, 3),
				m(y.Slice(0, 9), 6, 3), m(z, 6, 3), blas.Options{Batch: 2}),
		} {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("error %v, want %q in it", err, want)
			}
		}
		if err := blas.Gemv(s, x.Slice(0, 2), m(y, 2, 2), z.Slice(0, 2), blas.Options{Batch: 2}); err == nil {
			t.Error("Gemv takes a batch")
		}
	})
}
