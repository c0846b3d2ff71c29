package spmdtest_test

import (
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

func TestRun(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		x, err := spmd.Alloc[int64](w, 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := x.CopyFrom([]int64{1, int64(w.Rank())}); err != nil {
			t.Fatal(err)
		}
		if err := spmd.AllReduce(w.Comm, x, x, spmd.Sum); err != nil {
			t.Fatal(err)
		}
		n := int64(w.Size())
		if x.At(0) != n || x.At(1) != n*(n-1)/2 {
			t.Fatalf("rank %d of %d: got %d and %d", w.Rank(), n, x.At(0), x.At(1))
		}
	})
}

// TestSkip is skipped, with the reason, as its ranks are.
func TestSkip(t *testing.T) {
	ok := t.Run("inner", func(t *testing.T) {
		spmdtest.Run(t, []int{2}, func(t *testing.T, w *spmd.World) { t.Skip("no device of this kind") })
	})
	if !ok {
		t.Error("a skipped test failed")
	}
}
