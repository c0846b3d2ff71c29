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
		if strings.Contains(names, "RowSums") || strings.Contains(names, "BiasGrad") {
			continue // by kernels
		}
		for flags := range 4 {
			p := product[spmd.BF16, spmd.BF16]{m: 16, n: 24, k: 8, names: names, alpha: 1, gap: 8 * (flags % 2), ec: inBF16, et: inBF16, r: r, eager: true}
			p.o.TransA, p.o.TransB = flags&1 != 0, flags&2 != 0
			p.run(t, w, s)
			if flags < 2 {
				p := product[spmd.BF16, spmd.F8E4M3]{m: 16, n: 32, k: 48, names: names, alpha: 1, gap: 16 * flags, ec: inBF16, et: inE4M3, r: r, eager: true,
					scaleA: 0.25, scaleB: -2}
				p.o.TransB = true
				p.run(t, w, s)
			}
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
		{"DGELU and its sums", in(spmd.GemmOpt{DGELU: matrix, BiasGrad: bias}), "", "192 gemm_columns gemm_columns_total"},
		{"nothing of DGELU", in(spmd.GemmOpt{DGELU: matrix, BiasGrad: bias}), "192", "1 gemm_finish gemm_columns gemm_columns_total"},
		{"sums of rows", in(spmd.GemmOpt{RowSums: bias}), "", "1 gemm_rows"},
		{"sums of the transpose's rows", func() error { return spmd.Gemm(s, half, at, b, spmd.GemmOpt{RowSums: bias, TransA: true}) }, "", "1 gemm_columns gemm_columns_total"},
		{"a bias where cuBLASLt does not take it", in(spmd.GemmOpt{Bias: odd}), "", "1 gemm_finish"},
		{"a bias of float32", in32(spmd.GemmOpt{Bias: bias32, Residual: matrix32}), "", "4"},
		{"a GELU of float32, which is exact", in32(spmd.GemmOpt{Bias: bias32, GELU: matrix32}), "", "1 gemm_finish"},
		{"its gradient", in32(spmd.GemmOpt{DGELU: matrix32, BiasGrad: bias32}), "", "1 gemm_finish gemm_columns gemm_columns_total"},
		{"float32 of 16 bits", func() error { return spmd.Gemm(s, wide, a, b, spmd.GemmOpt{RowSums: bias32}) }, "", "1 gemm_rows"},
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

// Rank 0 times what has been met, all ranks take its choice, and a later run finds it in the folder: that of one rank is
// the first here, that of two the later. By the doubles' clock the second algorithm is the fast one in the first run,
// and the slow one in the later.
func gpuTune(t *testing.T, w *spmd.World) {
	s := stream(t, w, "s")
	first := w.Size() == 1
	os.Setenv("FAKECUBLAS_SLOW", map[bool]string{true: "90,0", false: "0,90"}[first])
	defer os.Unsetenv("FAKECUBLAS_SLOW")
	bf := alloc[spmd.BF16](t, w, 4096)
	gemm := func(k int) func() error {
		a, b, c := spmd.MatrixOf(bf.Slice(0, 8*k), 8, k), spmd.MatrixOf(bf.Slice(1024, 1024+8*k), k, 8), spmd.MatrixOf(bf.Slice(2048, 2048+64), 8, 8)
		o := spmd.GemmOpt{Bias: bf.Slice(3072, 3080).Arg(), Residual: bf.Slice(3200, 3264).Arg()}
		return func() error { return spmd.Gemm(s, c, a, b, o) }
	}
	// ran is the algorithm that a product takes, timed how many plans have been made with other algorithms to choose from.
	ran := func(k int) string {
		t.Helper()
		newCalls(t)
		must(t, gemm(k)())
		lines := newCalls(t, "cublasLtMatmul ")
		if len(lines) != 1 {
			t.Fatalf("%q, want one product", lines)
		}
		return value(lines[0], "algo")
	}
	timed := func() (n int) {
		for _, line := range newCalls(t, "cublasLtMatmulAlgoGetHeuristic") {
			if value(line, "want") != "1" {
				n++
			}
		}
		return n
	}
	must(t, w.TuneGemm()) // nothing yet
	if got := ran(16); got != "0" {
		t.Errorf("algorithm %s before any choice, want the library's first", got)
	}
	newCalls(t)
	must(t, w.TuneGemm())
	if got, want := timed(), map[bool]int{true: 1}[first]; got != want {
		t.Errorf("%d shapes timed, want %d", got, want)
	}
	if got := ran(16); got != "1" {
		t.Errorf("algorithm %s, want 1, the choice of the first run", got)
	}
	must(t, w.TuneGemm())
	if got := timed(); got != 0 {
		t.Errorf("%d shapes timed again", got)
	}
	// What no run has met yet: rank 0 alone times it. A capture counts as a use, and one is refused during the other.
	k := 24 * w.Size()
	g, err := s.Capture(func() error {
		wantText(t, w.TuneGemm(), "TuneGemm", "being captured")
		return gemm(k)()
	})
	must(t, err)
	must(t, g.Close())
	newCalls(t)
	must(t, w.TuneGemm())
	if got, want := timed(), map[bool]int{true: 1}[w.Rank() == 0]; got != want {
		t.Errorf("%d new shapes timed on rank %d, want %d", got, w.Rank(), want)
	}
	if got, want := ran(k), map[bool]string{true: "1", false: "0"}[first]; got != want {
		t.Errorf("algorithm %s, want %s, the fast one", got, want)
	}
	// Without memory the shape keeps what it has; what fails on rank 0 fails on all.
	must(t, gemm(40)())
	if w.Rank() == 0 {
		injected("cuMemAlloc_v2=2", func() { must(t, w.TuneGemm()) })
	} else {
		must(t, w.TuneGemm())
	}
	if got := ran(40); got != "0" {
		t.Errorf("algorithm %s, want the library's first", got)
	}
	if w.Rank() == 0 {
		injected("cuEventElapsedTime_v2=700,cuEventElapsedTime=700", func() { wantText(t, w.TuneGemm(), "TuneGemm: rank 0", "cuEventElapsedTime") })
	} else {
		wantText(t, w.TuneGemm(), "TuneGemm: rank 0", "cuEventElapsedTime")
	}
}
