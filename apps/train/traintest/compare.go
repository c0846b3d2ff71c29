package traintest

import (
	"math"
	"testing"

	"lockstep/spmd"
)

// Flip changes one bit of one element.
func Flip(b spmd.Buffer[float32], i, bit int) {
	b.Set(i, math.Float32frombits(math.Float32bits(b.At(i))^1<<bit))
}

// Near fails unless |got - want| <= rel·|want| + abs everywhere.
func Near(t *testing.T, name string, got []float32, want []float64, rel, abs float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, expected %d", name, len(got), len(want))
	}
	for i, w := range want {
		if g := float64(got[i]); !(math.Abs(g-w) <= rel*math.Abs(w)+abs) {
			t.Fatalf("%s[%d] = %v, want %v", name, i, g, w)
		}
	}
}

// Must returns a number that comes without an error.
func Must(n int, err error) int {
	if err != nil {
		panic(err)
	}
	return n
}

// bounds are how far loss and gradients may be from the reference.
type bounds struct{ Loss, Grad float64 }

// BoundsOf returns the bounds for activations, bfloat16 with half, and the device. A GPU adds in an
// order of its own, and its exponentials differ from the host's.
func BoundsOf(w *spmd.World, half bool) bounds {
	switch {
	case half:
		return bounds{0.01, 2e-2}
	case w.OnHost():
		return bounds{1e-5, 1e-5}
	}
	return bounds{1e-4, 1e-4}
}

// CloseTo reports whether a and b differ by at most bound.
func CloseTo(a, b, bound float64) bool { return math.Abs(a-b) <= bound } // false for NaN
