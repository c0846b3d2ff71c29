package coll

import (
	"math"
	"math/big"
	"testing"
	"unsafe"

	"lockstep/internal/elem"
)

// An operation with the identity leaves every value as it was: integers in math/big's arithmetic
// modulo their size, floats in float64.
func TestIdentity(t *testing.T) {
	for ty := elem.Type(0); ty <= elem.Float64; ty++ {
		bits := 8 * ty.Size()
		mask := ^uint64(0) >> (64 - bits)
		for op := elem.Sum; op <= elem.Max; op++ {
			id := Identity(op, ty)[0]
			if id&^mask != 0 {
				t.Errorf("%v of %v: %#x has more than %d bits", op, ty, id, bits)
			}
			for _, x := range []uint64{0, 1, 2, 3, mask, mask - 1, mask >> 1, mask>>1 + 1, mask >> 2,
				0x3c01, 0xbf81, 0x42280000 & mask, 0xc2280000 & mask} {
				x &= mask
				if got := apply(op, ty, x, id); got != x && !math.IsNaN(value(ty, x)) {
					t.Errorf("%v of %v: of %#x and %#x it is %#x", op, ty, x, id, got)
				}
			}
		}
	}
}

// A sum with the identity keeps its parts, zeros of both signs too; a product is equal.
func TestIdentityOfComplex(t *testing.T) {
	single := func(op elem.Op) complex64 {
		id := Identity(op, elem.Complex64)
		return *(*complex64)(unsafe.Pointer(&id))
	}
	double := func(op elem.Op) complex128 {
		id := Identity(op, elem.Complex128)
		return *(*complex128)(unsafe.Pointer(&id))
	}
	zero := math.Copysign(0, -1)
	for _, x := range []complex128{complex(3, -5), complex(zero, 0), complex(0, zero), complex(zero, zero), 0} {
		y := complex64(x)
		if elem.BitsOf(x+double(elem.Sum)) != elem.BitsOf(x) || x*double(elem.Prod) != x {
			t.Errorf("%v becomes %v and %v", x, x+double(elem.Sum), x*double(elem.Prod))
		}
		if elem.BitsOf(y+single(elem.Sum)) != elem.BitsOf(y) || y*single(elem.Prod) != y {
			t.Errorf("%v becomes %v and %v", y, y+single(elem.Sum), y*single(elem.Prod))
		}
	}
}

// value is the number with some bits, in float64, which is exact but for integers of 64 bits.
func value(ty elem.Type, x uint64) float64 {
	switch ty {
	case elem.Float16:
		return float64(elem.F16(x).Float32())
	case elem.BFloat16:
		return float64(elem.BF16(x).Float32())
	case elem.Float32:
		return float64(math.Float32frombits(uint32(x)))
	case elem.Float64:
		return math.Float64frombits(x)
	case elem.Int8, elem.Int32, elem.Int64:
		shift := 64 - 8*ty.Size()
		return float64(int64(x<<shift) >> shift)
	}
	return float64(x)
}

func apply(op elem.Op, ty elem.Type, x, y uint64) uint64 {
	a, b := value(ty, x), value(ty, y)
	floating := ty >= elem.Float16
	switch {
	case op == elem.Min && b < a, op == elem.Max && b > a:
		return y
	case op == elem.Min, op == elem.Max:
		return x
	case floating && (op == elem.Sum && math.Float64bits(a+b) == math.Float64bits(a) ||
		op == elem.Prod && math.Float64bits(a*b) == math.Float64bits(a)):
		return x
	case floating:
		return ^x
	}
	sum, mask := new(big.Int).SetUint64(x), new(big.Int).SetUint64(^uint64(0)>>(64-8*ty.Size()))
	if op == elem.Sum {
		sum.Add(sum, new(big.Int).SetUint64(y))
	} else {
		sum.Mul(sum, new(big.Int).SetUint64(y))
	}
	return sum.And(sum, mask).Uint64()
}
