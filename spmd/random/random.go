// Package random fills buffers with random numbers on their device. A number depends on the seed
// and its place alone: element i of an array is the same whichever rank holds it, on GPUs and on
// the host. There is no state.
//
// A rank that holds the elements from first on passes first as offset:
//
//	part := spmd.ShardOf(n, w.Rank(), w.Size())
//	err := random.Normal(s, x, w.Seed(), part.Off)
package random

import (
	"fmt"
	"math"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd"
)

// The command writes kernels_spmd.go: the kernels in CUDA C++, and the functions that launch them.
//
//go:generate go run lockstep/spmd/spmdgen

// Uniform enqueues dst[i] = number offset+i of the sequence that seed names, from 0 to 1, 1
// excluded. As NumPy's random. The float32 numbers are the float64 ones, with 24 bits.
func Uniform[T float32 | float64](s *spmd.Stream, dst spmd.Buffer[T], seed uint64, offset int) error {
	if err := check("random.Uniform", dst.Len(), offset); err != nil {
		return err
	}
	if b, ok := any(dst).(spmd.Buffer[float32]); ok {
		return launchUniform32(s, b.Len(), b, seed, offset)
	}
	return launchUniform64(s, dst.Len(), spmd.View[float64](dst), seed, offset)
}

// Normal enqueues dst[i] = number offset+i of another sequence that seed names, normally
// distributed with mean 0 and variance 1. As NumPy's standard_normal. The float32 numbers are other
// ones than the float64 numbers.
//
// Source: Box, Muller: A note on the generation of random normal deviates (1958).
func Normal[T float32 | float64](s *spmd.Stream, dst spmd.Buffer[T], seed uint64, offset int) error {
	if err := check("random.Normal", dst.Len(), offset); err != nil {
		return err
	}
	pairs := (offset+dst.Len()+1)/2 - offset/2
	if dst.Len() == 0 {
		pairs = 0
	}
	b, ok := any(dst).(spmd.Buffer[float32])
	if ok && offset%2 == 0 && dst.Len() > 1 && dst.Address()%8 == 0 {
		even := dst.Len() / 2 * 2
		err := launchPairs32(s, even/2, spmd.View[complex64](b.Slice(0, even)), seed, offset/2)
		if err != nil || even == dst.Len() {
			return err
		}
		b, offset, pairs = b.Slice(even, even+1), offset+even, 1
	}
	if ok {
		return launchNormal32(s, pairs, b, seed, offset)
	}
	return launchNormal64(s, pairs, spmd.View[float64](dst), seed, offset)
}

// check refuses places that the sequences do not have.
func check(op string, n, offset int) error {
	if _, ok := elem.Total(offset, n); !ok {
		return fmt.Errorf("%s: %s: %d elements from number %d on", ccall.At(), op, n, offset)
	}
	return nil
}

//spmd:kernel
func uniform32(i int, dst []float32, seed uint64, offset int) {
	dst[i] = float32(spmd.UniformBits(seed, uint64(offset+i))) / (1 << 24)
}

//spmd:kernel
func uniform64(i int, dst []float64, seed uint64, offset int) {
	dst[i] = float64(spmd.RandomBits(seed, uint64(offset+i))>>11) / (1 << 53)
}

// other makes the sequences of Normal and Uniform differ.
const other = 0x6e6f726d616c

// normal64 makes two numbers of a pair of places; the first place is even.
//
//spmd:kernel
func normal64(i int, dst []float64, seed uint64, offset int) {
	pair := offset/2 + i
	at := 2*pair - offset
	u, v := spmd.RandomBits(seed^other, uint64(2*pair)), spmd.RandomBits(seed^other, uint64(2*pair+1))
	radius := math.Sqrt(-2 * log64(float64(u>>11+1)/(1<<53)))
	const rest = 1 << 51
	x, y := turned64(v>>62, (float64(v>>11&(rest-1))/rest-0.5)*(math.Pi/2))
	if at >= 0 && at < len(dst) {
		dst[at] = radius * x
	}
	if at+1 < len(dst) {
		dst[at+1] = radius * y
	}
}

// log64 returns the logarithm of a number from 2^-53 to 1, by the series for (1+s)/(1-s). Like the
// functions below it only uses operations that give the same bits everywhere.
func log64(x float64) float64 {
	const fraction = 1<<52 - 1
	b := math.Float64bits(x)
	e, m := float64(int(b>>52)-1023), math.Float64frombits(b&fraction|1023<<52)
	if m > math.Sqrt2 {
		m, e = m/2, e+1
	}
	s := (m - 1) / (m + 1)
	z := s * s
	p := math.FMA(z, 1.0/21, 1.0/19)
	p = math.FMA(z, p, 1.0/17)
	p = math.FMA(z, p, 1.0/15)
	p = math.FMA(z, p, 1.0/13)
	p = math.FMA(z, p, 1.0/11)
	p = math.FMA(z, p, 1.0/9)
	p = math.FMA(z, p, 1.0/7)
	p = math.FMA(z, p, 1.0/5)
	p = math.FMA(z, p, 1.0/3)
	p = math.FMA(z, p, 1)
	return math.FMA(e, math.Ln2, 2*s*p)
}

// turned64 returns the cosine and sine of t, from -pi/4 to pi/4, plus quarters of a turn.
func turned64(quarters uint64, t float64) (x, y float64) {
	z := -t * t
	p := math.FMA(z, 1.0/355_687_428_096_000, 1.0/1_307_674_368_000)
	p = math.FMA(z, p, 1.0/6_227_020_800)
	p = math.FMA(z, p, 1.0/39_916_800)
	p = math.FMA(z, p, 1.0/362_880)
	p = math.FMA(z, p, 1.0/5040)
	p = math.FMA(z, p, 1.0/120)
	p = math.FMA(z, p, 1.0/6)
	sin := math.FMA(t*z, p, t)
	p = math.FMA(z, 1.0/20_922_789_888_000, 1.0/87_178_291_200)
	p = math.FMA(z, p, 1.0/479_001_600)
	p = math.FMA(z, p, 1.0/3_628_800)
	p = math.FMA(z, p, 1.0/40_320)
	p = math.FMA(z, p, 1.0/720)
	p = math.FMA(z, p, 1.0/24)
	p = math.FMA(z, p, 1.0/2)
	cos := math.FMA(z, p, 1)
	switch quarters {
	case 0:
		return cos, sin
	case 1:
		return -sin, cos
	case 2:
		return -cos, -sin
	}
	return sin, -cos
}

// pairs32 makes the two numbers of each pair of places from first on.
//
//spmd:kernel
func pairs32(i int, dst []complex64, seed uint64, first int) {
	x, y := normals32(seed, first+i)
	dst[i] = complex(x, y)
}

// normal32 does the work of pairs32 for a first number that is alone, or memory that is not aligned
// for pairs.
//
//spmd:kernel
func normal32(i int, dst []float32, seed uint64, offset int) {
	pair := offset/2 + i
	at := 2*pair - offset
	x, y := normals32(seed, pair)
	if at >= 0 && at < len(dst) {
		dst[at] = x
	}
	if at+1 < len(dst) {
		dst[at+1] = y
	}
}

// normals32 is normal64 with one word of random bits for a pair. The upper half is for the radius.
// The two upper bits of the lower half are quarters of a turn.
func normals32(seed uint64, pair int) (x, y float32) {
	const sign, quarter = 1 << 31, 1 << 30
	bits := spmd.RandomBits(seed^other, uint64(pair))
	radius := float32(math.Sqrt(float64(squared32(float32(uint32(bits>>32)) + 1))))
	v := uint32(bits)
	cos, sin := turned32(float32(int32(v<<2^sign)) * (math.Pi / 2 / (1 << 32)))
	if v&quarter != 0 {
		cos, sin = sin, cos
	}
	x = radius * math.Float32frombits(math.Float32bits(cos)^(v+quarter)&sign)
	y = radius * math.Float32frombits(math.Float32bits(sin)^v&sign)
	return x, y
}

// squared32 is -2 log(u/2^32), for u from 1 to 2^32. It takes the nearest power of two, and a
// polynomial through Chebyshev's points for the rest, 1+f. Conversions of products keep Go from
// adding to them unrounded.
func squared32(u float32) float32 {
	const fraction, root = 1<<23 - 1, 0x3f3504f3 // the bits of sqrt(1/2)
	b := math.Float32bits(u) - root
	halvings, f := float32(32-int32(b>>23)), math.Float32frombits(b&fraction+root)-1
	p := float32(f*-0.17574531) + 0.28319294
	p = float32(f*p) - 0.29669574
	p = float32(f*p) + 0.33176977
	p = float32(f*p) - 0.399441
	p = float32(f*p) + 0.50002295
	p = float32(f*p) - 0.6666734
	p = float32(f*p) + 0.99999994
	p = float32(f*p) - 2
	return float32(halvings*(2*math.Ln2)) + float32(f*p)
}

// turned32 returns the cosine and sine of t, from -pi/4 to pi/4, by such polynomials.
func turned32(t float32) (cos, sin float32) {
	z := -t * t
	p := float32(z*0.0001958789) + 0.008332748
	p = float32(z*p) + 0.16666665
	sin = t + float32(t*float32(z*p))
	p = float32(z*2.4463788e-05) + 0.0013887589
	p = float32(z*p) + 0.04166665
	p = float32(z*p) + 0.5
	cos = float32(z*p) + 1
	return cos, sin
}
