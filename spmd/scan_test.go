package spmd_test

import (
	"strings"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
)

// Scans of 1 to r+1 in closed form: triangular numbers and factorials, with five ranks too.
func TestScan(t *testing.T) {
	everyKind(t, []int{1, 2, 3, 5}, func(t *testing.T, w *spmd.World) {
		const n = 5000 // more than goes through shared memory
		r := w.Rank()
		x, y := alloc[int64](t, w, n), alloc[int64](t, w, n)
		want := func(what string, v int64) {
			t.Helper()
			h := make([]int64, n)
			must(t, y.CopyTo(h))
			for i, got := range h {
				if got != v {
					t.Fatalf("%s, rank %d of %d: [%d] = %d, want %d", what, r, w.Size(), i, got, v)
				}
			}
		}
		must(t, x.SetAll(int64(r+1)))
		must(t, y.SetAll(-1))
		must(t, spmd.Scan(w.Comm(), y, x, spmd.Sum))
		want("sum", int64((r+1)*(r+2)/2))
		must(t, spmd.Scan(w.Comm(), y, x, spmd.Prod))
		want("product", []int64{1, 2, 6, 24, 120}[r])
		must(t, y.SetAll(-1))
		must(t, spmd.ExScan(w.Comm(), y, x, spmd.Sum))
		want("sum of those before", []int64{-1, 1, 3, 6, 10}[r])
		must(t, spmd.ExScan(w.Comm(), x, x, spmd.Max))
		must(t, spmd.Scan(w.Comm(), y, x, spmd.Min))
		want("least of the maxima", 1)

		testkit.Refused(t, spmd.Scan(w.Comm(), y, x, spmd.Avg), "scan_test.go", "Scan: avg")
		if err := spmd.ExScan(w.Comm(), y, x.Slice(1, n), spmd.Sum); err == nil ||
			!strings.Contains(err.Error(), "dst has 5000 elements, src 4999") {
			t.Errorf("unequal lengths: %v", err)
		}
	})
}
