package blas

import (
	_ "embed"

	"lockstep/host"
	"lockstep/spmd"
)

// The command writes kernels_spmd.go: the kernels in CUDA C++, and the functions that launch them.
//
//go:generate go run lockstep/spmd/spmdgen

// sized has a type of each size.
type sized interface {
	uint8 | spmd.F16 | uint32 | uint64 | complex128
}

//spmd:kernel
func copyRows[T sized](i, j int, to, from []T, toStride, fromStride int) {
	to[i*toStride+j] = from[i*fromStride+j]
}

// tile is the number of rows and columns that are turned at a time. Both fit into the nearest
// memory.
const tile = 32

// transposeTile sets to[j·toStride+i] = from[i·fromStride+j] for the rows and columns of one tile.
//
//spmd:kernel rows unset
//spmd:host bytesOnHost
func transposeTile(i int, to, from []uint8, toStride, fromStride, rows, cols int) {
	var turned [tile][tile + 1]uint8
	across := uint32((cols + tile - 1) / tile) // GPUs divide numbers of 32 bits faster
	top, left := int(uint32(i)/across)*tile, int(uint32(i)%across)*tile
	for e := range tile * tile {
		y, x := uint32(e)/tile, uint32(e)%tile
		if r, c := top+int(y), left+int(x); r < rows && c < cols {
			turned[y][x] = from[r*fromStride+c]
		}
	}
	for e := range tile * tile {
		y, x := uint32(e)%tile, uint32(e)/tile
		if r, c := top+int(y), left+int(x); r < rows && c < cols {
			to[c*toStride+r] = turned[y][x]
		}
	}
}

// transposeSource has the kernels for elements of more than a byte.
//
//go:embed transpose.cu
var transposeSource string

var (
	transpose16  = spmd.NewKernel("transpose<f16>", transposeSource, transposeOnHost[spmd.F16])
	transpose32  = spmd.NewKernel("transpose<uint32_t>", transposeSource, transposeOnHost[uint32])
	transpose64  = spmd.NewKernel("transpose<uint64_t>", transposeSource, transposeOnHost[uint64])
	transpose128 = spmd.NewKernel("transpose<pair>", transposeSource, transposeOnHost[complex128])
)

func launchTranspose[T sized](s *spmd.Stream, dst, src Matrix[T]) error {
	across, down := (src.Cols+tile-1)/tile, (src.Rows+tile-1)/tile
	var k *spmd.Kernel
	switch any(*new(T)).(type) {
	case uint8:
		return launchTransposeTile(s, down*across, spmd.View[uint8](dst.Buffer),
			spmd.View[uint8](src.Buffer), dst.Stride, src.Stride, src.Rows, src.Cols)
	case spmd.F16:
		k = transpose16
	case uint32:
		k = transpose32
	case uint64:
		k = transpose64
	default:
		k = transpose128
	}
	g := spmd.Grid{Blocks: [3]int{across, min(down, 65_535), 1}, Threads: [3]int{tile, 8, 1}}
	return k.Launch(s, g, dst.Arg(), src.Arg(), spmd.I64(dst.Stride), spmd.I64(src.Stride),
		spmd.I64(src.Rows), spmd.I64(src.Cols))
}

func transposeOnHost[T sized](a spmd.Args) error {
	to, from, rows, cols := spmd.ArgSlice[T](a, 0), spmd.ArgSlice[T](a, 1), a.I64(4), a.I64(5)
	host.Parallel((rows+tile-1)/tile*((cols+tile-1)/tile), 64, func(lo, hi int) {
		tilesOnHost(lo, hi, to, from, a.I64(2), a.I64(3), rows, cols)
	})
	return nil
}

// tilesOnHost transposes tiles lo to hi-1.
func tilesOnHost[T sized](lo, hi int, to, from []T, toStride, fromStride, rows, cols int) {
	across := (cols + tile - 1) / tile
	for i := lo; i < hi; i++ {
		top, left := i/across*tile, i%across*tile
		for c := left; c < min(left+tile, cols); c++ {
			row := to[c*toStride+top:][:min(tile, rows-top)]
			for r := range row {
				row[r] = from[(top+r)*fromStride+c]
			}
		}
	}
}

func bytesOnHost(lo, hi int, to, from []uint8, toStride, fromStride, rows, cols int) {
	tilesOnHost(lo, hi, to, from, toStride, fromStride, rows, cols)
}
