package main

import (
	_ "embed"
	"math"
	"math/big"
	"sync"

	"lockstep/host"
	"lockstep/spmd"
)

//go:embed exact.cu
var exactSource string

// exact is a sum without rounding. It has limbs words of 32 bits. The lowest is worth 2^-149, and
// every float32 is a multiple of that. Behind them it counts NaN, infinities and negative
// infinities. Integers add up to the same in any order.
//
// Source: Neal, Fast exact summation using small and large superaccumulators (arXiv:1505.05571),
// the small one.
type exact [words]int64

const (
	limbs = 10
	words = limbs + 3

	exactThreads = 256 // of a block, as in exact.cu
	exactEach    = 64  // elements that are worth a thread
	exactBlocks  = 1024

	// patience is how many numbers may be added between two carries: a word gains less than
	// 2^32 by each.
	patience = 1 << 30
)

// add adds numbers.
func (e *exact) add(x []float32) {
	for len(x) > 0 {
		n := min(len(x), patience)
		for _, v := range x[:n] {
			bits := math.Float32bits(v)
			exponent, fraction := bits>>23&0xff, bits&0x7fffff
			if exponent == 0xff {
				at := limbs
				if fraction == 0 {
					at += 1 + int(bits>>31)
				}
				e[at]++
				continue
			}
			m := int64(fraction)
			if exponent > 0 {
				exponent--
				m |= 0x800000
			}
			m <<= exponent % 32
			if bits>>31 == 1 {
				m = -m
			}
			low := exponent / 32
			e[low] += m & 0xffffffff
			e[low+1] += m >> 32
		}
		e.carry()
		x = x[n:]
	}
}

// carry leaves 32 bits in every limb but the highest, which has the sign.
func (e *exact) carry() {
	for i := range limbs - 1 {
		e[i+1] += e[i] >> 32
		e[i] &= 0xffffffff
	}
}

// value returns the number, rounded once to float64, ties to even.
func (e *exact) value() float64 {
	nan, inf, negInf := e[limbs], e[limbs+1], e[limbs+2]
	switch {
	case nan > 0 || inf > 0 && negInf > 0:
		return math.NaN()
	case inf > 0:
		return math.Inf(1)
	case negInf > 0:
		return math.Inf(-1)
	}
	total := new(big.Int)
	for i := limbs - 1; i >= 0; i-- {
		total.Lsh(total, 32).Add(total, big.NewInt(e[i]))
	}
	rounded := new(big.Float).SetPrec(53).SetMode(big.ToNearestEven).SetInt(total)
	// float64 holds it: it is at least 2^-149 and at most 2^200.
	v, _ := rounded.SetMantExp(rounded, -149).Float64()
	return v
}

var exactKernel = spmd.NewKernel("exact_f32", exactSource, func(a spmd.Args) error {
	out, x := (*exact)(spmd.ArgSlice[int64](a, 0)), spmd.ArgSlice[float32](a, 3)
	var total exact
	var mu sync.Mutex
	host.Parallel(len(x), 1<<16, func(lo, hi int) {
		var part exact
		part.add(x[lo:hi])
		mu.Lock()
		defer mu.Unlock()
		for i := range total {
			total[i] += part[i]
		}
	})
	total.carry()
	*out = total
	return nil
}, spmd.KernelOptions{Scratch: []int{1, 2}})

//go:generate go run lockstep/spmd/spmdgen

// widenAll turns x[i], which is k / 2^24, into the number widen(k).
//
//spmd:kernel
func widenAll(i int, x []float32) { x[i] = widen(uint32(x[i] * (1 << 24))) }

// widen turns 24 random bits into a number with a random sign and a magnitude between
// 2^-48 and 2^49.
func widen(k uint32) float32 {
	h := k * 0x9e3779b1
	return math.Float32frombits(h&0x80000000 | (79+(h>>23&0xff)%97)<<23 | h&0x7fffff)
}
