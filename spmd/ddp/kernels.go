package ddp

import (
	_ "embed"
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"lockstep/host"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/internal/mix"
	"lockstep/spmd"
)

// The kernels: kernels.cu, and beside it what the host does.

//go:embed kernels.cu
var source string

const (
	// mostParts is how many blocks of a kernel sum a part each.
	mostParts = 1024
	// grain is the least number of elements that is worth a goroutine.
	grain = 1 << 16
)

// sumGrid is a grid for a sum over n elements.
func sumGrid(n int) spmd.Grid { return spmd.Cover1D(min(n, mostParts*256), 256) }

// loopGrid is a grid whose threads loop over n elements.
func loopGrid(n int) spmd.Grid { return spmd.Cover1D(min(n, 1<<20), 256) }

var sumSquares = spmd.NewKernel("sum_squares_f32", source, func(a spmd.Args) error {
	part := spmd.ArgSlice[float64](a, 0)
	clear(part)
	part[0] = host.SumSquaresParallel(spmd.ArgSlice[float32](a, 1))
	return nil
})

var clipScale = spmd.NewKernel("clip_scale_f32", source, func(a spmd.Args) error {
	g, limit, part, norm := spmd.ArgSlice[float32](a, 0), a.F64(2), spmd.ArgSlice[float64](a, 3), spmd.ArgSlice[float32](a, 5)
	total := math.Sqrt(part[0])
	norm[0] = float32(total)
	if limit <= 0 || total <= limit {
		return nil
	}
	scale := float32(limit / total)
	host.Parallel(len(g), grain, func(lo, hi int) { host.Scale(g[lo:hi], scale) })
	return nil
})

// ClipNorm enqueues on s: norm[0] = the Euclidean norm of g. Where that is above maxNorm, g is
// scaled so that its norm is maxNorm. maxNorm <= 0 only measures. norm has one element. The
// result is the same on ranks whose g are.
func ClipNorm(s *spmd.Stream, g spmd.Buffer[float32], maxNorm float64, norm spmd.Buffer[float32]) error {
	if norm.Len() != 1 {
		return fmt.Errorf("%s: ClipNorm: norm has %d elements, the norm 1", ccall.At(), norm.Len())
	}
	grid := sumGrid(g.Len())
	parts, err := scratch(s, elem.Float64, grid.Blocks[0])
	if err != nil {
		return err
	}
	if err := sumSquares.Launch(s, grid, parts, g.Arg(), spmd.I64(g.Len())); err != nil {
		return err
	}
	return clipScale.Launch(s, loopGrid(g.Len()), g.Arg(), spmd.I64(g.Len()), spmd.F64(maxNorm), parts, spmd.I32(grid.Blocks[0]), norm.Arg())
}

var sumParts = spmd.NewKernel("sum_parts_f64", source, func(a spmd.Args) error {
	sum := 0.0
	for _, x := range spmd.ArgSlice[float64](a, 1)[:a.I32(2)] {
		sum += x
	}
	spmd.ArgSlice[float64](a, 0)[0] = sum
	return nil
})

var addTo = spmd.NewKernel("add_f32", source, func(a spmd.Args) error {
	dst, src := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1)
	host.Parallel(len(dst), grain, func(lo, hi int) {
		for i, x := range src[lo:hi] {
			dst[lo+i] += x
		}
	})
	return nil
})

var hashPart = spmd.NewKernel("hash_part_u64", source, func(a spmd.Args) error {
	part, b := spmd.ArgSlice[uint64](a, 0), spmd.ArgSlice[uint8](a, 1)
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

var hashFinal = spmd.NewKernel("hash_final_u64", source, func(a spmd.Args) error {
	spmd.ArgSlice[uint64](a, 0)[0] = spmd.ArgSlice[uint64](a, 1)[0] + mix.Bits(uint64(a.I64(3)))
	return nil
})

// hash enqueues on s: sum[0] = a hash of the bytes of b.
func hash(s *spmd.Stream, sum spmd.Buffer[uint64], b spmd.Buffer[uint8]) error {
	grid := sumGrid(b.Len() / 8)
	parts, err := scratch(s, elem.Uint64, grid.Blocks[0])
	if err != nil {
		return err
	}
	if err := hashPart.Launch(s, grid, parts, b.Arg(), spmd.I64(b.Len())); err != nil {
		return err
	}
	return hashFinal.Launch(s, spmd.Cover1D(1, 256), sum.Arg(), parts, spmd.I32(grid.Blocks[0]), spmd.I64(b.Len()))
}
