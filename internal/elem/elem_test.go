package elem

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"lockstep/internal/testkit"
)

func checkType[T Stored](t *testing.T, want Type, name string) {
	t.Helper()
	var z T
	if got := Of[T](); got != want {
		t.Errorf("Of[%T]() = %v, want %v", z, got, want)
	}
	if got := want.Size(); got != int(unsafe.Sizeof(z)) {
		t.Errorf("%v.Size() = %d, want %d", want, got, unsafe.Sizeof(z))
	}
	if got := want.String(); got != name {
		t.Errorf("String() = %q, want %q", got, name)
	}
	var got Type
	if a := testkit.Allocations(10, func() { got = Of[T]() }); a != 0 || got != want {
		t.Errorf("Of[%T]() allocates %v times", z, a)
	}
}

func TestTypes(t *testing.T) {
	checkType[int8](t, Int8, "int8")
	checkType[uint8](t, Uint8, "uint8")
	checkType[int32](t, Int32, "int32")
	checkType[uint32](t, Uint32, "uint32")
	checkType[int64](t, Int64, "int64")
	checkType[uint64](t, Uint64, "uint64")
	checkType[F16](t, Float16, "float16")
	checkType[BF16](t, BFloat16, "bfloat16")
	checkType[float32](t, Float32, "float32")
	checkType[float64](t, Float64, "float64")
	checkType[complex64](t, Complex64, "complex64")
	checkType[complex128](t, Complex128, "complex128")
	checkType[F8E4M3](t, Float8E4M3, "float8_e4m3")
	checkType[F8E5M2](t, Float8E5M2, "float8_e5m2")
	if got := Type(StoredTypes).String(); got != "elem.Type(14)" {
		t.Errorf("name of an unknown type: %q", got)
	}
	if got := Op(HostOps).String(); got != "elem.Op(8)" {
		t.Errorf("name of an unknown operation: %q", got)
	}
	for op, want := range map[Op]string{Sum: "sum", Prod: "prod", Min: "min", Max: "max", Avg: "avg"} {
		if op.String() != want {
			t.Errorf("Op %d is %q, want %q", op, op, want)
		}
	}
	for ty := Type(0); ty < StoredTypes; ty++ {
		if want := ty == Float16 || ty == BFloat16; ty.Half() != want {
			t.Errorf("%v.Half() = %v", ty, !want)
		}
	}
}

// format describes a small binary float for the float64 reference below.
type format struct {
	name           string
	fracBits       int
	minExp, maxExp int // of normal values, as in 1.f * 2^exp
	toBits         func(float32) uint16
	value          func(uint16) float32
}

var formats = []format{
	{"float16", 10, -14, 15, func(f float32) uint16 { return uint16(ToF16(f)) },
		func(b uint16) float32 { return F16(b).Float32() }},
	{"bfloat16", 7, -126, 127, func(f float32) uint16 { return uint16(ToBF16(f)) },
		func(b uint16) float32 { return BF16(b).Float32() }},
}

// decode returns the value of b by the definition of the format, in float64, which holds every such
// value exactly.
func (f format) decode(b uint16) float64 {
	sign := 1.0
	if b>>15 == 1 {
		sign = -1
	}
	frac := float64(b & (1<<f.fracBits - 1))
	exp := int(b&0x7fff) >> f.fracBits
	switch {
	case exp == f.maxExp-f.minExp+2 && frac != 0:
		return math.NaN()
	case exp == f.maxExp-f.minExp+2:
		return sign * math.Inf(1)
	case exp == 0:
		return sign * math.Ldexp(frac, f.minExp-f.fracBits)
	default:
		return sign * math.Ldexp(1+math.Ldexp(frac, -f.fracBits), exp-1+f.minExp)
	}
}

// round returns the value nearest to x in the format, ties to even, computed in float64 from the
// spacing at x.
func (f format) round(x float64) float64 {
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return x
	}
	_, e := math.Frexp(x) // |x| in [2^(e-1), 2^e)
	unit := max(e-1, f.minExp) - f.fracBits
	r := math.Ldexp(math.RoundToEven(math.Ldexp(x, -unit)), unit)
	if math.Abs(r) >= math.Ldexp(1, f.maxExp+1) {
		return math.Copysign(math.Inf(1), x)
	}
	return r
}

func TestHalfRoundTrip(t *testing.T) {
	for _, f := range formats {
		for i := range 1 << 16 {
			b := uint16(i)
			got, want := f.value(b), f.decode(b)
			if math.IsNaN(want) != math.IsNaN(float64(got)) || (!math.IsNaN(want) && float64(got) != want) {
				t.Fatalf("%s %#04x is %v, want %v", f.name, b, got, want)
			}
			if math.Signbit(float64(got)) != (b>>15 == 1) {
				t.Fatalf("%s %#04x is %v: sign lost", f.name, b, got)
			}
			back := f.toBits(got)
			if math.IsNaN(want) {
				if !math.IsNaN(f.decode(back)) || back>>15 != b>>15 {
					t.Fatalf("%s NaN %#04x comes back as %#04x", f.name, b, back)
				}
				continue
			}
			if back != b {
				t.Fatalf("%s %#04x comes back as %#04x", f.name, b, back)
			}
		}
	}
}

func TestHalfRounding(t *testing.T) {
	for _, f := range formats {
		check := func(x float32) {
			t.Helper()
			b := f.toBits(x)
			got, want := f.decode(b), f.round(float64(x))
			if math.IsNaN(float64(x)) {
				if !math.IsNaN(got) {
					t.Fatalf("%s of NaN %#08x is %v", f.name, math.Float32bits(x), got)
				}
				return
			}
			if got != want || math.Signbit(got) != math.Signbit(float64(x)) {
				t.Fatalf("%s of %v (%#08x) is %v, want %v", f.name, x, math.Float32bits(x), got, want)
			}
		}
		// These are every value of the format, the midpoint to its neighbour, and the float32 on
		// each side of it.
		for i := range 1<<16 - 1 {
			lo, hi := f.decode(uint16(i)), f.decode(uint16(i+1))
			if math.IsNaN(lo) || math.IsNaN(hi) || i == 0x7fff {
				continue
			}
			mid := float32((lo + hi) / 2)
			if math.IsInf(hi, 0) { // the midpoint to the value that the format would have next
				mid = float32(math.Copysign(math.Ldexp(2-math.Ldexp(1, -f.fracBits-1), f.maxExp), lo))
			}
			for _, x := range []float32{
				float32(lo), mid, math.Nextafter32(mid, 0), math.Nextafter32(mid, float32(math.Inf(1))),
				math.Nextafter32(mid, float32(math.Inf(-1))),
			} {
				check(x)
			}
		}
		for _, bits := range []uint32{
			0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001, 0xff801fff, 0x7fffffff, 1, 0x80000001,
			0x7f7fffff, 0xff7fffff,
		} {
			check(math.Float32frombits(bits))
		}
		r := rand.New(rand.NewPCG(1, 2))
		for range 1 << 20 {
			check(math.Float32frombits(r.Uint32()))
		}
	}
}

// No elements have no address, so that no pointer is one past the end of Go's memory.
func TestAt(t *testing.T) {
	var x [3]int32
	p := unsafe.Pointer(&x)
	for i := range x {
		got := At(p, i, len(x)-i, Int32)
		if got != unsafe.Pointer(&x[i]) || !IsAt(got, p, i, Int32) || IsAt(got, p, i+1, Int32) {
			t.Errorf("element %d of %p is at %p", i, p, got)
		}
	}
	if At(p, 3, 0, Int32) != nil || At(nil, 1, 2, Int32) != nil {
		t.Error("nothing is somewhere")
	}
	if !IsAt(nil, nil, 0, Int32) || IsAt(nil, p, 1, Int32) {
		t.Error("nil is at the first element of nothing alone")
	}
}
