package ops

import (
	_ "embed"

	"lockstep/host"
	"lockstep/spmd"
)

//go:embed norms.cu
var normsCUDA string

var normsSource = commonSource + eightSource + normsCUDA

// The backward pass of a LayerNorm has up to normParts blocks, two for each multiprocessor of an
// H100 or H200. Each leaves sums of three kinds for each column. So does each set of sumSet blocks.
const (
	normParts = 264
	sumSet    = 16
	NormRows  = normParts + (normParts+sumSet-1)/sumSet
)

// tileGrid returns a grid of at most most blocks for kernels on tiles of n rows of c columns.
// Groups of whole warps have a thread for every 8 columns, and each group takes rows at a time.
// Rows that do not fit such groups are for blocks of 256 threads, one at a time.
func tileGrid(n, c, rows, most int) spmd.Grid {
	const mostThreads = 288
	threads, groups := 256, 1
	if c%8 == 0 && c <= 8*mostThreads {
		group := (c/8 + 31) / 32 * 32
		groups = mostThreads / group
		threads = groups * group
	} else {
		rows = 1
	}
	return spmd.Grid{Blocks: [3]int{min(most, (n+rows*groups-1)/(rows*groups)), 1, 1}, Threads: [3]int{threads, 1, 1}}
}

// normByWarps returns a grid of up to most blocks for the LayerNorm kernels whose warps have
// a row each, of n rows of c columns, and read arrays ahead. It returns false if another
// kernel is to run.
func (e *Launcher[A]) normByWarps(n, c, arrays, most int) (spmd.Grid, bool) {
	const warps, deep = 8, 4
	shared := warps * deep * (2*arrays*c + 2*4*32) // rows, and two statistics for each lane
	if !IsHalf[A]() || c%8 != 0 || c <= 512 || c > 1024 || shared > e.S.World().SharedMemory()-1<<10 {
		return spmd.Grid{}, false
	}
	return spmd.Grid{Blocks: [3]int{min(most, (n+warps-1)/warps), 1, 1}, Threads: [3]int{32 * warps, 1, 1},
		Shared: shared}, true
}

var (
	layerNormForwardKernel = newKernel(normsSource, "layernorm_forward", hostLayerNormForward)
	layerNormForwardWarps  = newKernel(normsSource, "layernorm_forward_warps", hostLayerNormForward)
	layerNormForwardWarps8 = newKernel(normsSource, "layernorm_forward_warps_8",
		Copying[spmd.F8E4M3](8, hostLayerNormForward))
)

func hostLayerNormForward(a *HostArgs) error {
	n, c := a.I32(6), a.I32(7)
	out, mean, rstd, x, weight, bias := a.Out(0, n*c), a.Floats(1), a.Floats(2), a.In(3, n*c), a.Floats(4), a.Floats(5)
	host.Parallel(n, RowGrain(c), func(lo, hi int) {
		cLayerNormForward(out, mean, rstd, x, weight, bias, c, lo, hi)
	})
	return nil
}

// LayerNormForward enqueues out(n,c) = (x - mean)·rstd·weight + bias, and its copy. It keeps
// mean(n) and rstd(n).
func (e *Launcher[A]) LayerNormForward(out spmd.Buffer[A], mean, rstd spmd.Buffer[float32], x spmd.Buffer[A], p *Norm,
	to Cast) {
	c := e.Cfg.Channels
	args := [11]spmd.Arg{out.Arg(), mean.Arg(), rstd.Arg(), x.Arg(), p.W.Arg(), p.B.Arg(), spmd.I32(e.N), spmd.I32(c),
		to.Codes.Arg(), to.Up.Arg(), to.Peak.Arg()}
	switch grid, ok := e.normByWarps(e.N, c, 1, 264); {
	case ok && to.None():
		e.Launch(layerNormForwardWarps, grid, args[:8]...)
	case ok:
		e.Launch(layerNormForwardWarps8, grid, args[:]...)
	default:
		e.Launch(layerNormForwardKernel, tileGrid(e.N, c, 2, 528), args[:8]...)
		e.Cast(out, e.N*c, to)
	}
}

var (
	layerNormBackwardKernel = newKernel(normsSource, "layernorm_backward", hostLayerNormBackward, 4, 5)
	layerNormBackwardWarps  = newKernel(normsSource, "layernorm_backward_warps", hostLayerNormBackward, 4, 5)
	layerNormBackwardWarps8 = newKernel(normsSource, "layernorm_backward_warps_8",
		Copying[spmd.F8E4M3](15, hostLayerNormBackward), 4, 5)
)

func hostLayerNormBackward(a *HostArgs) error {
	n, c, add, acc := a.I32(11), a.I32(12), a.flag(13), a.flag(14)
	var dx []float32
	if add {
		dx = a.InOut(0, n*c)
	} else {
		dx = a.Out(0, n*c)
	}
	dweight, dbias, dcolumns := a.Floats(1), a.Floats(2), a.Floats(3)
	dout, x, weight, mean, rstd := a.In(6, n*c), a.In(7, n*c), a.Floats(8), a.Floats(9), a.Floats(10)
	host.Parallel(n, RowGrain(c), func(lo, hi int) {
		cLayerNormBackwardInput(dx, dout, x, weight, mean, rstd, c, add, lo, hi)
	})
	a.settle()
	columns(c, n, func(lo, hi int) {
		cLayerNormBackwardParams(dweight, dbias, dout, x, mean, rstd, n, c, acc, lo, hi)
		if len(dcolumns) > 0 {
			cBiasBackward(dcolumns, dx, n, c, acc, lo, hi)
		}
	})
	return nil
}

// NormGrad is the backward pass of a LayerNorm.
type NormGrad[A Act] struct {
	DX         spmd.Buffer[A]       // (n,c): the gradient of the input
	DOut, X    spmd.Buffer[A]       // (n,c): the gradient of the output; the input
	Mean, Rstd spmd.Buffer[float32] // (n)
	Norm       *Norm
	DColumns   spmd.Buffer[float32] // (c): sums of the new DX over its rows; may be empty
	Adds       bool                 // DX has the gradient of the residual stream, which is added
	To         Cast                 // the copy of DX
}

// LayerNormBackward enqueues the gradient of a LayerNorm's input, its copy, and the gradients of
// the parameters.
//
// DColumns receives the gradient of the bias of the projection that wrote the residual stream.
func (e *Launcher[A]) LayerNormBackward(g NormGrad[A]) {
	c := e.Cfg.Channels
	p, to := g.Norm, g.To
	args := [18]spmd.Arg{g.DX.Arg(), p.DW.Arg(), p.DB.Arg(), g.DColumns.Arg(),
		e.Partial.Arg(), e.Arrived.Arg(), g.DOut.Arg(), g.X.Arg(), p.W.Arg(), g.Mean.Arg(), g.Rstd.Arg(), spmd.I32(e.N),
		spmd.I32(c), Flag(g.Adds), Flag(e.Acc), to.Codes.Arg(), to.Up.Arg(), to.Peak.Arg()}
	switch grid, ok := e.normByWarps(e.N, c, 3, normParts/2); {
	case ok && to.None():
		e.Launch(layerNormBackwardWarps, grid, args[:15]...)
	case ok:
		e.Launch(layerNormBackwardWarps8, grid, args[:]...)
	default:
		e.Launch(layerNormBackwardKernel, tileGrid(e.N, c, 1, normParts), args[:15]...)
		e.Cast(g.DX, e.N*c, to)
	}
}

// Norm is the parameters of a LayerNorm, (C) each, and their gradients.
type Norm struct{ W, B, DW, DB spmd.Buffer[float32] }
