package attention

import (
	_ "embed"
	"fmt"
	"sync/atomic"

	"lockstep/host"
	"lockstep/spmd"
)

// The kernels of simple.cu, on CUDA cores in float32: for every shape, and on every GPU. The host
// takes the loops of simple.c.

//go:embed simple.cu
var simpleSource string

//go:embed window.cuh
var windowSource string // goes before it, and before sources for tensor cores

// dims are the sizes of one call.
type dims struct{ b, t, nh, hs, window int }

// elements returns the length of out.
func (x dims) elements() int { return x.b * x.t * x.nh * x.hs }

// rows returns the length of lse.
func (x dims) rows() int { return x.b * x.nh * x.t }

type simplePair struct{ forward, backward *spmd.Kernel }

var (
	simpleFloat32 = simplePair{
		spmd.NewKernel("simple_forward<float>", windowSource+simpleSource,
			func(a spmd.Args) error { return simpleForward[float32](a) }, spmd.KernelOptions{Tolerance: 1e-5}),
		spmd.NewKernel("simple_backward<float>", windowSource+simpleSource,
			func(a spmd.Args) error { return simpleBackward[float32](a) }, spmd.KernelOptions{Tolerance: 1e-5}),
	}
	simpleBF16 = simplePair{
		spmd.NewKernel("simple_forward<bf16>", windowSource+simpleSource,
			func(a spmd.Args) error { return simpleForward[spmd.BF16](a) }, spmd.KernelOptions{Tolerance: 1e-5}),
		spmd.NewKernel("simple_backward<bf16>", windowSource+simpleSource,
			func(a spmd.Args) error { return simpleBackward[spmd.BF16](a) }, spmd.KernelOptions{Tolerance: 1e-5}),
	}
)

func simpleOf[T Elem]() *simplePair {
	if isHalf[T]() {
		return &simpleBF16
	}
	return &simpleFloat32
}

// simpleGrid returns a grid of blocks of 256 threads for heads, tiles of 64 tokens, twice in the
// backward pass, and 64 channels.
func simpleGrid(x dims, times int) spmd.Grid {
	return spmd.Grid{Blocks: [3]int{x.b * x.nh, times * ((x.t + 63) / 64), (x.hs + 63) / 64},
		Threads: [3]int{256, 1, 1}}
}

func simpleForward[T Elem](a spmd.Args) error {
	out, lse, qkv := spmd.ArgSlice[T](a, 0), spmd.ArgSlice[float32](a, 1), spmd.ArgSlice[T](a, 2)
	x := dims{t: a.I32(3), nh: a.I32(4), hs: a.I32(5), b: a.I32(6), window: a.I32(7)}
	n := x.elements()
	to, done := written(out[:n])
	from := widened(qkv[:3*n])
	defer done()
	return attend(x, func(lo, hi int) bool { return hostForward(to, lse, from, x, lo, hi) })
}

func simpleBackward[T Elem](a spmd.Args) error {
	dqkv, dout, out, lse, qkv := spmd.ArgSlice[T](a, 0), spmd.ArgSlice[T](a, 1), spmd.ArgSlice[T](a, 2),
		spmd.ArgSlice[float32](a, 3), spmd.ArgSlice[T](a, 4)
	x := dims{t: a.I32(5), nh: a.I32(6), hs: a.I32(7), b: a.I32(8), window: a.I32(9)}
	n := x.elements()
	to, done := written(dqkv[:3*n])
	d, o, from := widened(dout[:n]), widened(out[:n]), widened(qkv[:3*n])
	defer done()
	return attend(x, func(lo, hi int) bool { return hostBackward(to, d, o, lse, from, x, lo, hi) })
}

// attend runs fn on ranges of the b·nh heads. It fails if one had no memory.
func attend(x dims, fn func(lo, hi int) bool) error {
	var failed atomic.Bool
	host.Parallel(x.b*x.nh, max(1, 1<<18/(x.t*x.t*x.hs)), func(lo, hi int) {
		if !fn(lo, hi) {
			failed.Store(true)
		}
	})
	if failed.Load() {
		return fmt.Errorf("attention: no memory for the scores of %d tokens", x.t)
	}
	return nil
}

// halfGrain is the number of conversions that is worth a goroutine.
const halfGrain = 1 << 14

// widened is x in float32.
func widened[T Elem](x []T) []float32 {
	if x, ok := any(x).([]float32); ok {
		return x
	}
	half, wide := any(x).([]spmd.BF16), make([]float32, len(x))
	host.Parallel(len(x), halfGrain, func(lo, hi int) { host.Widen(wide[lo:hi], half[lo:hi]) })
	return wide
}

// written returns room for x's new values in float32; done moves them into x.
func written[T Elem](x []T) (wide []float32, done func()) {
	if x, ok := any(x).([]float32); ok {
		return x, func() {}
	}
	half, wide := any(x).([]spmd.BF16), make([]float32, len(x))
	return wide, func() {
		host.Parallel(len(x), halfGrain, func(lo, hi int) { host.Round(half[lo:hi], wide[lo:hi]) })
	}
}

// isHalf reports whether T is bfloat16.
func isHalf[T Elem]() bool {
	var z T
	_, half := any(z).(spmd.BF16)
	return half
}
