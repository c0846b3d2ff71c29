package coll

import (
	"math"

	"lockstep/internal/elem"
)

// Identity returns the bits of the value of type t that leaves every x as it is: op(x, value) is x.
// Avg has none. 1 may change the signs of zeros in a complex product.
func Identity(op elem.Op, t elem.Type) elem.Bits {
	part := identity(op, t.Real())
	switch {
	case op == elem.Prod, !t.Complex():
		return elem.Bits{part}
	case t == elem.Complex64:
		return elem.Bits{part | part<<32}
	}
	return elem.Bits{part, part}
}

func identity(op elem.Op, t elem.Type) uint64 {
	bits := uint(8 * t.Size())
	float := func(f16, bf16 uint16, f float64) uint64 {
		switch t {
		case elem.Float16:
			return uint64(f16)
		case elem.BFloat16:
			return uint64(bf16)
		case elem.Float32:
			return uint64(math.Float32bits(float32(f)))
		}
		return math.Float64bits(f)
	}
	floating := t.Half() || t == elem.Float32 || t == elem.Float64
	signed := t == elem.Int8 || t == elem.Int32 || t == elem.Int64
	most := uint64(1)<<(bits-1) - 1 // of a signed integer
	switch {
	case op == elem.Prod && floating:
		return float(0x3c00, 0x3f80, 1)
	case op == elem.Prod:
		return 1
	case op == elem.Min && floating:
		return float(0x7c00, 0x7f80, math.Inf(1))
	case op == elem.Min && signed:
		return most
	case op == elem.Min:
		return most<<1 | 1
	case op == elem.Max && floating:
		return float(0xfc00, 0xff80, math.Inf(-1))
	case op == elem.Max && signed:
		return most + 1
	case op == elem.And:
		return most<<1 | 1
	case op == elem.Sum && floating:
		return float(0x8000, 0x8000, math.Copysign(0, -1)) // of 0 and -0 the sum is 0
	}
	return 0
}
