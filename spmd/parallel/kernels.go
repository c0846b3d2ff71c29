package parallel

import (
	"encoding/binary"
	"fmt"
	"math"

	"lockstep/host"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd"
	"lockstep/spmd/gokernel"
	"lockstep/spmd/internal/own"
	"lockstep/spmd/library"
)

//go:generate go run lockstep/spmd/spmdgen

// squares adds up the squares of x, which are exact.
//
//spmd:kernel
//spmd:host squaresOnHost
//spmd:tolerance 1e-13
func squares(i int, x []float32) (sum float64) {
	v := float64(x[i])
	return v * v
}

func squaresOnHost(lo, hi int, x []float32) float64 { return host.SumSquares(x[lo:hi]) }

// root makes the norm of a sum of squares.
//
//spmd:kernel
func root(i int, norm *float32, sum *float64) { *norm = float32(math.Sqrt(*sum)) }

// scale makes the norm of x limit if it is above.
//
//spmd:kernel loop
//spmd:host scaleOnHost
func scale(i int, x []float32, norm *float32, limit float64) {
	if float64(*norm) <= limit {
		return
	}
	x[i] *= float32(limit / float64(*norm))
}

func scaleOnHost(lo, hi int, x []float32, norm *float32, limit float64) {
	if !(float64(*norm) <= limit) { // NaN
		host.Scale(x[lo:hi], float32(limit/float64(*norm)))
	}
}

//spmd:kernel
func sumOf(i int, x []float64) (sum float64) { return x[i] }

//spmd:kernel
//spmd:host addToOnHost
func addTo(i int, dst, src []float32) { dst[i] += src[i] }

func addToOnHost(lo, hi int, dst, src []float32) { host.Axpy(dst[lo:hi], 1, src[lo:hi]) }

// hashOf makes a hash of b that depends on every byte and its place. The words are added modulo
// 2^64, in any order.
//
//spmd:kernel
//spmd:host hashOnHost
func hashOf(i int, b []uint8) (sum uint64) {
	at, word := 8*i, uint64(0)
	if at+8 <= len(b) {
		w := b[at : at+8]
		word = uint64(w[0]) | uint64(w[1])<<8 | uint64(w[2])<<16 | uint64(w[3])<<24 | uint64(w[4])<<32 |
			uint64(w[5])<<40 | uint64(w[6])<<48 | uint64(w[7])<<56
	} else {
		word = uint64(len(b)) << 56 // and up to 7
		for k := at; k < len(b); k++ {
			word |= uint64(b[k]) << (8 * uint(k-at))
		}
	}
	return elem.MixBits(word + elem.MixBits(uint64(i)))
}

func hashOnHost(lo, hi int, b []uint8) (sum uint64) {
	i := lo
	for ; i < min(hi, len(b)/8); i++ {
		sum += elem.MixBits(binary.LittleEndian.Uint64(b[8*i:]) + elem.MixBits(uint64(i)))
	}
	for ; i < hi; i++ {
		sum += hashOf(i, b)
	}
	return sum
}

// hashWord makes the same hash of bytes that are words. last is the last that hashOf adds behind
// them.
//
//spmd:kernel
//spmd:host hashWordsOnHost
func hashWord(i int, words []uint64, last uint64) (sum uint64) {
	if i == 0 {
		sum = last
	}
	return sum + elem.MixBits(words[i]+elem.MixBits(uint64(i)))
}

func hashWordsOnHost(lo, hi int, words []uint64, last uint64) (sum uint64) {
	if lo == 0 {
		sum = last
	}
	for i, w := range words[lo:hi] {
		sum += elem.MixBits(w + elem.MixBits(uint64(lo+i)))
	}
	return sum
}

// hash enqueues on s: sum[0] = a hash of the bytes of b.
func hash(s *spmd.Stream, sum spmd.Buffer[uint64], b spmd.Buffer[uint8]) error {
	if n := b.Len(); n > 0 && n%8 == 0 && b.Address()%8 == 0 {
		return launchHashWord(s, sum, n/8, spmd.View[uint64](b), elem.MixBits(uint64(n)<<56+elem.MixBits(uint64(n/8))))
	}
	return launchHashOf(s, sum, b.Len()/8+1, b)
}

// ClipNorm enqueues on s: norm[0] = the Euclidean norm of g. If that is above maxNorm, g is scaled
// so that its norm is maxNorm. maxNorm <= 0 only measures. norm has one element. The result is the
// same on ranks with the same g.
func ClipNorm(s *spmd.Stream, g spmd.Buffer[float32], maxNorm float64, norm spmd.Buffer[float32]) error {
	if norm.Len() != 1 {
		return fmt.Errorf("%s: parallel.ClipNorm: norm has %d elements, the norm 1", ccall.At(), norm.Len())
	}
	if err := library.Apart("parallel.ClipNorm", library.Writes("g", g), library.Writes("norm", norm)); err != nil {
		return err
	}
	n := g.Len()
	sum, err := own.Scratch[float64](s, gokernel.MostParts) // behind what the reduction uses
	if err != nil {
		return err
	}
	if err := launchSquares(s, sum, n, g); err != nil {
		return err
	}
	if err := launchRoot(s, 1, norm, sum); err != nil || maxNorm <= 0 {
		return err
	}
	return launchScale(s, n, g, norm, maxNorm)
}
