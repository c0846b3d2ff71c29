package matrix

import (
	_ "embed"

	"lockstep/host"
	"lockstep/spmd"
)

// The command writes kernels_spmd.go: the kernels in CUDA C++, and the functions that launch them.
//
//go:generate go run lockstep/spmd/spmdgen

// bits is a type of each size.
type bits interface {
	uint8 | spmd.F16 | uint32 | uint64 | complex128
}

//spmd:kernel
func copyRows[T bits](i, j int, to, from []T, toStride, fromStride int) {
	to[i*toStride+j] = from[i*fromStride+j]
}

//go:embed transpose.cu
var transposeSource string

var (
	transpose8   = spmd.NewKernel("transpose<uint8_t>", transposeSource, transposeOnHost[uint8])
	transpose16  = spmd.NewKernel("transpose<f16>", transposeSource, transposeOnHost[spmd.F16])
	transpose32  = spmd.NewKernel("transpose<uint32_t>", transposeSource, transposeOnHost[uint32])
	transpose64  = spmd.NewKernel("transpose<uint64_t>", transposeSource, transposeOnHost[uint64])
	transpose128 = spmd.NewKernel("transpose<pair>", transposeSource, transposeOnHost[complex128])
)

func launchTranspose[T bits](s *spmd.Stream, dst, src View[T]) error {
	k := transpose128
	switch any(*new(T)).(type) {
	case uint8:
		k = transpose8
	case spmd.F16:
		k = transpose16
	case uint32:
		k = transpose32
	case uint64:
		k = transpose64
	}
	over := func(n int) int { return (n + 31) / 32 }
	g := spmd.Grid{Blocks: [3]int{over(src.Cols), min(over(src.Rows), 65_535), 1}, Threads: [3]int{32, 8, 1}}
	return k.Launch(s, g, dst.Arg(), spmd.I64(dst.Stride), src.Arg(), spmd.I64(src.Stride), spmd.I64(src.Rows), spmd.I64(src.Cols))
}

// tile is how many rows and columns are turned at a time, so that both are in the nearest cache.
const tile = 32

func transposeOnHost[T bits](a spmd.Args) error {
	to, from := spmd.ArgSlice[T](a, 0), spmd.ArgSlice[T](a, 2)
	toStride, fromStride, rows, cols := a.I64(1), a.I64(3), a.I64(4), a.I64(5)
	host.Parallel((cols+tile-1)/tile, max(1, (1<<16)/(tile*rows)), func(lo, hi int) {
		for left := lo * tile; left < min(hi*tile, cols); left += tile {
			for top := 0; top < rows; top += tile {
				for j := left; j < min(left+tile, cols); j++ {
					for i := top; i < min(top+tile, rows); i++ {
						to[j*toStride+i] = from[i*fromStride+j]
					}
				}
			}
		}
	})
	return nil
}
