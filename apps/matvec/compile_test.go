package main

import (
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestKernelsCompile(t *testing.T) { spmdtest.CompileKernels(t) }

// Each launch is compared with the host. The kernels have the sizes in use, and others that give
// small shapes all sorts of tiles, segments and rests.
func TestCompareKernels(t *testing.T) {
	spmdtest.CompareKernels(t)
	small := tuned
	small.rowThreads, small.rowTile, small.rowUnroll, small.rowSegment = 64, 3, 3, 100
	small.colThreads, small.colWide, small.colUnroll, small.colStage, small.colUnits = 128, 32, 3, 29, 20
	wide := tuned
	wide.rowTile, wide.rowUnroll, wide.colWide = 8, 1, 256
	for name, tc := range map[string]struct {
		tuning
		shapes [][2]int
	}{
		"tuned": {tuned, [][2]int{{1, 1}, {9, 1}, {6, 17000}, {3, 66000}, {150, 70}, {530, 33}}},
		"small": {small, [][2]int{{1, 1}, {1, 7}, {7, 1}, {8, 8}, {5, 411}, {4, 1613}, {129, 100}, {513, 61},
			{260, 513}}},
		"wide": {wide, [][2]int{{2, 3}, {19, 1500}, {2100, 17}}},
	} {
		if name != "small" && !testkit.AllCases() {
			testkit.More(t, 1, "sizes of a product's kernels that are emulated")
			continue
		}
		t.Run(name, func(t *testing.T) {
			floats, halves := newKernels[float32](tc.tuning, "f32"), newKernels[spmd.BF16](tc.tuning, "bf16")
			spmdtest.RunInProcess(t, []int{1}, func(t *testing.T, w *spmd.World) {
				for _, shape := range tc.shapes {
					for _, byColumns := range []bool{false, true} {
						compare[float32](t, w, floats, shape[0], shape[1], byColumns)
						compare[spmd.BF16](t, w, halves, shape[0], shape[1], byColumns)
					}
				}
			})
		})
	}
}

func compare[T number](t *testing.T, w *spmd.World, k *kernels, rows, cols int, byColumns bool) {
	t.Helper()
	p, err := newProduct[T](w, whole(rows, cols), byColumns)
	spmdtest.Must(t, err)
	defer drop(t, p)
	want := ragged(t, p, rows, cols, byColumns)
	o, err := newOwn(w, k, p.m)
	spmdtest.Must(t, err)
	spmdtest.Must(t, o.multiply(p.s, p.y, p.m, p.x, 0, rows))
	spmdtest.Must(t, p.s.Synchronize())
	got := make([]float32, rows)
	spmdtest.Must(t, p.y.CopyTo(got))
	for i, v := range got {
		if float64(v) != want[i] {
			t.Fatalf("%d x %d of %T, by columns %v: element %d is %v, want %v",
				rows, cols, *new(T), byColumns, i, v, want[i])
		}
	}
}
