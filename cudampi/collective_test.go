package cudampi_test

import (
	"testing"

	"lockstep/cudampi"
	"lockstep/cudampi/commtest"
	"lockstep/internal/elem"
)

// TestReductions runs every reduction of every type by every operation, as single calls and in
// parts.
func TestReductions(t *testing.T) {
	commtest.TypesLeft(t, len(counts), "reductions by MPI")
	onRanks(t, counts, func(t *testing.T, c *cudampi.Comm) {
		for _, inParts := range []bool{false, true} {
			if inParts {
				cudampi.Lower(t)
			}
			for _, n := range commtest.Lengths {
				commtest.EveryReduction(t, c, n)
			}
		}
	})
}

// TestMoves runs every collective that only moves data for every type, as single calls and in
// parts.
func TestMoves(t *testing.T) {
	commtest.TypesLeft(t, len(counts), "collectives by MPI")
	onRanks(t, counts, func(t *testing.T, c *cudampi.Comm) {
		for _, inParts := range []bool{false, true} {
			if inParts {
				cudampi.Lower(t)
			}
			for _, n := range commtest.Lengths {
				commtest.EveryMove(t, c, n)
			}
		}
	})
}

// TestHalfConversions takes every 16-bit float through float32 and back, and rounds sums that
// neither type holds.
func TestHalfConversions(t *testing.T) {
	onRanks(t, []int{1, 2}, func(t *testing.T, c *cudampi.Comm) {
		const n = 1 << 16
		f, b := commtest.Alloc[elem.F16](n), commtest.Alloc[elem.BF16](n)
		for i := range n {
			f.Data()[i], b.Data()[i] = elem.F16(i), elem.BF16(i)
		}
		// The largest of equal numbers is that number, and so goes through the conversions alone.
		commtest.Must(t, c.AllReduce(f.Ptr(), f.Ptr(), n, elem.Float16, elem.Max))
		commtest.Must(t, c.AllReduce(b.Ptr(), b.Ptr(), n, elem.BFloat16, elem.Max))
		for i := range n {
			want, got := elem.F16(i).Float32(), f.Data()[i].Float32()
			if got != want && (got == got || want == want) {
				t.Fatalf("float16 %#04x comes back as %#04x", i, f.Data()[i])
			}
			want, got = elem.BF16(i).Float32(), b.Data()[i].Float32()
			if got != want && (got == got || want == want) {
				t.Fatalf("bfloat16 %#04x comes back as %#04x", i, b.Data()[i])
			}
		}
		if c.Size() == 1 {
			return
		}
		// Sums of any two: one that float32 holds exactly (checked in float64) has one right
		// rounding.
		for _, step := range []int{1, 257, 4099, 30011} {
			for i := range n {
				j := i
				if c.Rank() == 1 {
					j = (i*step + 12345) & (n - 1)
				}
				f.Data()[i], b.Data()[i] = elem.F16(j), elem.BF16(j)
			}
			commtest.Must(t, c.AllReduce(f.Ptr(), f.Ptr(), n, elem.Float16, elem.Sum))
			commtest.Must(t, c.AllReduce(b.Ptr(), b.Ptr(), n, elem.BFloat16, elem.Sum))
			for i := range n {
				j := (i*step + 12345) & (n - 1)
				x, y := elem.F16(i).Float32(), elem.F16(j).Float32()
				if s := float64(x) + float64(y); s == float64(float32(s)) && f.Data()[i] != elem.ToF16(float32(s)) {
					t.Fatalf("float16 %v + %v is %v, want %v", x, y, f.Data()[i].Float32(),
						elem.ToF16(float32(s)).Float32())
				}
				x, y = elem.BF16(i).Float32(), elem.BF16(j).Float32()
				if s := float64(x) + float64(y); s == float64(float32(s)) && b.Data()[i] != elem.ToBF16(float32(s)) {
					t.Fatalf("bfloat16 %v + %v is %v, want %v", x, y, b.Data()[i].Float32(),
						elem.ToBF16(float32(s)).Float32())
				}
			}
		}
	})
}
