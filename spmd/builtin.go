package spmd

import (
	_ "embed"

	"lockstep/host"
	"lockstep/internal/kernels"
	"lockstep/internal/mix"
	hostexec "lockstep/spmd/internal/exec/host"
)

// The framework's own kernels: kernels.cu, and beside it what the host does.

//go:embed kernels.cu
var cudaSource string

// cudaHeader is "spmd.cuh", which every CUDA source may include.
//
//go:embed spmd.cuh
var cudaHeader string

func init() { kernels.Headers["spmd.cuh"] = cudaHeader }

// loopGrid is a grid whose threads loop over n elements.
func loopGrid(n int) Grid { return Cover1D(min(n, 1<<20), 256) }

var fillKernel = NewKernel("fill_bytes", cudaSource, func(a Args) error {
	dst, words := ArgSlice[uint8](a, 0), [2]uint64{a.U64(2), a.U64(3)}
	for i := range dst {
		dst[i] = uint8(words[i/8%2] >> (8 * (i % 8)))
	}
	return nil
})

var uniform = NewKernel("uniform_f32", cudaSource, func(a Args) error {
	dst, seed, offset := ArgSlice[float32](a, 0), a.U64(2), a.U64(3)
	host.Parallel(len(dst), hostexec.Grain, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			dst[i] = float32(UniformBits(seed, offset+uint64(i))) / (1 << 24)
		}
	})
	return nil
})

// Uniform enqueues on s: dst[i] = UniformBits(seed, offset+i) / 2^24, which is a
// number from 0 to 1, 1 excluded, that depends on the seed and its place alone,
// not on who holds it.
func Uniform(s *Stream, dst Buffer[float32], seed uint64, offset int) error {
	return uniform.Launch(s, loopGrid(dst.n), dst.Arg(), I64(dst.n), U64(seed), U64(uint64(offset)))
}

// RandomBits returns 64 random bits for place i of the sequence that seed names.
func RandomBits(seed, i uint64) uint64 { return mix.Bits(mix.Bits(seed) + i) }

// UniformBits returns 24 random bits for place i of the sequence that seed names: the upper ones of RandomBits.
func UniformBits(seed, i uint64) uint32 { return uint32(RandomBits(seed, i) >> 40) }
