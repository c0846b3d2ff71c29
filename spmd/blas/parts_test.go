package blas_test

import (
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/blas"
	"lockstep/spmd/spmdtest"
)

// moves copies and transposes parts of matrices, and looks at every element of the destination.
func moves[T spmd.Elem](t *testing.T, w *spmd.World, of func(i int) T) {
	s, err := w.NewStream("parts")
	spmdtest.Must(t, err)
	for _, c := range []struct{ rows, cols, row, col, toRow, toCol int }{{1, 1, 0, 0, 0, 0},
		{3, 5, 2, 1, 0, 4}, {40, 33, 1, 2, 3, 0}, {7, 90, 0, 0, 0, 0}, {0, 4, 1, 1, 1, 1}} {
		src := blas.MatrixOf(spmdtest.Alloc[T](t, w, 60*95), 60, 95)
		dst := blas.MatrixOf(spmdtest.Alloc[T](t, w, 100*101), 100, 101)
		h := make([]T, src.Len())
		for i := range h {
			h[i] = of(i)
		}
		spmdtest.Must(t, src.CopyFrom(h))
		from := src.Part(c.row, c.rows, c.col, c.cols)
		for _, turn := range []bool{false, true} {
			spmdtest.Must(t, dst.SetAll(of(-1)))
			step := func() error { return blas.Copy(s, dst.Part(c.toRow, c.rows, c.toCol, c.cols), from) }
			if turn {
				step = func() error { return blas.Transpose(s, dst.Part(c.toRow, c.cols, c.toCol, c.rows), from) }
			}
			g, err := s.Capture(step)
			spmdtest.Must(t, err)
			spmdtest.Must(t, g.Launch(s))
			spmdtest.Must(t, s.Synchronize())
			got := make([]T, dst.Len())
			spmdtest.Must(t, dst.CopyTo(got))
			for k, v := range got {
				i, j := k/dst.Stride-c.toRow, k%dst.Stride-c.toCol
				if turn {
					i, j = j, i
				}
				want := of(-1)
				if i >= 0 && i < c.rows && j >= 0 && j < c.cols {
					want = of((c.row+i)*src.Stride + c.col + j)
				}
				if v != want {
					t.Fatalf("%T, %+v, transposed %v: element %d is %v, want %v", v, c, turn, k, v, want)
				}
			}
		}
	}
}

// The CUDA does the same.
func TestMoves(t *testing.T) {
	spmdtest.CompareKernels(t)
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		moves(t, w, func(i int) uint8 { return uint8(i) })
		moves(t, w, func(i int) spmd.BF16 { return spmd.BF16(i & 0x7f) })
		moves(t, w, func(i int) float32 { return float32(i) })
		moves(t, w, func(i int) complex64 { return complex(float32(i), 1) })
		moves(t, w, func(i int) complex128 { return complex(float64(i), -2) })
	})
}

// Overlapping and unfit views are refused. Halves of a matrix beside each other do not overlap. A
// part is an operand of a product.
func TestParts(t *testing.T) {
	spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
		s, err := w.NewStream("parts")
		spmdtest.Must(t, err)
		a := blas.MatrixOf(spmdtest.Alloc[float32](t, w, 24), 4, 6)
		h := make([]float32, 24)
		for i := range h {
			h[i] = float32(i)
		}
		spmdtest.Must(t, a.CopyFrom(h))
		refused := func(err error, want string) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		refused(blas.Copy(s, a.Part(0, 2, 0, 4), a.Part(1, 2, 2, 4)), "overlap")
		refused(blas.Copy(s, a.Part(0, 2, 0, 2), a.Part(0, 2, 2, 3)), "dst is 2x2, src 2x3")
		refused(blas.Copy(s, a, blas.Matrix[float32]{a.Buffer, 4, 6, 7}),
			"src is 4x6 with rows 7 apart, its buffer has 24 elements")
		spmdtest.Must(t, blas.Copy(s, a.Part(0, 4, 0, 3), a.Part(0, 4, 3, 3)))
		c := blas.MatrixOf(spmdtest.Alloc[float32](t, w, 4), 2, 2)
		spmdtest.Must(t, blas.Gemm(s, c, a.Part(0, 2, 0, 2),
			a.Part(2, 2, 4, 2), blas.Options{}))
		spmdtest.Must(t, s.Synchronize())
		for i, want := range []float32{3*16 + 4*22, 3*17 + 4*23, 9*16 + 10*22, 9*17 + 10*23} {
			if got := c.At(i); got != want {
				t.Errorf("element %d of the product is %v, want %v", i, got, want)
			}
		}
	})
}
