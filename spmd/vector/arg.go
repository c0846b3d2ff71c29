package vector

import (
	_ "embed"
	"math"
	"unsafe"

	"lockstep/spmd"
	"lockstep/spmd/gokernel"
	"lockstep/spmd/library"
)

//go:embed arg.cu
var argSource string

// mostParts is the number of blocks that look for the best element.
const mostParts = 1024

// finder finds the smallest or largest element of a vector.
type finder struct {
	most        bool
	blocks      func(n int) int
	parts, last *spmd.Kernel
	library     *library.Function
}

// The most of a finder.
const argMin, argMax = false, true

var finders = [2][]*finder{finderOf(argMin), finderOf(argMax)}

func finderOf(most bool) []*finder {
	return []*finder{newFinder[int32](most), newFinder[uint32](most), newFinder[int64](most),
		newFinder[uint64](most), newFinder[float32](most), newFinder[float64](most)}
}

func newFinder[T Number](most bool) *finder {
	source := chainSource + argSource
	name := cTypes[typeOf[T]()] + ", false>"
	if most {
		name = cTypes[typeOf[T]()] + ", true>"
	}
	f := &finder{most: most, parts: device("arg_best<"+name, source), last: device("arg_last<"+name, source)}
	each := threads * 4 * 16 / int(unsafe.Sizeof(*new(T)))
	f.blocks = func(n int) int { return max(1, min(over(n, each), mostParts)) }
	f.library = library.New("arg", f.onGPU, func(a spmd.Args) error {
		x := spmd.ArgSlice[T](a, 2)
		best, at := spmd.ArgScalar[T](a, 4), -1
		for i, v := range x {
			if at < 0 || wins(v, best, most) {
				best, at = v, i
			}
		}
		spmd.ArgSlice[T](a, 0)[0], spmd.ArgSlice[int64](a, 1)[0] = best, int64(at)
		return nil
	}, f.parts, f.last).OnlyKernels().Writes(0b11)
	return f
}

// wins reports whether a is another value than b, and the wanted one. A NaN wins, and -0 is less
// than 0.
func wins[T Number](a, b T, most bool) bool {
	switch x, y := float64(a), float64(b); {
	case math.IsNaN(x) || math.IsNaN(y):
		return !math.IsNaN(y)
	case a == b && most:
		return math.Signbit(y) && !math.Signbit(x)
	case a == b:
		return math.Signbit(x) && !math.Signbit(y)
	}
	return a > b == most
}

func (f *finder) onGPU(c library.Call) error {
	n := c.I64(3)
	blocks := f.blocks(n)
	g := spmd.Grid{Blocks: [3]int{blocks, 1, 1}, Threads: [3]int{threads, 1, 1}}
	if err := c.Launch(f.parts, g, c.Args[0], c.Args[1], c.WorkspaceArg(), c.Args[2], c.Args[3],
		c.Args[4]); err != nil || blocks == 1 {
		return err
	}
	return c.Launch(f.last, after(1, 0), c.Args[0], c.Args[1], c.WorkspaceArg(), spmd.I64(blocks), c.Args[4])
}

func find[T Number](
	op string, s *spmd.Stream, best spmd.Buffer[T], at spmd.Buffer[int64], x spmd.Buffer[T], most int,
) error {
	if err := one(op, "best", best); err != nil {
		return err
	}
	if err := one(op, "at", at); err != nil {
		return err
	}
	if err := library.Apart(op, library.Writes("best", best), library.Writes("at", at),
		library.Reads("x", x)); err != nil {
		return err
	}
	f := finders[most][typeOf[T]()]
	workspace := 0
	if blocks := f.blocks(x.Len()); blocks > 1 {
		workspace = blocks * (8 + int(unsafe.Sizeof(*new(T))))
	}
	return f.library.Call(s, workspace, best.Arg(), at.Arg(), x.Arg(), spmd.I64(x.Len()),
		spmd.Scalar(gokernel.Extreme[T](1-2*most)))
}

// ArgMin enqueues best[0] = the smallest element of x, and at[0] = the index of its first place. A
// NaN wins, and -0 is less than 0. For an empty x best is as in Min, and at -1. As NumPy's argmin,
// and MPI_MINLOC.
func ArgMin[T Number](s *spmd.Stream, best spmd.Buffer[T], at spmd.Buffer[int64], x spmd.Buffer[T]) error {
	return find("vector.ArgMin", s, best, at, x, 0)
}

// ArgMax enqueues best[0] = the largest element of x, and at[0] = the index of its first place. A
// NaN wins, and -0 is less than 0. For an empty x best is as in Max, and at -1. As NumPy's argmax,
// and MPI_MAXLOC.
func ArgMax[T Number](s *spmd.Stream, best spmd.Buffer[T], at spmd.Buffer[int64], x spmd.Buffer[T]) error {
	return find("vector.ArgMax", s, best, at, x, 1)
}
