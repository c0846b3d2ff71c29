package elem

import "math"

// F8E4M3 holds an 8-bit float of 1 sign, 4 exponent and 3 fraction bits, with a bias of 7, up to 448 in size and without
// infinities. It is for storage, and for matrix products; compute in float32.
// Source: Micikevicius et al., FP8 formats for deep learning (2022), table 1; Open Compute Project, OFP8.
type F8E4M3 uint8

const (
	maxE4M3 = 0x7e // 448
	nanE4M3 = 0x7f // as conversions make it
)

// ToF8E4M3 rounds f to the nearest F8E4M3, ties to even. What lies beyond 448 in size becomes 448, infinities too, with
// the sign of f; a NaN stays one.
func ToF8E4M3(f float32) F8E4M3 {
	bits := math.Float32bits(f)
	sign := F8E4M3(bits >> 24 & 0x80)
	abs := bits &^ signBit32
	switch {
	case abs > infBits32:
		return nanE4M3
	case abs >= math.Float32bits(448):
		return sign | maxE4M3
	case abs < (127-6)<<23: // subnormal or zero
		// Adding 2^14 moves the unit of the last place of a subnormal, 2^-9, to that of the float32, which rounds it.
		const shift = float32(1 << 14)
		sum := math.Float32frombits(abs) + shift
		return sign | F8E4M3(math.Float32bits(sum)-math.Float32bits(shift))
	default:
		odd := abs >> 20 & 1
		return sign | F8E4M3((abs-(127-7)<<23+(1<<19-1)+odd)>>20)
	}
}

// Float32 returns the value of x, which float32 holds exactly.
func (x F8E4M3) Float32() float32 { return valuesE4M3[x] }

// valuesE4M3 are the values of all codes.
var valuesE4M3 = func() (values [256]float32) {
	for i := range values {
		sign, exp, frac := 1.0, i>>3&0xf, float64(i&7)
		if i >= 0x80 {
			sign = -1
		}
		switch {
		case i&0x7f == nanE4M3:
			values[i] = float32(math.NaN())
		case exp == 0: // units of 2^-9
			values[i] = float32(math.Copysign(frac*0x1p-9, sign))
		default:
			values[i] = float32(sign * math.Ldexp(8+frac, exp-7-3))
		}
	}
	return values
}()

// F8E5M2 holds an 8-bit float of 1 sign, 5 exponent and 2 fraction bits, with a bias of 15: the upper half of an F16. It
// is up to 57344 in size. It is for gradients, whose sizes differ more than an F8E4M3 can show.
// Source: as F8E4M3.
type F8E5M2 uint8

const (
	maxE5M2 = 0x7b // 57344
	nanE5M2 = 0x7f // as conversions make it
)

// ToF8E5M2 rounds f to the nearest F8E5M2, ties to even. What lies beyond 57344 in size becomes 57344, infinities too,
// with the sign of f; a NaN stays one.
func ToF8E5M2(f float32) F8E5M2 {
	bits := math.Float32bits(f)
	sign := F8E5M2(bits >> 24 & 0x80)
	abs := bits &^ signBit32
	switch {
	case abs > infBits32:
		return nanE5M2
	case abs >= math.Float32bits(57344):
		return sign | maxE5M2
	case abs < (127-14)<<23: // subnormal or zero
		// Adding 2^7 moves the unit of the last place of a subnormal, 2^-16, to that of the float32, which rounds it.
		const shift = float32(1 << 7)
		sum := math.Float32frombits(abs) + shift
		return sign | F8E5M2(math.Float32bits(sum)-math.Float32bits(shift))
	default:
		odd := abs >> 21 & 1
		return sign | F8E5M2((abs-(127-15)<<23+(1<<20-1)+odd)>>21)
	}
}

// Float32 returns the value of x, which float32 holds exactly.
func (x F8E5M2) Float32() float32 { return F16(uint16(x) << 8).Float32() }
