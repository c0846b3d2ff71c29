package gokernel

import (
	"cmp"
	"math"
	"unsafe"

	"lockstep/host"
	"lockstep/spmd"
	"lockstep/spmd/library"
)

// Number is the set of types that kernels return.
type Number interface {
	int32 | uint32 | int64 | uint64 | float32 | float64 | complex64 | complex128
}

// Op is how the results of a kernel become one.
type Op int

// The operations. A NaN wins in Min and Max.
const (
	Sum Op = iota
	Prod
	Min
	Max
	By // a function that NewReductionBy is given
)

// Reduction is a kernel whose results are reduced to one. The order of the reduction depends on the
// number of indices alone, and is the same on the host and on a GPU.
type Reduction[T Number] struct {
	name         string
	shape        Shape
	op           Op
	by           func(a, b T) T
	host         func(a spmd.Args, lo, hi int, acc *[Lanes]T)
	fast, others *spmd.Kernel // each block writes its part
	parts        *spmd.Kernel // makes one result of the parts
	library      *library.Function
}

// NewReduction declares a kernel. source has it as for New, and as name_parts the reduction of the
// blocks' parts. host enters its results for the indices from lo to hi-1 in acc, the result of
// lo+i in place i modulo Lanes.
func NewReduction[T Number](
	name, types, source string, shape Shape, op Op, host func(a spmd.Args, lo, hi int, acc *[Lanes]T),
) *Reduction[T] {
	r := &Reduction[T]{name: title(name, types), shape: shape, op: op, host: host}
	run := func(a spmd.Args) error { return r.onHost(a) }
	r.fast, r.others = forms(name, types, source, &shape, run)
	r.parts = declare(name+"_parts<"+types+">", source, &shape, run)
	r.library = library.New(r.name, r.onGPU, run, r.fast, r.others, r.parts).OnlyKernels().Writes(shape.Written).
		Describe(func(a spmd.Args) (string, int) { return r.name, a.EachOnce(shape.Dims) })
	return r
}

// NewReductionBy declares a kernel whose results are reduced by a function. host sets those places
// of acc that it enters first.
func NewReductionBy[T Number](
	name, types, source string, shape Shape, by func(a, b T) T, host func(a spmd.Args, lo, hi int, acc *[Lanes]T),
) *Reduction[T] {
	r := NewReduction(name, types, source, shape, By, host)
	r.by = by
	return r
}

// Launch enqueues k on s for all indices below extent. Without indices the result is the empty sum,
// product, minimum or maximum, and 0 of a function. Launches on one stream share the stream's
// workspace: they come from one goroutine.
func (r *Reduction[T]) Launch(s *spmd.Stream, extent [3]int, args ...spmd.Arg) error {
	if err := r.shape.check(r.name, extent, args); err != nil {
		return err
	}
	workspace := 0
	if n := blocks(extent[0] * extent[1] * extent[2]); n > 1 {
		workspace = n * int(unsafe.Sizeof(*new(T)))
	}
	return r.library.Call(s, workspace, args...)
}

// MostParts is the most numbers that the workspace of a reduction has.
const MostParts = 4096

// share returns how many of n indices a block takes, as in spmd_go.cuh: for up to 1,024 blocks
// until these have enough to do.
func share(n int) int {
	each := max(8*Lanes, min((n+1023)/1024, 64*Lanes), (n+MostParts-1)/MostParts)
	return (each + Lanes - 1) / Lanes * Lanes
}

func blocks(n int) int { return max(1, (n+share(n)-1)/share(n)) }

const mostArgs = 64

func (r *Reduction[T]) onGPU(c library.Call) error {
	var room [mostArgs]spmd.Arg
	args := room[:r.shape.Args]
	for i := range args {
		args[i] = c.Args[i]
	}
	total := r.shape.total(c.Args)
	n := blocks(total)
	grid := spmd.Grid{Blocks: [3]int{n, 1, 1}, Threads: [3]int{threads, 1, 1}}
	k := r.others
	if r.shape.narrow(total, args) {
		k = r.fast
	}
	out := args[r.shape.Dims]
	if n > 1 {
		args[r.shape.Dims] = c.WorkspaceArg()
	}
	if err := c.Launch(k, grid, args...); err != nil || n == 1 {
		return err
	}
	grid.Blocks[0] = 1
	return c.Launch(r.parts, grid, out, c.WorkspaceArg(), spmd.I64(n))
}

func (r *Reduction[T]) onHost(a spmd.Args) error {
	total := r.shape.total(a)
	if r.shape.AtOnce {
		return r.ranges(a, total)
	}
	each, n := share(total), blocks(total)
	out := spmd.ArgSlice[T](a, r.shape.Dims)
	part := out
	if n > 1 {
		part = make([]T, n)
	}
	host.Parallel(n, max(1, r.shape.Grain/each), func(lo, hi int) {
		var acc [Lanes]T // one for all blocks: it is on the heap
		for b := lo; b < hi; b++ {
			acc = r.none()
			lo, hi := b*each, min((b+1)*each, total)
			r.host(a, lo, hi, &acc)
			part[b] = r.tree(&acc, (hi-lo+r.shape.pack()-1)/r.shape.pack())
		}
	})
	if n > 1 {
		acc := r.none()
		for i, v := range part {
			if i < Lanes && r.op == By {
				acc[i] = v
			} else {
				acc[i%Lanes] = r.of(acc[i%Lanes], v)
			}
		}
		out[0] = r.tree(&acc, n)
	}
	return nil
}

// ranges reduces the results of the host's function for ranges of Grain indices, in their order.
func (r *Reduction[T]) ranges(a spmd.Args, total int) error {
	n := (total + r.shape.Grain - 1) / r.shape.Grain
	part, begin := make([]T, n), r.none()[0]
	host.Parallel(n, 1, func(lo, hi int) {
		var acc [Lanes]T
		for i := lo; i < hi; i++ {
			acc[0] = begin
			r.host(a, i*r.shape.Grain, min((i+1)*r.shape.Grain, total), &acc)
			part[i] = acc[0]
		}
	})
	v := begin
	for i, p := range part {
		if i == 0 && r.op == By {
			v = p
		} else {
			v = r.of(v, p)
		}
	}
	spmd.ArgSlice[T](a, r.shape.Dims)[0] = v
	return nil
}

// none returns the value that changes nothing, for each lane.
func (r *Reduction[T]) none() (acc [Lanes]T) {
	v := T(0)
	switch r.op {
	case Prod:
		v = 1
	case Min:
		v = Extreme[T](1)
	case Max:
		v = Extreme[T](-1)
	}
	if v != 0 {
		for i := range acc {
			acc[i] = v
		}
	}
	return acc
}

// Extreme returns the largest value of T, or with sign -1 the smallest.
func Extreme[T Number](sign int) T {
	var most, least any
	switch any(T(0)).(type) {
	case int32:
		most, least = int32(math.MaxInt32), int32(math.MinInt32)
	case uint32:
		most, least = uint32(math.MaxUint32), uint32(0)
	case int64:
		most, least = int64(math.MaxInt64), int64(math.MinInt64)
	case uint64:
		most, least = uint64(math.MaxUint64), uint64(0)
	case float32:
		most, least = float32(math.Inf(1)), float32(math.Inf(-1))
	case float64:
		most, least = math.Inf(1), math.Inf(-1)
	default: // complex numbers have no order
		return 0
	}
	if sign < 0 {
		return least.(T)
	}
	return most.(T)
}

func (r *Reduction[T]) of(a, b T) T {
	switch r.op {
	case Sum:
		return a + b
	case Prod:
		return a * b
	case By:
		return r.by(a, b)
	}
	return either(a, b, r.op == Min)
}

// either returns the least or the largest of two numbers. Complex numbers have neither.
func either[T Number](a, b T, least bool) T {
	switch p := any(&a).(type) {
	case *int32:
		*p = ordered(*p, any(b).(int32), least)
	case *uint32:
		*p = ordered(*p, any(b).(uint32), least)
	case *int64:
		*p = ordered(*p, any(b).(int64), least)
	case *uint64:
		*p = ordered(*p, any(b).(uint64), least)
	case *float32:
		*p = ordered(*p, any(b).(float32), least)
	case *float64:
		*p = ordered(*p, any(b).(float64), least)
	}
	return a
}

func ordered[T cmp.Ordered](a, b T, least bool) T {
	if least {
		return min(a, b)
	}
	return max(a, b)
}

// tree reduces the first n lanes in the order of spmd_go.cuh's block_reduce: those of each warp,
// then the warps.
func (r *Reduction[T]) tree(acc *[Lanes]T, n int) T {
	const warp = 32
	if n = min(n, Lanes); n == 0 {
		return acc[0]
	}
	halve := func(v []T) T {
		for d := warp / 2; d > 0; d /= 2 {
			for l := range min(d, len(v)-d) {
				v[l] = r.of(v[l], v[l+d])
			}
			v = v[:min(d, len(v))]
		}
		return v[0]
	}
	var of [warp]T
	warps := 0
	for ; warps*warp < n; warps++ {
		of[warps] = halve(acc[warps*warp : min((warps+1)*warp, n)])
	}
	return halve(of[:warps])
}
