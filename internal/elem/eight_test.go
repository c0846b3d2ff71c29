package elem

import (
	"math"
	"math/rand/v2"
	"testing"
)

// positiveE4M3 are the values of codes 0 to 0x7e by the definition of the format (OFP8, table 2): a zero, seven
// subnormals, and eight values to each power of two from 2^-6 to 2^8, of which the last would be 480 and is NaN.
func positiveE4M3() (values []float64) {
	for frac := range 8 {
		values = append(values, float64(frac)/512)
	}
	for power := 1.0 / 64; power <= 256; power *= 2 {
		for frac := range 8 {
			values = append(values, power*(1+float64(frac)/8))
		}
	}
	return values[:0x7f]
}

func TestE4M3Values(t *testing.T) {
	values := positiveE4M3()
	if values[0x7e] != 448 || values[8] != 1.0/64 || values[0x38] != 1 {
		t.Fatalf("the table has %v, %v, %v", values[0x7e], values[8], values[0x38])
	}
	for i := range 256 {
		x := F8E4M3(i)
		got := float64(x.Float32())
		if i&0x7f == 0x7f {
			if !math.IsNaN(got) || ToF8E4M3(x.Float32()) != 0x7f {
				t.Errorf("%#02x is %v, and comes back as %#02x", i, got, ToF8E4M3(x.Float32()))
			}
			continue
		}
		if want := values[i&0x7f]; math.Abs(got) != want || math.Signbit(got) != (i >= 0x80) {
			t.Errorf("%#02x is %v, want %v", i, got, want)
		}
		if back := ToF8E4M3(x.Float32()); back != x {
			t.Errorf("%#02x comes back as %#02x", i, back)
		}
	}
}

// nearestE4M3 is the code nearest to x by looking at all of them; of two it is the even one.
func nearestE4M3(values []float64, x float64) F8E4M3 {
	best, sign := 0, F8E4M3(0)
	if math.Signbit(x) {
		x, sign = -x, 0x80
	}
	x = min(x, 448)
	for i, v := range values {
		if d, least := math.Abs(v-x), math.Abs(values[best]-x); d < least || d == least && i%2 == 0 {
			best = i
		}
	}
	return sign | F8E4M3(best)
}

func TestE4M3Rounding(t *testing.T) {
	values := positiveE4M3()
	check := func(x float32) {
		t.Helper()
		if want := nearestE4M3(values, float64(x)); ToF8E4M3(x) != want {
			t.Fatalf("%v (%#08x) becomes %#02x, want %#02x", x, math.Float32bits(x), ToF8E4M3(x), want)
		}
	}
	for i, v := range values[1:] {
		mid := float32((values[i] + v) / 2)
		for _, x := range []float32{float32(v), mid, math.Nextafter32(mid, 0), math.Nextafter32(mid, 500)} {
			check(x)
			check(-x)
		}
	}
	inf := float32(math.Inf(1))
	for _, x := range []float32{0, float32(math.Copysign(0, -1)), 448, 449, 464, 480, 1e30, inf, -inf, math.MaxFloat32, math.SmallestNonzeroFloat32, 1e-30} {
		check(x)
	}
	if got := ToF8E4M3(float32(math.NaN())); got != 0x7f {
		t.Errorf("NaN becomes %#02x", got)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1 << 16 {
		check(math.Float32frombits(uint32(115+r.IntN(24))<<23 | r.Uint32()&0x807fffff))
	}
}
