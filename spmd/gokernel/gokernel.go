// Package gokernel carries the code that spmdgen writes for kernels in Go. Programs call the
// functions of that code, and nothing here.
//
// A kernel in Go does the work of one index, or of two or three. On the host its function is called
// for ranges of indices on all cores of the rank. On a GPU each index has a thread.
package gokernel

import (
	"embed"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"lockstep/host"
	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd"
	"lockstep/spmd/internal/kernels"
)

// The headers that generated sources include.
//
//go:embed *.cuh
var headers embed.FS

func init() {
	for _, name := range []string{"spmd_go.cuh", "spmd_complex.cuh", "spmd_reduce.cuh", "spmd_rows.cuh"} {
		text, err := headers.ReadFile(name)
		if err != nil {
			panic(err) // go:embed has the file
		}
		kernels.Headers[name] = string(text)
	}
}

// Lanes is the number of results that a reduction keeps side by side, as the threads of a block do.
const Lanes = 256

// GoGenerateIsNeeded takes the Go function of a kernel as it was when it was translated. If a call
// of it does not compile, the function has got other parameters since: type go generate.
func GoGenerateIsNeeded[F any](F) {}

// Shape has the facts about a kernel that a launch needs.
type Shape struct {
	Dims    int    // indices
	Each    int    // indices that a thread of a GPU takes
	Grain   int    // indices that are worth a goroutine
	Args    int    // arguments in CUDA
	Written uint64 // which of them the kernel writes to, as bits
	One     uint64 // which of them are pointers to one element
	Small   uint64 // which of them are numbers that the fast form takes in 32 bits
	Pack    int    // indices that follow each other, of a thread of a reduction; 0 for one
	Loops   bool   // the blocks of the fast form loop: a grid need not have one for all indices
	Row     int    // threads that share an index, a row, of a GPU; 0 for a thread for each

	// AtOnce says that the host's function of a reduction takes a range at once, and enters one
	// value.
	AtOnce bool
	// Tolerance is that of spmd.KernelOptions.
	Tolerance float64
}

func (s *Shape) pack() int { return max(1, s.Pack) }

// total returns the number of indices of a launch, as the host function sees it.
func (s *Shape) total(a spmd.Args) int {
	n := 1
	for i := range s.Dims {
		n *= a.I64(i)
	}
	return n
}

// check refuses a bad launch of the kernel.
func (s *Shape) check(name string, extent [3]int, args []spmd.Arg) error {
	if _, ok := elem.Product(extent[:]...); !ok {
		return fmt.Errorf("%s: Launch of %s: %v indices", ccall.At(), name, slices.Clone(extent[:s.Dims]))
	}
	for set := s.One; set != 0; set &= set - 1 {
		i := bits.TrailingZeros64(set)
		if n := args[i].Len(); n != 1 {
			return fmt.Errorf("%s: Launch of %s: %v where it has a pointer to one element", ccall.At(),
				name, args[i].String())
		}
	}
	return nil
}

// narrow reports whether 32 bits hold the arguments' addresses and the numbers that addresses are
// computed from, and no written memory overlaps another argument's.
func (s *Shape) narrow(total int, args []spmd.Arg) bool {
	if total > math.MaxInt32 {
		return false
	}
	for i := range args {
		if args[i].Len() > math.MaxInt32 {
			return false
		}
	}
	for set := s.Small; set != 0; set &= set - 1 {
		if v := args[bits.TrailingZeros64(set)].Int(); v != int(int32(v)) {
			return false
		}
	}
	for set := s.Written; set != 0; set &= set - 1 {
		w := bits.TrailingZeros64(set)
		for i := range args {
			if i != w && args[w].Overlaps(&args[i]) {
				return false
			}
		}
	}
	return true
}

// threads of a block, in all.
const threads = 256

// mostThatLoop are the blocks of a kernel that loops, for each multiprocessor: two for each that it
// runs at once, which begin in two microseconds.
const mostThatLoop = 2 * 8

// grid returns the shape of a launch whose threads take each indices, the last along x, on a GPU of
// so many multiprocessors. It says whether it has a block for all.
func (s *Shape) grid(extent [3]int, each, cores int) (g spmd.Grid, whole bool) {
	const most = 65_535 // blocks along y and z
	over := func(n, d int) int { return (n + d - 1) / d }
	switch {
	case s.Row > 32:
		return spmd.Grid{Blocks: [3]int{extent[0], 1, 1}, Threads: [3]int{s.Row, 1, 1}}, true
	case s.Row > 0:
		return spmd.Grid{Blocks: [3]int{over(extent[0], threads/s.Row), 1, 1}, Threads: [3]int{threads, 1, 1}}, true
	}
	if s.Dims == 1 {
		blocks := over(extent[0], each*threads)
		if s.Loops && each == s.Each {
			blocks = min(blocks, mostThatLoop*max(1, cores))
		}
		return spmd.Grid{Blocks: [3]int{blocks, 1, 1}, Threads: [3]int{threads, 1, 1}}, true
	}
	last := extent[s.Dims-1]
	x := 32
	for x/2 >= last {
		x /= 2
	}
	planes, y := 1, over(extent[s.Dims-2], threads/x*each)
	if s.Dims == 3 {
		planes = extent[0]
	}
	g.Threads = [3]int{x, threads / x, 1}
	g.Blocks = [3]int{over(last, x), min(y, most), min(planes, most)}
	return g, y <= most && planes <= most
}

// Kernel is a kernel that returns nothing.
type Kernel struct {
	name   string
	shape  Shape
	fast   *spmd.Kernel // for what Shape.narrow allows
	others *spmd.Kernel
}

// New declares a kernel. source has it as a template name_ over types, and over the type of indices
// behind them. host computes the indices from lo to hi-1, of two or three in the order of rows.
func New(name, types, source string, shape Shape, host func(a spmd.Args, lo, hi int)) *Kernel {
	run := func(a spmd.Args) error { return shape.run(a, host) }
	fast, others := forms(name, types, source, &shape, run)
	return &Kernel{title(name, types), shape, fast, others}
}

// forms declares both forms.
func forms(name, types, source string, shape *Shape, run func(spmd.Args) error) (fast, others *spmd.Kernel) {
	any := "int64_t"
	if types != "" {
		any = types + ", " + any
	}
	return declare(name+"_<"+types+">", source, shape, run), declare(name+"_<"+any+">", source, shape, run)
}

// title is how users see a kernel.
func title(name, types string) string {
	if types != "" {
		name += "<" + types + ">"
	}
	return name
}

// Instance is the kernel that a generic function is for one type.
type Instance struct{ of, kernel any }

// For returns the instance for T.
func For[T any](kernel any) Instance { return Instance{*new(T), kernel} }

// InstanceOf returns the kernel for T among instances.
func InstanceOf[T, K any](all []Instance) K {
	for i := range all {
		if _, ok := all[i].of.(T); ok {
			return all[i].kernel.(K)
		}
	}
	panic("spmdgen has written an instance for every type of the constraint")
}

// declare declares one form. Products and sums are rounded one by one, as the host rounds them.
// Lambdas in templates are for the host if nothing else is said.
func declare(name, source string, shape *Shape, run func(spmd.Args) error) *spmd.Kernel {
	return spmd.NewKernel(name, source, run, spmd.KernelOptions{
		Flags:     []string{"--fmad=false", "--device-as-default-execution-space"},
		Tolerance: shape.Tolerance, EachOnce: shape.Dims})
}

// run computes all indices on the host.
func (s *Shape) run(a spmd.Args, fn func(a spmd.Args, lo, hi int)) error {
	host.Parallel(s.total(a), s.Grain, func(lo, hi int) { fn(a, lo, hi) })
	return nil
}

// Launch enqueues k on s for all indices below extent. Without indices it enqueues nothing.
func (k *Kernel) Launch(s *spmd.Stream, extent [3]int, args ...spmd.Arg) error {
	if err := k.shape.check(k.name, extent, args); err != nil {
		return err
	}
	total := extent[0] * extent[1] * extent[2]
	if total == 0 {
		return nil
	}
	cores := s.World().Multiprocessors()
	if g, whole := k.shape.grid(extent, k.shape.Each, cores); whole && k.shape.narrow(total, args) {
		return k.fast.Launch(s, g, args...)
	}
	g, _ := k.shape.grid(extent, 1, cores)
	return k.others.Launch(s, g, args...)
}
