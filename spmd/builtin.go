package spmd

import (
	_ "embed"

	"lockstep/internal/elem"
	"lockstep/spmd/internal/kernels"
)

// The framework's own kernels: kernels.cu, and beside it what the host does.

//go:embed kernels.cu
var cudaSource string

// cudaHeader is "spmd.cuh", which every CUDA source may include.
//
//go:embed spmd.cuh
var cudaHeader string

func init() { kernels.Headers["spmd.cuh"] = cudaHeader }

var fillKernel = NewKernel("fill_bytes", cudaSource, func(a Args) error {
	dst, words := ArgSlice[uint8](a, 0), [2]uint64{a.U64(2), a.U64(3)}
	for i := range dst {
		dst[i] = uint8(words[i/8%2] >> (8 * (i % 8)))
	}
	return nil
})

// RandomBits returns 64 random bits for place i of the sequence that seed names.
func RandomBits(seed, i uint64) uint64 { return elem.MixBits(elem.MixBits(seed) + i) }

// UniformBits returns 24 random bits for place i of the sequence that seed names: the upper ones of
// RandomBits.
func UniformBits(seed, i uint64) uint32 { return uint32(RandomBits(seed, i) >> 40) }
