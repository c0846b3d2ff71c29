package attention

import (
	_ "embed"
	"fmt"

	"lockstep/cuda/nvrtc"
	"lockstep/spmd"
	"lockstep/spmd/library"
)

// The kernels of wgmma.cu and wgmma_forward.cu: mma's by the instructions that only compute
// capability 9.0 has, for heads of up to wgmmaMaxHead elements.

//go:embed wgmma.cu
var wgmmaSource string

//go:embed wgmma_forward.cu
var wgmmaForwardSource string

//go:embed warpgroup.cuh
var warpgroupSource string

//go:embed wgmma.cuh
var wgmmaTilesSource string

const wgmmaMaxHead = 64

// The sizes of wgmma.cuh: the rows of a tile, which a block computes with wgmmaThreads threads, and
// the bytes of shared memory beside the rows' own matrices. A kernel has one to four of these.
const (
	wgmmaRows    = 128
	wgmmaSquare  = wgmmaRows / 2
	wgmmaThreads = 384
	wgmmaStages  = 7
	wgmmaMatrix  = wgmmaRows * wgmmaMaxHead * 2
	wgmmaColumns = 2 * 2 * 8 * wgmmaMaxHead * 4
	wgmmaShared  = (wgmmaStages+1)*wgmmaMatrix + wgmmaStages*wgmmaSquare*8 + 2*8*(wgmmaStages+2) + wgmmaColumns
)

var (
	wgmmaOut     = newWGMMAKernel("forward", wgmmaForwardSource, 1, mmaHostForward)
	wgmmaQueries = newWGMMAKernel("backward_queries", wgmmaSource, 3, wgmmaHostBackwardQueries)
	wgmmaKeys    = newWGMMAKernel("backward_keys", wgmmaSource, 4, wgmmaHostBackwardKeys)
)

// newWGMMAKernel declares a kernel of a source. It has first the arguments of mma's kernel of that
// name: the host does the same for both.
func newWGMMAKernel(name, source string, own int, fn func(*mmaHost)) mmaKernel {
	k := spmd.NewKernel("wgmma_"+name, windowSource+tensorSource+warpgroupSource+wgmmaTilesSource+source,
		onHost(fn), spmd.KernelOptions{ArchSpecific: true})
	return mmaKernel{k, wgmmaRows, own*wgmmaMatrix + wgmmaShared}
}

// lacksWGMMA returns why a rank lacks these kernels, or "".
func lacksWGMMA(w *spmd.World) string {
	if library.GPU(w) == nil {
		return "host"
	}
	if major, minor := library.GPU(w).Capability(); major != 9 || minor != 0 {
		return fmt.Sprintf("compute capability %d.%d", major, minor)
	}
	if major, minor := nvrtc.Version(); major < 12 {
		return fmt.Sprintf("NVRTC %d.%d", major, minor) // which compiles nothing for one architecture alone
	}
	return ""
}

// wgmmaShape is a shape, and how the kernels copy squares of 64 rows of qkv and of out.
type wgmmaShape struct {
	mmaShape
	qkv, out spmd.TensorMap
}

func newWGMMA(x mmaShape) *wgmmaShape {
	squares := func(matrices int) spmd.TensorMap {
		return spmd.TensorMap{Sizes: []int{x.b, x.t, matrices, x.hs}, Box: []int{1, wgmmaSquare, 1, wgmmaMaxHead},
			Swizzle: 2 * wgmmaMaxHead}
	}
	return &wgmmaShape{x, squares(3 * x.nh), squares(x.nh)}
}

// checkHead refuses heads that the kernels do not have.
func (x *wgmmaShape) checkHead(what string) error {
	if x.hs > wgmmaMaxHead {
		return fmt.Errorf("%s: heads of %d elements: want at most %d", what, x.hs, wgmmaMaxHead)
	}
	return nil
}

// forward is mmaForward, for a GPU that lacks nothing and heads of up to wgmmaMaxHead elements.
// Bits may differ from mmaForward's: products add up in another order.
func (x *wgmmaShape) forward(
	s *spmd.Stream, out spmd.Buffer[spmd.BF16], lse spmd.Buffer[float32], qkv spmd.Buffer[spmd.BF16],
) error {
	if err := x.checkHead("Forward"); err != nil {
		return err
	}
	if err := x.check("Forward", out.Len(), lse.Len(), qkv.Len()); err != nil {
		return err
	}
	return wgmmaOut.Launch(s, x.wgmmaGrid(&wgmmaOut, s.World().Multiprocessors()), out.Arg(), lse.Arg(),
		qkv.TensorMap(&x.qkv),
		spmd.I32(x.b), spmd.I32(x.t), spmd.I32(x.nh), spmd.I32(x.hs), spmd.F32(x.scale()), spmd.I32(x.window))
}

// scratch returns the number of elements that backward needs as scratch.
func (x *wgmmaShape) scratch() int {
	return mmaScratch(x.b, x.t, x.nh) + x.columnRows()*3*x.nh*x.hs
}

// columnRows returns the number of rows of sums that the kernels leave, each over 64 rows of dqkv.
func (x mmaShape) columnRows() int { return x.b * ((x.t + wgmmaSquare - 1) / wgmmaSquare) }

// backward is mmaBackward, as forward is mmaForward. It leaves the sums of dqkv over its tokens,
// taken before dqkv is rounded, in dbias(3,nh,hs), unless that is empty.
func (x *wgmmaShape) backward(
	s *spmd.Stream, dqkv spmd.Buffer[spmd.BF16], dbias spmd.Buffer[float32], dout,
	out spmd.Buffer[spmd.BF16], lse spmd.Buffer[float32], qkv spmd.Buffer[spmd.BF16], scratch spmd.Buffer[float32],
) error {
	if err := x.checkHead("Backward"); err != nil {
		return err
	}
	if err := x.checkBackward(dqkv, dout, out, lse, qkv, scratch); err != nil {
		return err
	}
	columns := spmd.Buffer[float32]{}
	if width := 3 * x.nh * x.hs; dbias.Len() > 0 {
		n := x.scratch()
		if dbias.Len() != width || scratch.Len() < n {
			return fmt.Errorf("Backward: a bias of %d elements and scratch of %d, want %d and %d",
				dbias.Len(), scratch.Len(), width, n)
		}
		columns = scratch.Slice(mmaScratch(x.b, x.t, x.nh), n)
	}
	m := s.World().Multiprocessors()
	err := wgmmaQueries.Launch(s, x.wgmmaGrid(&wgmmaQueries, m), dqkv.Arg(), scratch.Arg(),
		dout.TensorMap(&x.out), out.TensorMap(&x.out), lse.Arg(), qkv.TensorMap(&x.qkv),
		spmd.I32(x.b), spmd.I32(x.t), spmd.I32(x.nh), spmd.I32(x.hs), spmd.F32(x.scale()),
		spmd.I32(x.window), columns.Arg())
	if err != nil {
		return err
	}
	err = wgmmaKeys.Launch(s, x.wgmmaGrid(&wgmmaKeys, m), dqkv.Arg(), scratch.Arg(),
		dout.TensorMap(&x.out), qkv.TensorMap(&x.qkv),
		spmd.I32(x.b), spmd.I32(x.t), spmd.I32(x.nh), spmd.I32(x.hs), spmd.F32(x.scale()),
		spmd.I32(x.window), columns.Arg())
	if err != nil || columns.Len() == 0 {
		return err
	}
	g := spmd.Grid{Blocks: [3]int{(dbias.Len() + 31) / 32, 1, 1}, Threads: [3]int{256, 1, 1}}
	return wgmmaSumColumns.Launch(s, g, dbias.Arg(), columns.Arg(), spmd.I32(x.columnRows()), spmd.I32(dbias.Len()))
}

var wgmmaSumColumns = spmd.NewKernel("wgmma_sum_columns",
	windowSource+tensorSource+warpgroupSource+wgmmaTilesSource+wgmmaSource, func(a spmd.Args) error {
		sums, columns, width := spmd.ArgSlice[float32](a, 0), spmd.ArgSlice[float32](a, 1), a.I32(3)
		clear(sums)
		for i, v := range columns[:a.I32(2)*width] {
			sums[i%width] += v
		}
		return nil
	}, spmd.KernelOptions{ArchSpecific: true})

// wgmmaGrid returns a block for each multiprocessor, or for each pair of tiles if these are fewer.
func (x mmaShape) wgmmaGrid(k *mmaKernel, multiprocessors int) spmd.Grid {
	tiles := (x.t + k.rows - 1) / k.rows
	blocks := min(max(1, multiprocessors), x.b*x.nh*((tiles+1)/2))
	return spmd.Grid{Blocks: [3]int{blocks, 1, 1}, Threads: [3]int{wgmmaThreads, 1, 1}, Shared: k.shared}
}

func wgmmaHostBackwardQueries(a *mmaHost) {
	mmaHostBackwardQueries(a)
	a.sumColumns(12, 0, 1)
}

func wgmmaHostBackwardKeys(a *mmaHost) {
	mmaHostBackwardKeys(a)
	a.sumColumns(10, 1, 3)
}

// sumColumns leaves the sums of dqkv's thirds from lo to hi in argument i, unless it is missing:
// the sums of all rows in the first row, zeros in the others.
func (a *mmaHost) sumColumns(i, lo, hi int) {
	columns := spmd.ArgSlice[float32](a.Args, i)
	if len(columns) == 0 {
		return
	}
	dqkv, width := spmd.ArgSlice[spmd.BF16](a.Args, 0), 3*a.width()
	for row := range a.columnRows() {
		clear(columns[row*width:][lo*a.width() : hi*a.width()])
	}
	for row := range a.b * a.t {
		for j := lo * a.width(); j < hi*a.width(); j++ {
			columns[j] += dqkv[row*width+j].Float32()
		}
	}
}
