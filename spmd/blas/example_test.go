package blas_test

import (
	"context"
	"errors"
	"fmt"

	"lockstep/spmd"
	"lockstep/spmd/blas"
)

// A layer: y = x W' + b, with a bias that the product adds.
func ExampleGemm() {
	err := spmd.Local(context.Background(), spmd.Config{Device: "host", LogLevel: "error"}, 1,
		func(_ context.Context, w *spmd.World) error {
			s, err := w.NewStream("layer")
			mem, err2 := spmd.Alloc[float32](w, 2+6+3+3)
			if err := errors.Join(err, err2); err != nil {
				return err
			}
			x, weights, b, y := mem.Slice(0, 2), mem.Slice(2, 8), mem.Slice(8, 11), mem.Slice(11, 14)
			err = errors.Join(x.CopyFrom([]float32{1, 10}), weights.CopyFrom([]float32{1, 2, 3, 4, 5, 6}),
				b.SetAll(100),
				blas.Gemm(s, blas.MatrixOf(y, 1, 3), blas.MatrixOf(x, 1, 2), blas.MatrixOf(weights, 3, 2),
					blas.Options{TransB: true, Bias: b.Arg()}),
				s.Synchronize())
			fmt.Println(y.At(0), y.At(1), y.At(2))
			return err
		})
	fmt.Println(err)
	// Output:
	// 121 143 165
	// <nil>
}
