// Package random fills buffers with random numbers on the device that they are on. A number depends on the seed and its
// place alone: element i of an array has the same whichever rank holds it, on GPUs and on the host. There is no state.
//
// A rank that holds the elements from first on passes first as offset:
//
//	part := spmd.ShardOf(n, w.Rank(), w.Size())
//	err := random.Normal(s, x, w.Seed(), part.Off)
package random

import (
	"math"

	"lockstep/spmd"
)

// Float is the set of types that random numbers are made of.
type Float interface{ float32 | float64 }

// The command writes kernels_spmd.go: the kernels in CUDA C++, and the functions that launch them.
//
//go:generate go run lockstep/spmd/spmdgen

// Uniform enqueues dst[i] = the number at place offset+i of the sequence that seed names, from 0 to 1, 1 excluded. As
// NumPy's random. Those in float32 are spmd.Uniform's: those in float64, with 24 bits.
func Uniform[T Float](s *spmd.Stream, dst spmd.Buffer[T], seed uint64, offset int) error {
	if b, ok := any(dst).(spmd.Buffer[float32]); ok {
		return spmd.Uniform(s, b, seed, offset)
	}
	return launchUniform64(s, dst.Len(), spmd.View[float64](dst), seed, offset)
}

// Normal enqueues dst[i] = the number at place offset+i of another sequence that seed names, normally distributed with mean
// 0 and variance 1. As NumPy's standard_normal. Those in float32 are other numbers than those in float64.
// Source: Box, Muller: A note on the generation of random normal deviates (1958).
func Normal[T Float](s *spmd.Stream, dst spmd.Buffer[T], seed uint64, offset int) error {
	pairs := (offset+dst.Len()+1)/2 - offset/2
	if dst.Len() == 0 {
		pairs = 0
	}
	if b, ok := any(dst).(spmd.Buffer[float32]); ok {
		return launchNormal32(s, pairs, b, seed, offset)
	}
	return launchNormal64(s, pairs, spmd.View[float64](dst), seed, offset)
}

//spmd:kernel
func uniform64(i int, dst []float64, seed uint64, offset int) {
	dst[i] = float64(spmd.RandomBits(seed, uint64(offset+i))>>11) / (1 << 53)
}

// other makes the sequence of Normal another than that of Uniform.
const other = 0x6e6f726d616c

// normal64 makes two numbers of a pair of places, the first of which is even.
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

// log64 is the logarithm of a number from 2^-53 to 1, by the series of that of (1+s)/(1-s). It uses what has the same bits
// everywhere, as the functions below do.
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

// turned64 is the cosine and sine of t, from -pi/4 to pi/4, plus quarters of a turn.
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

// normal32 is normal64 with one word of random bits for a pair.
//
//spmd:kernel
func normal32(i int, dst []float32, seed uint64, offset int) {
	pair := offset/2 + i
	at := 2*pair - offset
	bits := spmd.RandomBits(seed^other, uint64(pair))
	u, v := float32(bits>>32)+1, uint32(bits)
	radius := float32(math.Sqrt(float64(-2 * log32(u/(1<<32)))))
	const rest = 1 << 30
	x, y := turned32(v>>30, (float32(v&(rest-1))/rest-0.5)*(math.Pi/2))
	if at >= 0 && at < len(dst) {
		dst[at] = radius * x
	}
	if at+1 < len(dst) {
		dst[at+1] = radius * y
	}
}

// log32 is log64 of a number from 2^-32 to 1. Conversions of products keep Go from adding to them unrounded.
func log32(x float32) float32 {
	const fraction = 1<<23 - 1
	b := math.Float32bits(x)
	e, m := float32(int32(b>>23)-127), math.Float32frombits(b&fraction|127<<23)
	if m > math.Sqrt2 {
		m, e = m/2, e+1
	}
	s := (m - 1) / (m + 1)
	z := s * s
	p := float32(z*(1.0/9)) + 1.0/7
	p = float32(z*p) + 1.0/5
	p = float32(z*p) + 1.0/3
	p = float32(z*p) + 1
	return float32(e*math.Ln2) + float32(2*s*p)
}

func turned32(quarters uint32, t float32) (x, y float32) {
	z := -t * t
	p := float32(z*(1.0/362_880)) + 1.0/5040
	p = float32(z*p) + 1.0/120
	p = float32(z*p) + 1.0/6
	sin := t + float32(t*float32(z*p))
	p = float32(z*(1.0/3_628_800)) + 1.0/40_320
	p = float32(z*p) + 1.0/720
	p = float32(z*p) + 1.0/24
	p = float32(z*p) + 1.0/2
	cos := float32(z*p) + 1
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
