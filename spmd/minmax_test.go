package spmd_test

import (
	"math"
	"testing"

	"lockstep/internal/testkit"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
)

// TestNaNWins: Min and Max give a NaN if any rank has one, and -0 is less than 0, in every type,
// length, call and way, whichever rank it is.
func TestNaNWins(t *testing.T) {
	testkit.More(t, 2*len(everyRanks)*(len(modes)*4-1), "types by modes and numbers of ranks of NaN in Min and Max")
	everyWay(t, func(t *testing.T, w *spmd.World) {
		for k, m := range modesOf(w) {
			// the same transport, whose own tests have all types
			if w.OnHost() && m.name != "blocking" && !testkit.AllCases() {
				continue
			}
			each(w.Size()+k,
				func() { minMax(t, w, m, plain[float32](), 1, 3, 1<<10+1) },
				func() { minMax(t, w, m, plain[float64](), 1, 1<<10+1) },
				func() { minMax(t, w, m, half(), 1, 1<<10+1) },
				func() { minMax(t, w, m, brain(), 1, 1<<10+1) },
			)
			if m.name == "blocking" && (testkit.AllCases() || w.Size() == 3) {
				minMax(t, w, m, plain[float32](), 300_000)
			}
		}
	})
}

// extremeInput is the input of rank r of size: a NaN on the odd one, its own zero, or its number.
func extremeInput(op spmd.Op, r, odd, i int) float64 {
	rare, common := math.Copysign(0, -1), 0.0 // of the signs of zero the one that wins, and the other
	if op == spmd.Max {
		rare, common = common, rare
	}
	switch {
	case i%3 == 0 && r == odd:
		return math.NaN()
	case i%3 == 1 && r == odd:
		return rare
	case i%3 == 1:
		return common
	}
	return float64(1 + (r+i)%7)
}

func minMax[T spmd.Elem](t *testing.T, w *spmd.World, m mode, num number[T], lengths ...int) {
	rank, size := w.Rank(), w.Size()
	for _, op := range []spmd.Op{spmd.Min, spmd.Max} {
		for odd := range size {
			// want is element i of op over the first ranks.
			want := func(ranks, i int) float64 {
				x := extremeInput(op, 0, odd, i)
				for r := 1; r < ranks; r++ {
					if y := extremeInput(op, r, odd, i); op == spmd.Min {
						x = min(x, y)
					} else {
						x = max(x, y)
					}
				}
				return x
			}
			check := func(what string, got []T, want func(i int) float64) {
				t.Helper()
				for i, x := range got {
					a, b := num.to(x), want(i)
					if math.IsNaN(a) && math.IsNaN(b) || a == b && math.Signbit(a) == math.Signbit(b) {
						continue
					}
					if w.Collectives() == "nccl" && (a == b || math.IsNaN(b)) {
						continue // as the documentation of Op says
					}
					t.Fatalf("%s, %s %v of %d %T, rank %d of %d: [%d] is %v, want %v (rank %d is the odd one)",
						m.name, what, op, len(got), x, rank, size, i, a, b, odd)
				}
			}
			for _, n := range lengths {
				in := make([]T, n)
				for i := range in {
					in[i] = num.of(extremeInput(op, rank, odd, i))
				}
				src, dst := alloc[T](t, w, n), alloc[T](t, w, n)
				out := make([]T, n)
				run := func(what string, call func(c spmd.Comm) error, want func(i int) float64) {
					t.Helper()
					must(t, src.CopyFrom(in))
					m.run(t, w, call)
					must(t, dst.CopyTo(out))
					check(what, out, want)
				}
				all := func(i int) float64 { return want(size, i) }
				run("AllReduce", func(c spmd.Comm) error { return spmd.AllReduce(c, dst, src, op) }, all)
				root, reduced := (odd+1)%size, all
				if rank != root { // which leaves what was there
					reduced = func(i int) float64 { return num.to(out[i]) }
				}
				run("Reduce", func(c spmd.Comm) error { return spmd.Reduce(c, dst, src, op, root) }, reduced)
				run("Scan", func(c spmd.Comm) error { return spmd.Scan(c, dst, src, op) },
					func(i int) float64 { return want(rank+1, i) })
				if rank > 0 {
					all = func(i int) float64 { return want(rank, i) }
				} else {
					all = func(i int) float64 { return extremeInput(op, 0, odd, i) }
				}
				must(t, dst.CopyFrom(in))
				run("ExScan", func(c spmd.Comm) error { return spmd.ExScan(c, dst, src, op) }, all)
				each := n / size
				run("ReduceScatter", func(c spmd.Comm) error {
					return spmd.ReduceScatter(c, dst.Slice(0, each), src.Slice(0, each*size), op)
				}, func(i int) float64 {
					if i >= each {
						return num.to(out[i])
					}
					return want(size, rank*each+i)
				})
				must(t, src.Free())
				must(t, dst.Free())
			}
			if m.name != "blocking" {
				continue
			}
			for i := range 3 {
				x, err := hostdata.AllReduce(w.Comm(), num.of(extremeInput(op, rank, odd, i)), op)
				must(t, err)
				check("hostdata.AllReduce", []T{x}, func(int) float64 { return want(size, i) })
			}
		}
	}
}
