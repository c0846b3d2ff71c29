package readable

import (
	"math"
	"strconv"
	"testing"
)

// The text is the number, to half of its third digit.
func TestThreeDigits(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0", 1: "1.00", -1.2345: "-1.23", 9.994: "9.99", 9.996: "10.0", 99.96: "100", 999.6: "1000",
		0.00012345: "0.000123", 0.000099996: "0.000100", 0.00005: "5.00e-05",
		475233.6: "475234", 1234567890: "1.23e+09", math.Inf(-1): "-Inf",
	} {
		if got := ThreeDigits(x); got != want {
			t.Errorf("%v: %q, want %q", x, got, want)
		}
	}
	if got := ThreeDigits(math.NaN()); got != "NaN" {
		t.Errorf("%q", got)
	}
	for x := 1.0001e-20; x < 1e20; x *= 1.37 {
		if got, err := strconv.ParseFloat(ThreeDigits(x), 64); err != nil || math.Abs(got-x) > 0.00501*x {
			t.Errorf("%v is %v, %v", x, got, err)
		}
	}
}

func TestAmount(t *testing.T) {
	for _, tc := range []struct {
		x          float64
		unit, want string
	}{
		{1.234e9, "B/s", "1.23 GB/s"}, {0.04561, "s", "45.6 ms"}, {12345, "s", "12345 s"}, {3e-12, "s", "0.00300 ns"},
		{475233, "tokens/s", "475233 tokens/s"}, {5, "%", "5.00 %"}, {0, "B", "0 B"}, {0.5, "B", "0.500 B"},
		{999.6, "B", "1.00 kB"}, {-2e6, "B", "-2.00 MB"}, {3.5e14, "FLOP/s", "350 TFLOP/s"}, {1e21, "B", "1000 EB"},
		{0.5, "", "0.500"}, {0.0005, "W", "500 uW"}, {math.Inf(1), "B/s", "+Inf B/s"}, {12, "B", "12 B"},
	} {
		if got := Amount(tc.x, tc.unit); got != tc.want {
			t.Errorf("%v %s: %q, want %q", tc.x, tc.unit, got, tc.want)
		}
	}
	if got := Amount(math.NaN(), "s"); got != "NaN s" {
		t.Errorf("%q", got)
	}
}
