package blas_test

import (
	"context"
	"os"
	"testing"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/blas"
	"lockstep/spmd/spmdtest"
)

// appEnv is what the program "app" does.
const appEnv = "BLAS_TEST_APP"

func TestMain(m *testing.M) { spmdtest.Main(m, app) }

// app makes one product, of 8-bit floats or not.
func app() {
	spmd.Main(pflag.NewFlagSet("app", pflag.ExitOnError), func(_ context.Context, w *spmd.World) error {
		s, err := w.NewStream("work")
		if err != nil {
			return err
		}
		x, err := spmd.Alloc[spmd.F8E4M3](w, 256)
		if err != nil {
			return err
		}
		y, err := spmd.Alloc[spmd.BF16](w, 256)
		if err != nil {
			return err
		}
		c := blas.MatrixOf(y, 16, 16)
		if os.Getenv(appEnv) == "8 bits" {
			m := blas.MatrixOf(x, 16, 16)
			err = blas.Gemm(s, c, m, m, blas.Options{TransB: true})
		} else {
			err = blas.Gemm(s, blas.MatrixOf(y.Slice(0, 64), 8, 8), blas.MatrixOf(y.Slice(64, 128), 8, 8), blas.MatrixOf(y.Slice(64, 128), 8, 8), blas.Options{})
		}
		if err != nil {
			return err
		}
		return s.Synchronize()
	})
}

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }
