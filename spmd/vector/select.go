package vector

import (
	_ "embed"
	"fmt"
	"math"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/spmd"
	"lockstep/spmd/library"
)

var (
	//go:embed select.cu
	selectSource string
	//go:embed histogram.cu
	histogramSource string
)

// selector selects elements of a type. It has the kernels of the unsigned integers of the same
// size.
type selector struct {
	tile           int // elements that a block selects from
	clear, compact *spmd.Kernel
	library        *library.Function
}

var selectors = []*selector{newSelector[int32](), newSelector[uint32](), newSelector[int64](),
	newSelector[uint64](), newSelector[float32](), newSelector[float64]()}

func newSelector[T Number]() *selector {
	source := chainSource + selectSource
	bytes := int(unsafe.Sizeof(*new(T)))
	c := &selector{tile: other.tile(bytes), clear: device("clear_words", source)}
	c.compact = device(fmt.Sprintf("compact<uint%d_t>", 8*bytes), source)
	c.library = library.New("select", c.onGPU, func(a spmd.Args) error {
		dst, x, n := spmd.ArgSlice[T](a, 0), spmd.ArgSlice[T](a, 2), 0
		for i, keep := range spmd.ArgSlice[uint8](a, 3) {
			if keep != 0 {
				dst[n] = x[i]
				n++
			}
		}
		spmd.ArgSlice[int64](a, 1)[0] = int64(n)
		return nil
	}, c.clear, c.compact).OnlyKernels().Writes(0b11)
	return c
}

// sizes are the tiles of n elements, and the words that they need.
func (c *selector) sizes(n int) (tiles, words int) {
	tiles = max(1, over(n, c.tile))
	return tiles, chained(tiles, other.group, 8)
}

func (c *selector) onGPU(call library.Call) error {
	tiles, words := c.sizes(call.I64(4))
	if err := call.Launch(c.clear, clearGrid(call, words, threads), call.WorkspaceArg(), spmd.I64(words)); err != nil {
		return err
	}
	return call.Launch(c.compact, after(tiles, 0), call.Args[0], call.Args[1], call.Args[2], call.Args[3],
		call.Args[4], call.WorkspaceArg(), spmd.I64(tiles))
}

// Select enqueues dst = the elements x[i] for which keep[i] is not 0, in their order, and count[0]
// = their number. The elements of dst behind them are undefined: it is as long as x, and may be x.
// As NumPy's x[keep].
func Select[T Number](
	s *spmd.Stream, dst spmd.Buffer[T], count spmd.Buffer[int64], x spmd.Buffer[T], keep spmd.Buffer[uint8],
) error {
	if err := same("vector.Select", dst, x); err != nil {
		return err
	}
	if keep.Len() != x.Len() {
		return fmt.Errorf("%s: vector.Select: %d flags of %d elements", ccall.At(), keep.Len(), x.Len())
	}
	if err := one("vector.Select", "count", count); err != nil {
		return err
	}
	if err := library.Apart("vector.Select", library.Writes("dst", dst), library.Writes("count", count),
		library.Reads("x", x).MayBe(0), library.Reads("keep", keep)); err != nil {
		return err
	}
	c := selectors[typeOf[T]()]
	_, words := c.sizes(x.Len())
	return c.library.Call(s, 8*words, dst.Arg(), count.Arg(), x.Arg(), keep.Arg(), spmd.I64(x.Len()))
}

// counter counts elements of a type in bins.
type counter struct {
	each         int // elements that a block has at least
	clear, count *spmd.Kernel
	library      *library.Function
}

var counters = []*counter{newCounter[int32](), newCounter[uint32](), newCounter[int64](),
	newCounter[uint64](), newCounter[float32](), newCounter[float64]()}

func newCounter[T Number]() *counter {
	source := chainSource + histogramSource
	c := &counter{each: 4 * other.tile(int(unsafe.Sizeof(*new(T))))}
	const unfused = "--fmad=false"
	c.clear, c.count = device("clear_words", source, unfused),
		device("histogram<"+cTypes[typeOf[T]()]+">", source, unfused)
	c.library = library.New("histogram", c.onGPU, func(a spmd.Args) error {
		counts, lo, hi, scale, more := spmd.ArgSlice[int64](a, 0), a.F64(3), a.F64(4), a.F64(5), a.F64(6)
		clear(counts)
		bins := len(counts)
		step, first, last := (hi-lo)/float64(bins), edge[T](lo), edge[T](hi)
		begin := func(b int) float64 {
			switch {
			case b == bins:
				return last
			case step > 0:
				return edge[T](float64(float64(b)*step) + lo)
			}
			return edge[T](float64(float64(b)/float64(bins)*(hi-lo)) + lo)
		}
		for _, v := range spmd.ArgSlice[T](a, 1) {
			v := float64(v)
			if !(v >= first && v <= last) {
				continue
			}
			at, bin := (v-lo)*more*scale, bins-1
			if at < float64(bins) {
				bin = max(0, int(at))
			}
			if v < begin(bin) {
				bin--
			}
			if bin < bins-1 && v >= begin(bin+1) {
				bin++
			}
			counts[bin]++
		}
		return nil
	}, c.clear, c.count).OnlyKernels().Writes(0b1)
	return c
}

func (c *counter) onGPU(call library.Call) error {
	const words, side, most = 12 << 10, 8, 4 // counters of a block in its own memory, side by side; blocks of a core
	n, bins := call.I64(2), call.I64(7)
	copies := min(side, words/bins)
	counts := call.Args[0]
	if err := call.Launch(c.clear, clearGrid(call, bins, threads), counts, spmd.I64(bins)); err != nil || n == 0 {
		return err
	}
	g := after(min(over(n, c.each), most*cores(call)), 4*copies*bins)
	return call.Launch(c.count, g, counts, call.Args[1], call.Args[2], spmd.I32(bins), spmd.I32(copies),
		call.Args[3], call.Args[4], call.Args[5], call.Args[6])
}

// edge is the edge of a bin, a number of the elements' type if these are floats.
func edge[T Number](v float64) float64 {
	if _, ok := any(*new(T)).(float32); ok && !math.IsInf(float64(float32(v)), 0) {
		return float64(float32(v))
	}
	return v
}

// Histogram enqueues counts[k] = the number of elements of x in bin k. counts.Len() bins divide lo
// to hi into equal parts. Bin k begins at lo + k (hi-lo)/counts.Len(), rounded to T if these are
// floats; hi is in the last bin. Elements outside, and NaNs, are not counted. It is as NumPy's
// histogram with a range.
func Histogram[T Number](s *spmd.Stream, counts spmd.Buffer[int64], x spmd.Buffer[T], lo, hi float64) error {
	bins := counts.Len()
	if bins < 1 || bins > math.MaxInt32 || !(lo < hi) || math.IsInf(hi-lo, 0) {
		return fmt.Errorf("%s: vector.Histogram: %d bins from %v to %v", ccall.At(), bins, lo, hi)
	}
	if err := library.Apart("vector.Histogram", library.Writes("counts", counts), library.Reads("x", x)); err != nil {
		return err
	}
	more := 1.0 // by which the scale of a tiny range is less than infinite
	if hi-lo < 0x1p-900 {
		more = 0x1p600
	}
	return counters[typeOf[T]()].library.Call(s, 0, counts.Arg(), x.Arg(), spmd.I64(x.Len()), spmd.F64(lo),
		spmd.F64(hi), spmd.F64(float64(bins)/((hi-lo)*more)), spmd.F64(more), spmd.I64(bins))
}
