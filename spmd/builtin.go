package spmd

import (
	_ "embed"
	"math"
	"sync/atomic"
	"unsafe"

	"lockstep/host"
	"lockstep/internal/elem"
	"lockstep/internal/kernels"
	"lockstep/internal/mix"
)

// The framework's own kernels: kernels.cu, and beside it what the host does.

//go:embed kernels.cu
var cudaSource string

// cudaHeader is "spmd.cuh", which every CUDA source may include.
//
//go:embed spmd.cuh
var cudaHeader string

func init() { kernels.Headers["spmd.cuh"] = cudaHeader }

const (
	// mostParts is how many blocks of a kernel sum a part each.
	mostParts = 1024
	// grain is the least number of elements that is worth a goroutine.
	grain = 1 << 16
)

// sumGrid is a grid for a sum over n elements.
func sumGrid(n int) Grid { return Cover1D(min(n, mostParts*256), 256) }

// loopGrid is a grid whose threads loop over n elements.
func loopGrid(n int) Grid { return Cover1D(min(n, 1<<20), 256) }

var fillKernel = NewKernel("fill_u64", cudaSource, func(a Args) error {
	fill(ArgSlice[uint64](a, 0), a.U64(2))
	return nil
})

var uniform = NewKernel("uniform_f32", cudaSource, func(a Args) error {
	dst, seed, offset := ArgSlice[float32](a, 0), a.U64(2), a.U64(3)
	host.Parallel(len(dst), grain, func(lo, hi int) {
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

// UniformBits returns 24 random bits for place i of the sequence that seed names.
func UniformBits(seed, i uint64) uint32 { return uint32(mix.Bits(mix.Bits(seed)+i) >> 40) }

var sumSquares = NewKernel("sum_squares_f32", cudaSource, func(a Args) error {
	part := ArgSlice[float64](a, 0)
	clear(part)
	part[0] = host.SumSquaresParallel(ArgSlice[float32](a, 1))
	return nil
})

var clipScale = NewKernel("clip_scale_f32", cudaSource, func(a Args) error {
	g, limit, part, norm := ArgSlice[float32](a, 0), a.F64(2), ArgSlice[float64](a, 3), ArgSlice[float32](a, 5)
	total := math.Sqrt(part[0])
	norm[0] = float32(total)
	if limit <= 0 || total <= limit {
		return nil
	}
	scale := float32(limit / total)
	host.Parallel(len(g), grain, func(lo, hi int) { host.Scale(g[lo:hi], scale) })
	return nil
})

// clipNorm is ddp.ClipNorm.
func clipNorm(s *Stream, g Buffer[float32], maxNorm float64, norm Buffer[float32]) error {
	if norm.n != 1 {
		return lengthError("ClipNorm", "norm", norm.n, "the norm", 1)
	}
	grid := sumGrid(g.n)
	parts, err := scratchOf[float64](s, grid.Blocks[0])
	if err != nil {
		return err
	}
	if err := sumSquares.Launch(s, grid, parts, g.Arg(), I64(g.n)); err != nil {
		return err
	}
	return clipScale.Launch(s, loopGrid(g.n), g.Arg(), I64(g.n), F64(maxNorm), parts, I32(grid.Blocks[0]), norm.Arg())
}

// scratchOf is the stream's scratch memory as an argument of n elements.
func scratchOf[T Stored](s *Stream, n int) (Arg, error) {
	p, err := s.scratch(n * sizeOf[T]())
	return Arg{ptr: p, n: n, typ: elem.Of[T](), kind: bufferArg}, err
}

var hashPart = NewKernel("hash_part_u64", cudaSource, func(a Args) error {
	part, b := ArgSlice[uint64](a, 0), ArgSlice[uint8](a, 1)
	words := len(b) / 8
	w := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), words)
	var whole atomic.Uint64
	host.Parallel(words, grain, func(lo, hi int) {
		sum := uint64(0)
		for i := lo; i < hi; i++ {
			sum += mix.Bits(w[i] + mix.Bits(uint64(i)))
		}
		whole.Add(sum)
	})
	for i, x := range b[words*8:] {
		whole.Add(mix.Bits(uint64(x) + mix.Bits(uint64(words*8+i))))
	}
	clear(part)
	part[0] = whole.Load()
	return nil
})

var hashFinal = NewKernel("hash_final_u64", cudaSource, func(a Args) error {
	ArgSlice[uint64](a, 0)[0] = ArgSlice[uint64](a, 1)[0] + mix.Bits(uint64(a.I64(3)))
	return nil
})

// hash enqueues on s: sum[0] = a hash of the bytes of b.
func hash(s *Stream, sum Buffer[uint64], b Buffer[uint8]) error {
	grid := sumGrid(b.n / 8)
	parts, err := scratchOf[uint64](s, grid.Blocks[0])
	if err != nil {
		return err
	}
	if err := hashPart.Launch(s, grid, parts, b.Arg(), I64(b.n)); err != nil {
		return err
	}
	return hashFinal.Launch(s, Cover1D(1, 256), sum.Arg(), parts, I32(grid.Blocks[0]), I64(b.n))
}
