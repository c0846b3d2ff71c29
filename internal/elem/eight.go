package elem

import "math"

// F8E4M3 holds an 8-bit float of 1 sign, 4 exponent and 3 fraction bits, with a bias of 7,
// up to 448 in size and without infinities. It is for storage, and for matrix products;
// compute in float32.
//
// Source: Micikevicius et al., FP8 formats for deep learning (2022), table 1; Open Compute
// Project, OFP8.
type F8E4M3 uint8

// ToF8E4M3 rounds f to the nearest F8E4M3, ties to even. Values beyond 448 in size, also
// infinities, become 448 with the sign of f. A NaN stays a NaN.
func ToF8E4M3(f float32) F8E4M3 { return F8E4M3(toEight(f, 3, 7, 0x7e)) }

// nanEight is the NaN that conversions to 8 bits make.
const nanEight = 0x7f

// toEight rounds f to the nearest 8-bit float with that number of fraction bits and that bias of
// the exponent. most is the code of the largest float, which stands for all beyond it.
func toEight(f float32, fraction, bias, most uint32) uint8 {
	bits := math.Float32bits(f)
	sign := uint8(bits >> 24 & 0x80)
	abs := bits &^ signBit32
	drop := 23 - fraction       // bits of f's fraction that there is no room for
	first := (127 - bias) << 23 // what f's exponent has more than the code's
	switch {
	case abs > infBits32:
		return nanEight
	case abs >= most<<drop+first:
		return sign | uint8(most)
	case abs < first+1<<23: // subnormal or zero
		// A sum with a power of two whose last place has the unit of a
		// subnormal rounds to that unit.
		shift := first + (24-fraction)<<23
		sum := math.Float32frombits(abs) + math.Float32frombits(shift)
		return sign | uint8(math.Float32bits(sum)-shift)
	default:
		odd := abs >> drop & 1
		return sign | uint8((abs-first+1<<(drop-1)-1+odd)>>drop)
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
		case i&0x7f == nanEight:
			values[i] = float32(math.NaN())
		case exp == 0: // units of 2^-9
			values[i] = float32(math.Copysign(frac*0x1p-9, sign))
		default:
			values[i] = float32(sign * math.Ldexp(8+frac, exp-7-3))
		}
	}
	return values
}()

// F8E5M2 holds an 8-bit float of 1 sign, 5 exponent and 2 fraction bits, with a bias of 15: the
// upper half of an F16. It is up to 57344 in size. It is for gradients, whose sizes differ too much
// for an F8E4M3. Source: as for F8E4M3.
type F8E5M2 uint8

// ToF8E5M2 rounds f to the nearest F8E5M2, ties to even. Values beyond 57344 in size, also
// infinities, become 57344 with the sign of f. A NaN stays a NaN.
func ToF8E5M2(f float32) F8E5M2 { return F8E5M2(toEight(f, 2, 15, 0x7b)) }

// Float32 returns the value of x, which float32 holds exactly.
func (x F8E5M2) Float32() float32 { return F16(uint16(x) << 8).Float32() }
