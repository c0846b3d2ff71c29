package spmd_test

import (
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"lockstep/spmd"
)

// Products on the doubles of the driver and of cuBLASLt, which computes, but into no graph: what cuBLASLt has is asked of
// it with the right operands; of what it has not, the rest is done by kernels behind the product, which do not run here.
func gpuProducts(t *testing.T, w *spmd.World) {
	s := stream(t, w, "s")
	r := rand.New(rand.NewPCG(1, 2))
	for _, names := range epilogues {
		for flags := range 4 {
			p := product[spmd.BF16, spmd.BF16]{m: 16, n: 24, k: 8, names: names, alpha: 1, gap: 8 * (flags % 2), ec: inBF16, et: inBF16, r: r, eager: true}
			p.o.TransA, p.o.TransB = flags&1 != 0, flags&2 != 0
			p.run(t, w, s)
		}
	}
	newCalls(t)
	bf, f32 := alloc[spmd.BF16](t, w, 4096), alloc[float32](t, w, 4096)
	half, wide := spmd.MatrixOf(bf.Slice(0, 64), 8, 8), spmd.MatrixOf(f32.Slice(0, 64), 8, 8)
	var a, b, at spmd.Matrix[spmd.BF16]
	var a32, b32 spmd.Matrix[float32]
	bias, bias32, matrix, matrix32 := bf.Slice(192, 200).Arg(), f32.Slice(192, 200).Arg(), bf.Slice(256, 320).Arg(), f32.Slice(256, 320).Arg()
	odd := bf.Slice(193, 201).Arg()
	in := func(o spmd.GemmOpt) func() error { return func() error { return spmd.Gemm(s, half, a, b, o) } }
	in32 := func(o spmd.GemmOpt) func() error { return func() error { return spmd.Gemm(s, wide, a32, b32, o) } }
	for i, tc := range []struct {
		name string
		call func() error
		none string // epilogues that cuBLASLt has not
		want string // what runs, epilogues of cuBLASLt and kernels
	}{
		{"all in the product", in(spmd.GemmOpt{Bias: bias, GELU: matrix}), "", "164"},
		{"nothing of GELU", in(spmd.GemmOpt{Bias: bias, GELU: matrix}), "164", "1 gemm_finish"},
		{"DGELU without its sums", in(spmd.GemmOpt{DGELU: matrix, BiasGrad: bias}), "208", "192 gemm_columns gemm_columns_total"},
		{"nothing of DGELU", in(spmd.GemmOpt{DGELU: matrix, BiasGrad: bias}), "208,192", "1 gemm_finish gemm_columns gemm_columns_total"},
		{"no sums", in(spmd.GemmOpt{RowSums: bias}), "512", "1 gemm_rows"},
		{"no sums of the transpose", func() error { return spmd.Gemm(s, half, at, b, spmd.GemmOpt{RowSums: bias, TransA: true}) }, "512", "1 gemm_columns gemm_columns_total"},
		{"sums with a factor", in(spmd.GemmOpt{RowSums: bias, Alpha: 2}), "", "1 gemm_rows"},
		{"a bias where cuBLASLt does not take it", in(spmd.GemmOpt{Bias: odd}), "", "1 gemm_finish"},
		{"a bias of float32", in32(spmd.GemmOpt{Bias: bias32, Residual: matrix32}), "", "4"},
		{"a GELU of float32, which is exact", in32(spmd.GemmOpt{Bias: bias32, GELU: matrix32}), "", "1 gemm_finish"},
		{"its gradient", in32(spmd.GemmOpt{DGELU: matrix32, BiasGrad: bias32}), "", "1 gemm_finish gemm_columns gemm_columns_total"},
		{"float32 of 16 bits", func() error { return spmd.Gemm(s, wide, a, b, spmd.GemmOpt{RowSums: bias32}) }, "512", "1 gemm_rows"},
	} {
		os.Setenv("FAKECUBLAS_NONE", tc.none)
		// The library is asked once for each epilogue and shape, so that each of these has its own.
		k := 8 * (i + 1)
		a, b = spmd.MatrixOf(bf.Slice(1024, 1024+8*k), 8, k), spmd.MatrixOf(bf.Slice(2048, 2048+8*k), k, 8)
		a32, b32 = spmd.MatrixOf(f32.Slice(1024, 1024+8*k), 8, k), spmd.MatrixOf(f32.Slice(2048, 2048+8*k), k, 8)
		at = spmd.MatrixOf(bf.Slice(1024, 1024+8*k), k, 8)
		err := tc.call()
		os.Unsetenv("FAKECUBLAS_NONE")
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		var got []string
		for _, line := range newCalls(t, "cublasLtMatmul ", "cuLaunchKernel") {
			if e := value(line, "epilogue"); e != "" {
				got = append(got, e)
				continue
			}
			for _, name := range []string{"gemm_finish", "gemm_columns_total", "gemm_columns", "gemm_rows"} {
				if strings.Contains(line, name) {
					got = append(got, name)
					break
				}
			}
		}
		if text := strings.Join(got, " "); text != tc.want {
			t.Errorf("%s: %s ran, want %s", tc.name, text, tc.want)
		}
	}
	must(t, s.Synchronize())
}
