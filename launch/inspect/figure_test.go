package inspect

import (
	"image/color"
	"math"
	"strings"
	"testing"
)

// luminance returns a colour's luminance, from 0 of black to 1 of white. Source: WCAG 2.2,
// relative luminance.
func luminance(c color.Color) float64 {
	r, g, b, _ := c.RGBA()
	sum := 0.0
	for i, v := range []uint32{r, g, b} {
		x := float64(v) / 0xffff
		if x <= 0.04045 {
			x /= 12.92
		} else {
			x = math.Pow((x+0.055)/1.055, 2.4)
		}
		sum += []float64{0.2126, 0.7152, 0.0722}[i] * x
	}
	return sum
}

// Every curve has the contrast that WCAG asks of graphics, and the first ones differ.
func TestHues(t *testing.T) {
	seen := map[color.Color]bool{}
	for i := range hues {
		if contrast := 1.05 / (luminance(hue(i)) + 0.05); contrast < 3 {
			t.Errorf("colour %d has a contrast of %.2f", i, contrast)
		}
		seen[hue(i)] = true
	}
	if len(seen) != len(hues) {
		t.Errorf("%d colours, of which %d differ", len(hues), len(seen))
	}
	if hue(len(hues)) != hue(0) {
		t.Error("there is no colour for one curve more")
	}
}

// Ticks have the names that a person would write.
func TestPlainTicks(t *testing.T) {
	for _, tc := range []struct {
		hi   float64
		want string
	}{{26250, "0 25000"}, {0.00315, "0 0.001 0.002 0.003"}, {8.4, "0 4 8"}} {
		var names []string
		for _, tick := range plainTicks(0, tc.hi) {
			if !tick.IsMinor() {
				names = append(names, tick.Label)
			}
		}
		if got := strings.Join(names, " "); got != tc.want {
			t.Errorf("up to %v: %s, want %s", tc.hi, got, tc.want)
		}
	}
}

// A logarithmic axis has names enough, and small ticks between them.
func TestLogTicks(t *testing.T) {
	for _, tc := range []struct {
		lo, hi float64
		want   string
		small  int
	}{
		{1, 1e4, "1 10 100 1000 10000", 32},
		{0.9, 220, "1 2 5 10 20 50 100 200", 13},
		{2.5, 32, "3 4 5 6 7 8 9 10 20 30", 0},
		{3e-7, 2, "1e-06 1e-05 0.0001 0.001 0.01 0.1 1", 7 + 6*8 + 1},
		{1e-20, 1, "1e-18 1e-15 1e-12 1e-09 1e-06 0.001 1", 14},
		{52, 58, "52 54 56 58", 3},
	} {
		var names []string
		small := 0
		for _, tick := range LogTicks(tc.lo, tc.hi) {
			if tick.IsMinor() {
				small++
			} else {
				names = append(names, tick.Label)
			}
		}
		if got := strings.Join(names, " "); got != tc.want || small != tc.small {
			t.Errorf("%v to %v: %s and %d small ones, want %s and %d", tc.lo, tc.hi, got, small, tc.want, tc.small)
		}
	}
}
