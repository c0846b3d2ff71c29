package blas_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/blas"
	"lockstep/spmd/spmdtest"
)

// Products of 8-bit floats with all their epilogues, with scales and without, against float64:
// eagerly and in a graph, which reads the scales when it runs.
func TestGemmEight(t *testing.T) {
	testkit.More(t, 2*6*10*3, "products of 8-bit floats with an epilogue")
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		if !blas.SupportsF8(w) {
			t.Skip("no tensor cores for it")
		}
		s := spmdtest.Stream(t, w, "s")
		testEight(t, w, s, inE4M3)
		testEight(t, w, s, inE5M2)
		// One graph, other scales.
		a, b, c, scale := spmdtest.Alloc[spmd.F8E4M3](t, w, 256), spmdtest.Alloc[spmd.F8E4M3](t, w, 256),
			spmdtest.Alloc[spmd.BF16](t, w, 256), spmdtest.Alloc[float32](t, w, 1)
		spmdtest.Must(t, a.SetAll(spmd.ToF8E4M3(0.5)))
		spmdtest.Must(t, b.SetAll(spmd.ToF8E4M3(-2)))
		gemm := func() error {
			return blas.Gemm(s, blas.MatrixOf(c, 16, 16), blas.MatrixOf(a, 16, 16),
				blas.MatrixOf(b, 16, 16), blas.Options{TransB: true, ScaleB: scale.Arg()})
		}
		spmdtest.Must(t, scale.SetAll(1))
		spmdtest.Must(t, gemm()) // so that the library has what it needs
		g, err := s.Capture(gemm)
		spmdtest.Must(t, err)
		for _, x := range []float32{1, 4, 0.125} {
			spmdtest.Must(t, scale.SetAll(x))
			spmdtest.Must(t, g.Launch(s))
			spmdtest.Must(t, s.Synchronize())
			for i, v := range take(t, c) {
				if v.Float32() != -16*x {
					t.Fatalf("scale %v: element %d is %v, want %v", x, i, v.Float32(), -16*x)
				}
			}
		}
		spmdtest.Must(t, g.Close())
	})
}

func testEight[A blas.Elem](t *testing.T, w *spmd.World, s *spmd.Stream, ea elemOf[A]) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	every := fraction()
	for i, size := range [][3]int{{16, 32, 48}, {5, 16, 64}, {64, 128, 32}, {33, 48, 160}, {0, 16, 16},
		{130, 80, 192}} {
		for j, names := range epilogues {
			if strings.Contains(names, "RowSums") {
				continue
			}
			for flags := range 8 {
				if (i+j+flags)%every != 0 {
					continue
				}
				p := product[spmd.BF16, A, spmd.F8E4M3]{m: size[0], n: size[1], k: size[2],
					names: strings.Fields(names), alpha: 1, gap: flags & 1 * 16, ec: inBF16, ea: ea, eb: inE4M3, r: r}
				p.o.TransB, p.o.FastAccum = true, flags&2 != 0
				if flags&4 != 0 {
					p.scaleA, p.scaleB = 1.0/32, 0.75
				}
				p.run(t, w, s)
			}
		}
	}
}

func TestGemmEightRefused(t *testing.T) {
	spmdtest.Run(t, []int{1}, func(t *testing.T, w *spmd.World) {
		if !blas.SupportsF8(w) {
			t.Skip("no tensor cores for it")
		}
		s := spmdtest.Stream(t, w, "s")
		mem, bf, f32 := spmdtest.Alloc[spmd.F8E4M3](t, w, 4096), spmdtest.Alloc[spmd.BF16](t, w, 1024),
			spmdtest.Alloc[float32](t, w, 1024)
		a, b, c := blas.MatrixOf(mem.Slice(0, 256), 16, 16), blas.MatrixOf(mem.Slice(256, 512), 16, 16),
			blas.MatrixOf(bf.Slice(0, 256), 16, 16)
		in := func(o blas.Options) error { return blas.Gemm(s, c, a, b, o) }
		wide, tall := blas.MatrixOf(bf.Slice(0, 16*24), 16, 24), blas.MatrixOf(mem.Slice(256, 256+24*16), 24, 16)
		half := blas.MatrixOf(bf.Slice(512, 768), 16, 16)
		view := func(m blas.Matrix[spmd.F8E4M3]) blas.Matrix[spmd.F8E5M2] {
			return blas.MatrixOf(spmd.View[spmd.F8E5M2](m.Buffer), m.Rows, m.Cols)
		}
		for want, err := range map[string]error{
			"TransA is false and TransB false: it takes A as it is and B transposed": in(blas.Options{}),
			"TransA is true and TransB true": in(blas.Options{TransA: true,
				TransB: true}),
			"has no RowSums": in(blas.Options{TransB: true,
				RowSums: bf.Slice(512, 528).Arg()}),
			"C is float32, A and B are float8_e4m3": blas.Gemm(s,
				blas.MatrixOf(f32.Slice(0, 256), 16, 16), a, b, blas.Options{TransB: true}),
			"A is float8_e5m2, B is float8_e5m2": blas.Gemm(s, c, view(a), view(b),
				blas.Options{TransB: true}),
			"A is float8_e4m3, B is float8_e5m2": blas.Gemm(s, c, a, view(b),
				blas.Options{TransB: true}),
			"A is bfloat16, B is float8_e4m3": blas.Gemm(s, c, half, b,
				blas.Options{TransB: true}),
			"C is float8_e4m3, A and B are float8_e4m3": blas.Gemm(s,
				blas.MatrixOf(mem.Slice(1024, 1280), 16, 16), a, b, blas.Options{TransB: true}),
			"C is 16x24 over 16": blas.Gemm(s, wide, a, tall,
				blas.Options{TransB: true}),
			"multiples of 16": blas.Gemm(s, c,
				blas.MatrixOf(mem.Slice(8, 264), 16, 16), blas.MatrixOf(mem.Slice(512, 768), 16, 16),
				blas.Options{TransB: true}),
			"ScaleA is a buffer of 2 float32": in(blas.Options{TransB: true,
				ScaleA: f32.Slice(0, 2).Arg()}),
			"ScaleB is a buffer of 1 bfloat16": in(blas.Options{TransB: true,
				ScaleB: bf.Slice(512, 513).Arg()}),
			"ScaleB is a buffer of 1 float32, with A and B of bfloa": blas.Gemm(s, c, half,
				blas.MatrixOf(bf.Slice(768, 1024), 16, 16), blas.Options{ScaleB: f32.Slice(0, 1).Arg()}),
			"C, which is written, overlaps Residual": in(blas.Options{TransB: true,
				Residual: bf.Slice(128, 384).Arg()}),
		} {
			if !strings.Contains(fmt.Sprint(err), want) || !strings.Contains(fmt.Sprint(err), "blas/eight_test.go:") {
				t.Errorf("error %v, want %q in it", err, want)
			}
		}
	})
}
