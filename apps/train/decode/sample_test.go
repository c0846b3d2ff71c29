package decode

import (
	"math"
	"slices"
	"testing"
)

func TestKeepTop(t *testing.T) {
	none := float32(math.Inf(-1))
	for k, want := range map[int][]float32{0: {1, 3, 2, 3}, 1: {none, 3, none, none}, 2: {none, 3, none, 3}, 3: {none, 3, 2, 3}, 4: {1, 3, 2, 3}, 9: {1, 3, 2, 3}} {
		got := []float32{1, 3, 2, 3}
		if keepTop(got, k); !slices.Equal(got, want) {
			t.Errorf("the %d largest: %v, want %v", k, got, want)
		}
	}
}

func TestDraw(t *testing.T) {
	logits := []float32{1, 3, float32(math.Inf(-1)), 2}
	if i := draw(logits, 0, 0.99); i != 1 {
		t.Errorf("temperature 0 draws %d, want 1", i)
	}
	// At temperature 2: weights e^0.5, e^1.5, 0, e^1.
	sum := math.Exp(0.5) + math.Exp(1.5) + math.Exp(1)
	for _, c := range []struct {
		u    float64
		want int
	}{{0, 0}, {math.Exp(0.5)/sum - 1e-9, 0}, {math.Exp(0.5)/sum + 1e-9, 1}, {1 - math.Exp(1)/sum + 1e-9, 3}, {math.Nextafter(1, 0), 3}} {
		if i := draw(logits, 2, c.u); i != c.want {
			t.Errorf("u %g draws %d, want %d", c.u, i, c.want)
		}
	}
}
