package blas_test

import (
	"context"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/blas"
	"lockstep/spmd/spmdtest"
	"lockstep/spmd/telemetry"
)

// BenchmarkTranspose times the transpose of a matrix for each size of elements:
//
//	SPMDTEST_DEVICE=cuda go test -run '^$' -bench . ./spmd/blas
func BenchmarkTranspose(b *testing.B) {
	if err := spmd.Local(b.Context(), spmdtest.Config(), 1, func(_ context.Context, w *spmd.World) error {
		benchTranspose[uint8](b, w, "uint8")
		benchTranspose[spmd.BF16](b, w, "bf16")
		benchTranspose[float32](b, w, "float32")
		benchTranspose[float64](b, w, "float64")
		benchTranspose[complex128](b, w, "complex128")
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}

func benchTranspose[T spmd.Elem](b *testing.B, w *spmd.World, name string) {
	rows, cols := 8192, 8200
	if w.OnHost() {
		rows, cols = 512, 1000
	}
	s := spmdtest.Stream(b, w, name)
	x, y := spmdtest.Alloc[T](b, w, rows*cols), spmdtest.Alloc[T](b, w, rows*cols)
	b.Run(name, func(b *testing.B) {
		stats, err := telemetry.MeasureStream(w.Comm(), s, telemetry.Graph, 3, max(b.N, 20),
			func() error { return blas.Transpose(s, blas.MatrixOf(y, cols, rows), blas.MatrixOf(x, rows, cols)) })
		spmdtest.Must(b, err)
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(stats.MedianUS, "us")
	})
	spmdtest.Must(b, x.Free())
	spmdtest.Must(b, y.Free())
}
