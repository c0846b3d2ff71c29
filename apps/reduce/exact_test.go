package main

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// bigSum returns the sum of finite numbers by math/big, rounded once to float64.
func bigSum(x []float32) float64 {
	total := new(big.Float).SetPrec(2000) // more than all of float32 spans
	for _, v := range x {
		total.Add(total, new(big.Float).SetFloat64(float64(v)))
	}
	v, _ := total.Float64()
	return v
}

func exactSum(x []float32) exact {
	var e exact
	e.add(x)
	return e
}

func TestExactAgainstBig(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	anyFloat := func() float32 {
		for {
			if v := math.Float32frombits(rng.Uint32()); v-v == 0 { // finite
				return v
			}
		}
	}
	tiny := func() float32 { return math.Float32frombits(rng.Uint32()&0x80000000 | rng.Uint32N(1<<23)) }
	near := func() float32 { return float32(rng.NormFloat64()) }
	for name, draw := range map[string]func() float32{"any": anyFloat, "subnormal": tiny, "normal": near} {
		for _, n := range []int{0, 1, 2, 3, 100, 5000} {
			x := make([]float32, n)
			for i := range x {
				x[i] = draw()
			}
			e := exactSum(x)
			if got, want := e.value(), bigSum(x); math.Float64bits(got) != math.Float64bits(want) {
				t.Errorf("%d of %s: %v, want %v", n, name, got, want)
			}
			rng.Shuffle(n, func(i, j int) { x[i], x[j] = x[j], x[i] })
			if exactSum(x) != e {
				t.Errorf("%d of %s: another order gives other words", n, name)
			}
			for i := range n {
				x = append(x, -x[i])
			}
			if zero := exactSum(x); zero.value() != 0 {
				t.Errorf("%d of %s and their negatives: %v", n, name, zero.value())
			}
		}
	}
}

func TestExactSpecials(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, tc := range []struct {
		x    []float32
		want float64
	}{
		{[]float32{math.MaxFloat32, math.MaxFloat32, math.SmallestNonzeroFloat32, -math.MaxFloat32}, math.MaxFloat32},
		{[]float32{math.SmallestNonzeroFloat32}, math.SmallestNonzeroFloat32},
		{[]float32{1, 1 << 24, 1 << 25}, 1 + 1<<24 + 1<<25},
		{[]float32{1, inf, -math.MaxFloat32}, math.Inf(1)},
		{[]float32{1, -inf}, math.Inf(-1)},
		{[]float32{inf, -inf}, math.NaN()},
		{[]float32{1, nan, inf}, math.NaN()},
	} {
		e := exactSum(tc.x)
		if got := e.value(); got != tc.want && !(math.IsNaN(got) && math.IsNaN(tc.want)) {
			t.Errorf("%v: %v, want %v", tc.x, got, tc.want)
		}
	}
}

// A carry moves parts of a word without changing the value.
func TestCarry(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	worth := func(e exact) *big.Int {
		total := new(big.Int)
		for i := range limbs {
			total.Add(total, new(big.Int).Lsh(big.NewInt(e[i]), uint(32*i)))
		}
		return total
	}
	for range 1000 {
		var e exact
		for i := range limbs {
			e[i] = rng.Int64() >> rng.IntN(63) * int64(1-2*rng.IntN(2)) / 2
		}
		carried := e
		carried.carry()
		if worth(carried).Cmp(worth(e)) != 0 {
			t.Fatalf("%v becomes %v", e, carried)
		}
		for i := range limbs - 1 {
			if uint64(carried[i]) >= 1<<32 {
				t.Fatalf("%v becomes %v: word %d is not carried", e, carried, i)
			}
		}
	}
}

// The sum has the same bits on any number of ranks, in any parts.
func TestExactEverywhere(t *testing.T) {
	spmdtest.Run(t, []int{1, 2, 3, 4}, func(t *testing.T, w *spmd.World) {
		for _, n := range []int{4, 1001, 200_003} {
			x := make([]float32, n)
			for i := range x {
				x[i] = widen(spmd.UniformBits(w.Seed(), uint64(i)))
			}
			want := bigSum(x)
			for _, parts := range []string{"equal", "unequal"} {
				for _, graph := range []bool{false, true} {
					r, err := run(w, config{Elements: n, Parts: parts, Iters: 3, Warmup: 1, Graph: graph, Exact: true,
						Values: "wide"})
					spmdtest.Must(t, err)
					if math.Float64bits(r.Sum) != math.Float64bits(want) || !r.OK {
						t.Errorf("%d elements in %s parts on %d ranks, graph %v: %v, want %v",
							n, parts, w.Size(), graph, r.Sum, want)
					}
				}
			}
		}
	})
}

// The numbers have both signs, and magnitudes so far apart that rounding would show.
func TestWiden(t *testing.T) {
	lo, hi, negative := math.Inf(1), 0.0, 0
	for k := range uint32(1 << 16) {
		v := float64(widen(k * 251))
		lo, hi = min(lo, math.Abs(v)), max(hi, math.Abs(v))
		if v < 0 {
			negative++
		}
	}
	if lo < 0x1p-48 || lo > 0x1p-46 || hi >= 0x1p49 || hi < 0x1p47 || negative < 1<<14 || negative > 3<<14 {
		t.Errorf("from %g to %g, %d of 65536 negative", lo, hi, negative)
	}
}

// Turns of copies give the same sum.
func TestCold(t *testing.T) {
	spmdtest.Run(t, []int{1, 3}, func(t *testing.T, w *spmd.World) {
		for _, graph := range []bool{false, true} {
			coldBytes = 4 << 20
			r, err := run(w, config{Elements: 1 << 18, Parts: "equal", Iters: 20, Warmup: 1, Graph: graph, Cold: true})
			if err != nil || !r.OK || !r.Cold {
				t.Errorf("graph %v: %+v, %v", graph, r, err)
			}
		}
	})
}
