package elem

import (
	"math"
	"math/rand/v2"
	"testing"
)

// positiveE4M3 returns the values of codes 0 to 0x7e by the definition of the format (OFP8, table
// 2): a zero, seven subnormals, and eight values to each power of two from 2^-6 to 2^8. The last
// would be 480 and is NaN.
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

// nearestCode returns the code nearest to x, the even one of two, after a look at the values
// of all codes.
func nearestCode(values []float64, x float64) uint8 {
	best, sign := 0, uint8(0)
	if math.Signbit(x) {
		x, sign = -x, 0x80
	}
	x = min(x, values[len(values)-1])
	for i, v := range values {
		if d, least := math.Abs(v-x), math.Abs(values[best]-x); d < least || d == least && i%2 == 0 {
			best = i
		}
	}
	return sign | uint8(best)
}

func TestE4M3Rounding(t *testing.T) {
	testRounding(t, ToF8E4M3, positiveE4M3(), []float32{448, 449, 464, 480}, 115, 24)
}

func TestE5M2Rounding(t *testing.T) {
	testRounding(t, ToF8E5M2, positiveE5M2(), []float32{57344, 57345, 61440, 65536}, 108, 38)
}

// testRounding compares roundings with the nearest of the values. The inputs are the values, the
// middles between them and their neighbours, the ends and beyond, and random numbers with so many
// exponents from one on.
func testRounding[T F8E4M3 | F8E5M2](t *testing.T, to func(float32) T, values []float64, end []float32,
	exponent, exponents int) {
	check := func(x float32) {
		t.Helper()
		if want := T(nearestCode(values, float64(x))); to(x) != want {
			t.Fatalf("%v (%#08x) becomes %#02x, want %#02x", x, math.Float32bits(x), to(x), want)
		}
	}
	inf := float32(math.Inf(1))
	for i, v := range values[1:] {
		mid := float32((values[i] + v) / 2)
		for _, x := range []float32{float32(v), mid, math.Nextafter32(mid, 0), math.Nextafter32(mid, inf)} {
			check(x)
			check(-x)
		}
	}
	for _, x := range append(end, 0, float32(math.Copysign(0, -1)), 1e30, inf, -inf, math.MaxFloat32,
		math.SmallestNonzeroFloat32, 1e-30) {
		check(x)
	}
	if got := to(float32(math.NaN())); got != 0x7f {
		t.Errorf("NaN becomes %#02x", got)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1 << 16 {
		check(math.Float32frombits(uint32(exponent+r.IntN(exponents))<<23 | r.Uint32()&0x807fffff))
	}
}

// positiveE5M2 returns the values of codes 0 to 0x7b by the definition of the format (OFP8, table
// 2): a zero, three subnormals, and four values to each power of two from 2^-14 to 2^15.
func positiveE5M2() (values []float64) {
	for frac := range 4 {
		values = append(values, float64(frac)/65536)
	}
	for power := 1.0 / 16384; power <= 32768; power *= 2 {
		for frac := range 4 {
			values = append(values, power*(1+float64(frac)/4))
		}
	}
	return values
}

func TestE5M2Values(t *testing.T) {
	values := positiveE5M2()
	if len(values) != 0x7c || values[0x7b] != 57344 || values[0x3c] != 1 {
		t.Fatalf("the table has %d values, %v, %v", len(values), values[0x7b], values[0x3c])
	}
	for i := range 256 {
		x, size := F8E5M2(i), i&0x7f
		got := float64(x.Float32())
		want := math.Inf(1)
		if size < len(values) {
			want = values[size]
		}
		switch {
		case size > 0x7c:
			if !math.IsNaN(got) || ToF8E5M2(x.Float32()) != 0x7f {
				t.Errorf("%#02x is %v, and comes back as %#02x", i, got, ToF8E5M2(x.Float32()))
			}
		case math.Abs(got) != want || math.Signbit(got) != (i >= 0x80):
			t.Errorf("%#02x is %v, want %v", i, got, want)
		case size < 0x7c && ToF8E5M2(x.Float32()) != x:
			t.Errorf("%#02x comes back as %#02x", i, ToF8E5M2(x.Float32()))
		}
	}
}
