package blas_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/cuda/nvrtc"
	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/blas"
	"lockstep/spmd/internal/kernels"
	"lockstep/spmd/spmdtest"
)

// doublesEnv is the folder of the test doubles, and of the logs of the ranks that use them.
const doublesEnv = "BLAS_TEST_DOUBLES"

// calls is the log of this rank's doubles.
var calls testkit.CallLog

// TestGPU is products on GPUs, with test doubles of the driver, of NCCL and of cuBLASLt. Kernels
// are compiled by the real compiler.
func TestGPU(t *testing.T) {
	if dir := os.Getenv(doublesEnv); dir != "" { // a rank
		calls.Open(filepath.Join(dir, fmt.Sprintf("log.%d", os.Getpid())))
	} else {
		dir = doubles(t)
		t.Setenv("SPMDTEST_DEVICE", "cuda")
		t.Setenv("FAKECUDA_DEVICES", "3")
		t.Setenv(doublesEnv, dir)
		t.Setenv("LD_LIBRARY_PATH", dir)
		spmdtest.Must(t, kernels.Fill(filepath.Join(dir, "cache"), 90))
		t.Setenv("LOCKSTEP_CACHE", filepath.Join(dir, "cache"))
		t.Run("faults", func(t *testing.T) { gpuFaults(t, dir) })
		t.Run("named work", gpuNamedWork)
	}
	for _, tc := range []struct {
		name  string
		ranks []int
		body  func(t *testing.T, w *spmd.World)
	}{
		{"products", []int{1}, gpuProducts},
		{"tuned products", []int{1, 2}, gpuTune},
		{"worlds", []int{1}, gpuWorlds},
		{"allocations", []int{1}, noAllocation},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spmdtest.RunUnwatched(t, tc.ranks, tc.body) // the watch calls the driver, too
		})
	}
}

// doubles builds the test doubles into a folder. It skips the test if there is a GPU to test on, or
// no compiler for kernels.
func doubles(t *testing.T) (dir string) {
	t.Helper()
	spmdtest.HostOnly(t, "test doubles are for machines without a GPU")
	if err := nvrtc.Load(); err != nil {
		t.Skip(err)
	}
	dir = t.TempDir()
	testkit.BuildCUDA(t, dir)
	testkit.BuildLibrary(t, dir, "libnccl.so.2", filepath.Join("..", "..", "nccl", "testdata", "fakenccl.c"))
	testkit.BuildLibrary(t, dir, "libcublasLt.so.13",
		filepath.Join("..", "..", "cuda", "cublas", "testdata", "fakecublas.c"), "-lm")
	return dir
}

// gpuFaults: a program whose GPU or libraries lack something ends with one line that says so.
func gpuFaults(t *testing.T, both string) {
	t.Parallel()
	none := t.TempDir()
	spmdtest.Must(t, os.Symlink(filepath.Join(both, "libcuda.so.1"), filepath.Join(none, "libcuda.so.1")))
	for _, name := range []string{"libcublasLt.so.13", "libcublasLt.so.12"} {
		spmdtest.Must(t, os.WriteFile(filepath.Join(none, name), []byte("no library"), 0o644))
	}
	for _, tc := range []struct {
		what string
		env  []string
		want []string // in the one line that says it
	}{
		{"8 bits", []string{"FAKECUDA_MAJOR=8"},
			[]string{"ERR", "blas/main_test.go:", "Gemm of float8_e4m3", "has no tensor cores for it",
				"compute capability 8.9"}},
		{"no cuBLAS", []string{"LD_LIBRARY_PATH=" + none},
			[]string{"ERR", "cuBLASLt", "libcublasLt.so.13", "libcublasLt.so.12"}},
		{"cuBLAS fails", []string{"FAKECUBLAS_FAIL=cublasLtMatmul=13"},
			[]string{"ERR", "blas/main_test.go:", "Gemm: cublasLtMatmul", "CUBLAS_STATUS_EXECUTION_FAILED"}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			t.Parallel()
			got := spmdtest.Program(t, 0, append([]string{appEnv + "=" + tc.what}, tc.env...))
			said, errors := 0, 0
			for line := range strings.Lines(got.Stderr) {
				if !slices.ContainsFunc(tc.want, func(part string) bool { return !strings.Contains(line, part) }) {
					said++
				}
				if strings.Contains(line, " ERR ") {
					errors++
				}
			}
			if got.Status != 1 || said != 1 || errors != 1 {
				t.Errorf("status %d, said %d times, in %d lines:\n%s", got.Status, said, errors, got.Stderr)
			}
		})
	}
}

// gpuNamedWork: the rows of what a GPU did say how much of it was in graphs, and have the time of
// that, too.
func gpuNamedWork(t *testing.T) {
	for what, r := range namedRows(t) {
		if want := uint64(namedReplays); what != "Gemm 8x8x8 bfloat16" && r.InGraph != want {
			t.Errorf("%s: %d in graphs, want %d", what, r.InGraph, want)
		}
	}
}

// gpuWorlds: cuBLASLt is opened at the first product of a world, and closed with it, before the
// memory goes.
func gpuWorlds(t *testing.T, w *spmd.World) {
	for range 2 {
		o, err := spmd.Open(spmdtest.Config())
		spmdtest.Must(t, err)
		s := spmdtest.Stream(t, o, "s")
		bf := spmdtest.Alloc[spmd.BF16](t, o, 256)
		gemm := func() error {
			return blas.Gemm(s, blas.MatrixOf(bf.Slice(0, 64), 8, 8), blas.MatrixOf(bf.Slice(64, 128), 8, 8),
				blas.MatrixOf(bf.Slice(128, 192), 8, 8), blas.Options{})
		}
		calls.New(t)
		spmdtest.Must(t, gemm())
		spmdtest.Must(t, gemm())
		spmdtest.Must(t, o.Close())
		var order []string
		for _, line := range calls.New(t, "cublasLtCreate", "cublasLtMatmul ", "cublasLtDestroy", "cuMemFree_v2") {
			if call, _, _ := strings.Cut(line, " "); call != "cuMemFree_v2" || len(order) == 0 ||
				order[len(order)-1] != call {
				order = append(order, call)
			}
		}
		if want := []string{"cublasLtCreate", "cublasLtMatmul", "cublasLtMatmul", "cublasLtDestroy",
			"cuMemFree_v2"}; !slices.Equal(order, want) {
			t.Errorf("%v, want %v", order, want)
		}
		if err := gemm(); err == nil {
			t.Error("a product in a closed world")
		}
		if got := calls.New(t, "cublasLt"); len(got) != 0 {
			t.Errorf("in a closed world: %q", got)
		}
	}
}

// Products on the doubles of the driver and of cuBLASLt, which computes, but into no graph.
// cuBLASLt is asked for its epilogues with the right operands. Kernels behind the product do the
// others, and do not run here.
func gpuProducts(t *testing.T, w *spmd.World) {
	s := spmdtest.Stream(t, w, "s")
	r := rand.New(rand.NewPCG(1, 2))
	for _, names := range epilogues {
		if strings.Contains(names, "RowSums") || strings.Contains(names, "BiasGrad") {
			continue // by kernels
		}
		for flags := range 4 {
			p := product[spmd.BF16, spmd.BF16, spmd.BF16]{m: 16, n: 24, k: 8, names: strings.Fields(names), alpha: 1,
				gap: 8 * (flags % 2), ec: inBF16, ea: inBF16, eb: inBF16, r: r, eager: true}
			p.o.TransA, p.o.TransB = flags&1 != 0, flags&2 != 0
			p.run(t, w, s)
			if flags < 2 {
				p := product[spmd.BF16, spmd.F8E4M3, spmd.F8E4M3]{m: 16, n: 32, k: 48, names: strings.Fields(names),
					alpha: 1, gap: 16 * flags, ec: inBF16, ea: inE4M3, eb: inE4M3, r: r, eager: true,
					scaleA: 0.25, scaleB: -2}
				p.o.TransB = true
				p.run(t, w, s)
			}
		}
	}
	calls.New(t)
	bf, f32 := spmdtest.Alloc[spmd.BF16](t, w, 4096), spmdtest.Alloc[float32](t, w, 4096)
	half, wide := blas.MatrixOf(bf.Slice(0, 64), 8, 8), blas.MatrixOf(f32.Slice(0, 64), 8, 8)
	var a, b, at blas.Matrix[spmd.BF16]
	var a32, b32 blas.Matrix[float32]
	bias, bias32, matrix, matrix32 := bf.Slice(192, 200).Arg(), f32.Slice(192, 200).Arg(),
		bf.Slice(256, 320).Arg(), f32.Slice(256, 320).Arg()
	odd := bf.Slice(193, 201).Arg()
	in := func(o blas.Options) func() error { return func() error { return blas.Gemm(s, half, a, b, o) } }
	in32 := func(o blas.Options) func() error { return func() error { return blas.Gemm(s, wide, a32, b32, o) } }
	for i, tc := range []struct {
		name string
		call func() error
		none string // epilogues that cuBLASLt has not
		want string // what runs, epilogues of cuBLASLt and kernels
	}{
		{"all in the product", in(blas.Options{Bias: bias, GELU: matrix}), "", "164"},
		{"nothing of GELU", in(blas.Options{Bias: bias, GELU: matrix}), "164", "1 gemm_finish"},
		{"DGELU and its sums", in(blas.Options{DGELU: matrix, BiasGrad: bias}), "",
			"192 gemm_columns gemm_columns_total"},
		{"nothing of DGELU", in(blas.Options{DGELU: matrix, BiasGrad: bias}), "192",
			"1 gemm_finish gemm_columns gemm_columns_total"},
		{"sums of rows", in(blas.Options{RowSums: bias}), "", "1 gemm_rows"},
		{"sums of the transpose's rows", func() error {
			return blas.Gemm(s, half, at, b, blas.Options{RowSums: bias, TransA: true})
		}, "", "1 gemm_columns gemm_columns_total"},
		{"a bias where cuBLASLt does not take it", in(blas.Options{Bias: odd}), "", "1 gemm_finish"},
		{"a bias of float32", in32(blas.Options{Bias: bias32, Residual: matrix32}), "", "4"},
		{"a GELU of float32, which is exact", in32(blas.Options{Bias: bias32, GELU: matrix32}), "", "1 gemm_finish"},
		{"its gradient", in32(blas.Options{DGELU: matrix32, BiasGrad: bias32}), "",
			"1 gemm_finish gemm_columns gemm_columns_total"},
		{"float32 of 16 bits", func() error { return blas.Gemm(s, wide, a, b, blas.Options{RowSums: bias32}) },
			"", "1 gemm_rows"},
	} {
		os.Setenv("FAKECUBLAS_NONE", tc.none)
		// The library is asked once for each epilogue and shape, so that each of these has its own.
		k := 8 * (i + 1)
		a, b = blas.MatrixOf(bf.Slice(1024, 1024+8*k), 8, k), blas.MatrixOf(bf.Slice(2048, 2048+8*k), k, 8)
		a32, b32 = blas.MatrixOf(f32.Slice(1024, 1024+8*k), 8, k), blas.MatrixOf(f32.Slice(2048, 2048+8*k), k, 8)
		at = blas.MatrixOf(bf.Slice(1024, 1024+8*k), k, 8)
		err := tc.call()
		os.Unsetenv("FAKECUBLAS_NONE")
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		var got []string
		for _, line := range calls.New(t, "cublasLtMatmul ", "cuLaunchKernel") {
			if e := testkit.LogValue(line, "epilogue"); e != "" {
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
	spmdtest.Must(t, s.Synchronize())
}

// Rank 0 times the products so far, all ranks take its choice, and a later run finds it in the
// folder. One rank is the first run here, two are the later one. By the doubles' clock the second
// algorithm is the fast one in the first run, and the slow one in the later.
func gpuTune(t *testing.T, w *spmd.World) {
	s := spmdtest.Stream(t, w, "s")
	first := w.Size() == 1
	os.Setenv("FAKECUBLAS_SLOW", map[bool]string{true: "90,0", false: "0,90"}[first])
	defer os.Unsetenv("FAKECUBLAS_SLOW")
	bf := spmdtest.Alloc[spmd.BF16](t, w, 4096)
	gemm := func(k int) func() error {
		a, b, c := blas.MatrixOf(bf.Slice(0, 8*k), 8, k), blas.MatrixOf(bf.Slice(1024, 1024+8*k), k, 8),
			blas.MatrixOf(bf.Slice(2048, 2048+64), 8, 8)
		o := blas.Options{Bias: bf.Slice(3072, 3080).Arg(), Residual: bf.Slice(3200, 3264).Arg()}
		return func() error { return blas.Gemm(s, c, a, b, o) }
	}
	// ran is the algorithm that a product takes, timed the number of plans that were made with
	// other algorithms to choose from.
	ran := func(k int) string {
		t.Helper()
		calls.New(t)
		spmdtest.Must(t, gemm(k)())
		lines := calls.New(t, "cublasLtMatmul ")
		if len(lines) != 1 {
			t.Fatalf("%q, want one product", lines)
		}
		return testkit.LogValue(lines[0], "algo")
	}
	timed := func() (n int) {
		for _, line := range calls.New(t, "cublasLtMatmulAlgoGetHeuristic") {
			if testkit.LogValue(line, "want") != "1" {
				n++
			}
		}
		return n
	}
	spmdtest.Must(t, blas.Tune(w)) // nothing yet
	if got := ran(16); got != "0" {
		t.Errorf("algorithm %s before any choice, want the library's first", got)
	}
	calls.New(t)
	spmdtest.Must(t, blas.Tune(w))
	if got, want := timed(), map[bool]int{true: 1}[first]; got != want {
		t.Errorf("%d shapes timed, want %d", got, want)
	}
	if got := ran(16); got != "1" {
		t.Errorf("algorithm %s, want 1, the choice of the first run", got)
	}
	spmdtest.Must(t, blas.Tune(w))
	if got := timed(); got != 0 {
		t.Errorf("%d shapes timed again", got)
	}
	// A new product: rank 0 alone times it. A capture counts as a use, and one is refused during
	// the other.
	k := 24 * w.Size()
	g, err := s.Capture(func() error {
		wantText(t, blas.Tune(w), "Tune", "being captured")
		return gemm(k)()
	})
	spmdtest.Must(t, err)
	spmdtest.Must(t, g.Close())
	calls.New(t)
	spmdtest.Must(t, blas.Tune(w))
	if got, want := timed(), map[bool]int{true: 1}[w.Rank() == 0]; got != want {
		t.Errorf("%d new shapes timed on rank %d, want %d", got, w.Rank(), want)
	}
	if got, want := ran(k), map[bool]string{true: "1", false: "0"}[first]; got != want {
		t.Errorf("algorithm %s, want %s, the fast one", got, want)
	}
	// Without memory the shape keeps its algorithm. A failure on rank 0 is one on all.
	spmdtest.Must(t, gemm(40)())
	if w.Rank() == 0 {
		testkit.Injected("cuMemAlloc_v2=2", func() { spmdtest.Must(t, blas.Tune(w)) })
	} else {
		spmdtest.Must(t, blas.Tune(w))
	}
	if got := ran(40); got != "0" {
		t.Errorf("algorithm %s, want the library's first", got)
	}
	if w.Rank() == 0 {
		testkit.Injected("cuEventElapsedTime_v2=700,cuEventElapsedTime=700",
			func() { wantText(t, blas.Tune(w), "Tune: rank 0", "cuEventElapsedTime") })
	} else {
		wantText(t, blas.Tune(w), "Tune: rank 0", "cuEventElapsedTime")
	}
}

// wantText checks that an error is there and says all of it.
func wantText(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("error %v does not say %q", err, p)
		}
	}
}
