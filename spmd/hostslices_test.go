package spmd_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"lockstep/spmd"
	"lockstep/spmd/hostdata"
)

// hostMoves compares the slices of all ranks after a call with each rank's elements before it: 100
// r + i.
func hostMoves(t *testing.T, w *spmd.World) {
	t.Helper()
	c, ranks, me := w.Comm(), w.Size(), w.Rank()
	for _, n := range []int{0, 1, 1000} {
		part := func(r int) []time.Duration {
			v := make([]time.Duration, n)
			for i := range v {
				v[i] = time.Duration(10_000*r+i) * time.Hour
			}
			return v
		}
		var all []time.Duration
		for r := range ranks {
			all = append(all, part(r)...)
		}
		same := func(what string, got, want []time.Duration) {
			t.Helper()
			if !slices.Equal(got, want) {
				t.Errorf("%s of %d on rank %d: %v, want %v", what, n, me, got, want)
			}
		}
		x, whole := part(me), make([]time.Duration, n*ranks)
		must(t, hostdata.AllGatherSlice(c, whole, x))
		same("AllGatherSlice", whole, all)
		for root := range ranks {
			clear(whole)
			to, want := whole, all
			if me != root {
				to, want = nil, make([]time.Duration, n*ranks)
			}
			must(t, hostdata.GatherSlice(c, to, x, root))
			same("GatherSlice", whole, want)
			must(t, hostdata.ScatterSlice(c, x, to, root))
			same("ScatterSlice", x, part(me))
			y := part(me)
			must(t, hostdata.BroadcastSlice(c, y, root))
			same("BroadcastSlice", y, part(root))
		}
		clear(whole)
		mine := whole[me*n : (me+1)*n]
		copy(mine, x)
		must(t, hostdata.AllGatherSlice(c, whole, mine))
		same("AllGatherSlice in place", whole, all)
	}
}

// flags is a type of a program's own.
type flags uint8

// hostBits compares And, Or and Xor with Go's, of one and of many elements.
func hostBits(t *testing.T, w *spmd.World) {
	t.Helper()
	bits(t, w, func(r, i int) flags { return flags(r*37 + i) })
	bits(t, w, func(r, i int) int8 { return int8(r*91 - i) })
	bits(t, w, func(r, i int) int32 { return int32(r<<20 - i) })
	bits(t, w, func(r, i int) uint32 { return uint32(r)<<31 | uint32(i) })
	bits(t, w, func(r, i int) int { return r<<40 - i*12_345 })
	bits(t, w, func(r, i int) uint64 { return uint64(r+1)<<60 | uint64(i) })
}

func bits[T flags | int8 | int32 | uint32 | int | uint64](t *testing.T, w *spmd.World, of func(r, i int) T) {
	t.Helper()
	c, ranks, me := w.Comm(), w.Size(), w.Rank()
	for k, op := range []spmd.Op{hostdata.And, hostdata.Or, hostdata.Xor} {
		both := func(a, b T) T { return [...]T{a & b, a | b, a ^ b}[k] }
		for _, n := range []int{1, 3, 2000} {
			x, want := make([]T, n), make([]T, n)
			for i := range x {
				x[i], want[i] = of(me, i), of(0, i)
				for r := 1; r < ranks; r++ {
					want[i] = both(want[i], of(r, i))
				}
			}
			got := make([]T, n)
			must(t, hostdata.AllReduceSlice(c, got, x, op))
			if !slices.Equal(got, want) {
				t.Errorf("%v of %d %T: %v, want %v", op, n, x[0], got, want)
			}
			any, err := hostdata.AllReduceIf(c, me > 0, got, x, op) // of the ranks from 1 on
			must(t, err)
			for i := range want {
				if ranks > 1 {
					want[i] = of(1, i)
				}
				for r := 2; r < ranks; r++ {
					want[i] = both(want[i], of(r, i))
				}
			}
			if any != (ranks > 1) || !slices.Equal(got, want) {
				t.Errorf("%v of %d %T of ranks from 1 on: %v %v, want %v", op, n, x[0], any, got, want)
			}
		}
		one, err := hostdata.AllReduce(c, of(me, 5), op)
		must(t, err)
		want := of(0, 5)
		for r := 1; r < ranks; r++ {
			want = both(want, of(r, 5))
		}
		if one != want {
			t.Errorf("%v of %T: %v, want %v", op, one, one, want)
		}
	}
}

// hostLocations looks for ranks whose numbers are known.
func hostLocations(t *testing.T, w *spmd.World) {
	t.Helper()
	c, last, me := w.Comm(), w.Size()-1, w.Rank()
	check := func(what string, rank, want int, right bool, err error) {
		t.Helper()
		if err != nil || rank != want || !right {
			t.Errorf("%s: rank %d, the number is right: %v, %v; want rank %d", what, rank, right, err, want)
		}
	}
	d, r, err := hostdata.MaxLoc(c, time.Duration(me)*time.Second)
	check("MaxLoc", r, last, d == time.Duration(last)*time.Second, err)
	d, r, err = hostdata.MinLoc(c, -time.Duration(me)*time.Second)
	check("MinLoc", r, last, d == -time.Duration(last)*time.Second, err)
	f, r, err := hostdata.MaxLoc(c, float32(7))
	check("MaxLoc of equal numbers", r, 0, f == 7, err)
	x := float64(me)
	if me == last/2 {
		x = math.NaN()
	}
	x, r, err = hostdata.MaxLoc(c, x)
	check("MaxLoc with a NaN", r, last/2, x != x, err)
	h, r, err := hostdata.MinLoc(c, spmd.ToBF16(float32(5-me)))
	check("MinLoc of bfloat16", r, last, h == spmd.ToBF16(float32(5-last)), err)
	z, r, err := hostdata.MinLoc(c, math.Copysign(0, float64(last-me)-0.5))
	check("MinLoc of zeros", r, last, math.Signbit(z), err)
	u, r, err := hostdata.MaxLoc(c, uint64(math.MaxUint64)-uint64(me))
	check("MaxLoc of uint64", r, 0, u == math.MaxUint64, err)
}
