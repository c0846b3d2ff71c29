package attention

import (
	_ "embed"
	"fmt"

	"lockstep/cuda/nvrtc"
	"lockstep/spmd"
)

// The kernels of wgmma.cu: the backward pass of mma by the instructions that only
// compute capability 9.0 has, for heads of up to wgmmaMaxHead elements.

//go:embed wgmma.cu
var wgmmaSource string

//go:embed warpgroup.cuh
var warpgroupSource string

const wgmmaMaxHead = 64

// The sizes of wgmma.cu: the rows of a tile, which a block computes with wgmmaThreads
// threads, and the bytes of shared memory beside the rows' own matrices, of which the
// kernels have three and two.
const (
	wgmmaRows    = 128
	wgmmaThreads = 384
	wgmmaStages  = 9
	wgmmaMatrix  = wgmmaRows * wgmmaMaxHead * 2
	wgmmaShared  = (wgmmaStages+1)*wgmmaMatrix + wgmmaStages*64*8 + 2*8*(wgmmaStages+1)
)

var (
	wgmmaQueries = newWGMMAKernel("queries", 3, mmaHostBackwardQueries)
	wgmmaKeys    = newWGMMAKernel("keys", 2, mmaHostBackwardKeys)
)

// newWGMMAKernel declares a kernel of wgmma.cu, which takes what mma's of that name
// takes: the host does the same for both.
func newWGMMAKernel(name string, own int, fn func(*mmaHost)) mmaKernel {
	k := spmd.NewKernel("wgmma_backward_"+name, tensorSource+warpgroupSource+wgmmaSource, onHost(fn), spmd.ArchSpecific())
	return mmaKernel{k, wgmmaRows, own*wgmmaMatrix + wgmmaShared}
}

// lacksWGMMA returns why a rank has not these kernels, "" where it has.
func lacksWGMMA(w *spmd.World) string {
	if w.GPU() == nil {
		return "host"
	}
	if major, minor := w.GPU().Capability(); major != 9 || minor != 0 {
		return fmt.Sprintf("compute capability %d.%d", major, minor)
	}
	if major, minor := nvrtc.Version(); major < 12 {
		return fmt.Sprintf("NVRTC %d.%d", major, minor) // which compiles nothing for one architecture alone
	}
	return ""
}

// wgmmaBackward is mmaBackward, for a GPU that lacks nothing and heads of up to
// wgmmaMaxHead elements. Bits may differ from mmaBackward's: products add up in
// another order.
func wgmmaBackward(s *spmd.Stream, dqkv, dout, out spmd.Buffer[spmd.BF16], lse spmd.Buffer[float32], qkv spmd.Buffer[spmd.BF16], scratch spmd.Buffer[float32], b, t, nh, hs int) error {
	x := mmaShape{b, t, nh, hs}
	if hs > wgmmaMaxHead {
		return fmt.Errorf("attention backward: heads of %d elements: want at most %d", hs, wgmmaMaxHead)
	}
	if err := x.checkBackward(dqkv, dout, out, lse, qkv, scratch); err != nil {
		return err
	}
	m := s.World().Multiprocessors()
	return x.launchBackward(s, &wgmmaQueries, &wgmmaKeys, x.wgmmaGrid(&wgmmaQueries, m), x.wgmmaGrid(&wgmmaKeys, m),
		dqkv, dout, out, lse, qkv, scratch)
}

// wgmmaGrid is a block for each multiprocessor, or for each pair of tiles if these are
// fewer.
func (x mmaShape) wgmmaGrid(k *mmaKernel, multiprocessors int) spmd.Grid {
	tiles := (x.t + k.rows - 1) / k.rows
	blocks := min(max(1, multiprocessors), x.b*x.nh*((tiles+1)/2))
	return spmd.Grid{Blocks: [3]int{blocks, 1, 1}, Threads: [3]int{wgmmaThreads, 1, 1}, Shared: k.shared}
}
