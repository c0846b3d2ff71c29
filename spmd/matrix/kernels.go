package matrix

import "lockstep/spmd"

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

// tile is how many rows and columns are turned at a time, so that both are in the nearest memory.
const tile = 32

// transposeTile sets to[j·toStride+i] = from[i·fromStride+j] for the rows and columns of one tile.
//
//spmd:kernel rows unset
func transposeTile[T bits](i int, to, from []T, toStride, fromStride, rows, cols int) {
	var turned [tile][tile + 1]T
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

func launchTranspose[T bits](s *spmd.Stream, dst, src View[T]) error {
	tiles := (src.Rows + tile - 1) / tile * ((src.Cols + tile - 1) / tile)
	return launchTransposeTile(s, tiles, dst.Buffer, src.Buffer, dst.Stride, src.Stride, src.Rows, src.Cols)
}
