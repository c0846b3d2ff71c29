package elem

import "math"

// F16 holds an IEEE 754 binary16 value: 1 sign, 5 exponent and 10 fraction bits. It is for storage;
// compute in float32.
type F16 uint16

// BF16 holds a bfloat16 value: the upper 16 bits of a float32. It is for storage;
// compute in float32.
type BF16 uint16

const (
	signBit32  = 1 << 31
	infBits32  = 0xff << 23
	quietBit16 = 1 << 9 // of a binary16 NaN
	infBits16  = 0x1f << 10
)

// ToF16 rounds f to the nearest binary16, ties to even.
//
// Values of 65520 and more become infinite, below 2^-25 in size zero. A NaN stays a NaN: its upper
// payload bits stay, and it becomes quiet if none of them is set.
func ToF16(f float32) F16 {
	bits := math.Float32bits(f)
	sign := F16(bits >> 16 & 0x8000)
	abs := bits &^ signBit32
	switch {
	case abs > infBits32:
		payload := F16(abs >> 13 & (1<<10 - 1))
		if payload == 0 { // dropping low bits must not turn a NaN into infinity
			payload = quietBit16
		}
		return sign | infBits16 | payload
	case abs >= (127+16)<<23: // 2^16 and above, and infinity itself
		return sign | infBits16
	case abs < (127-14)<<23: // subnormal or zero
		// Adding 0.5 moves the unit of the last place of a subnormal, 2^-24, to that of
		// the float32, which rounds it.
		const half = float32(0.5)
		sum := math.Float32frombits(abs) + half
		return sign | F16(math.Float32bits(sum)-math.Float32bits(half))
	default:
		// Rebias the exponent, then add just under half a unit, and the last bit kept: a tie
		// goes up only from odd. A carry out of the fraction raises the exponent, to
		// infinity at the top, as it must.
		odd := abs >> 13 & 1
		return sign | F16((abs-(127-15)<<23+(1<<12-1)+odd)>>13)
	}
}

// Float32 returns the value of h, which float32 holds exactly. NaNs keep their payload.
func (h F16) Float32() float32 {
	sign := uint32(h&0x8000) << 16
	exp := uint32(h) >> 10 & 0x1f
	frac := uint32(h) & (1<<10 - 1)
	switch exp {
	case 0: // zero or subnormal: frac units of 2^-24
		return math.Float32frombits(sign | math.Float32bits(float32(frac)*0x1p-24))
	case 0x1f:
		return math.Float32frombits(sign | infBits32 | frac<<13)
	default:
		return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
	}
}

// ToBF16 rounds f to the nearest bfloat16, ties to even. Values that round above the largest
// bfloat16 become infinite. A NaN stays a NaN and becomes quiet.
func ToBF16(f float32) BF16 {
	bits := math.Float32bits(f)
	if bits&^signBit32 > infBits32 {
		return BF16(bits>>16 | 1<<6)
	}
	return BF16((bits + 1<<15 - 1 + bits>>16&1) >> 16)
}

// Float32 returns the value of h, which float32 holds exactly. NaNs keep their payload.
func (h BF16) Float32() float32 { return math.Float32frombits(uint32(h) << 16) }
