package spmd

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/internal/kernels"
)

// Kernel is one computation in two forms: CUDA C++ for GPUs, and the Go function
// that does the same on the host. Declare it as a package variable beside its
// source; it holds nothing that belongs to a world.
type Kernel struct {
	name   string
	source string
	host   func(Args) error
	gpu    atomic.Pointer[gpuFunc]
}

// NewKernel declares a kernel. source is CUDA C++, usually an embedded file (see
// package embed), in which name is an extern "C" __global__ function; host does
// the same to the same arguments. An error or a panic of host fails the stream.
func NewKernel(name, source string, host func(Args) error) *Kernel {
	kernels.Add(name, source)
	return &Kernel{name: name, source: source, host: host}
}

// Grid is the shape of a launch in blocks and threads; the host function does
// not see it. Shared is the dynamic shared memory of a block, in bytes.
type Grid struct {
	Blocks  [3]int
	Threads [3]int
	Shared  int
}

// Cover1D is a grid of blocks of the given number of threads, just enough for one
// thread for each of n.
func Cover1D(n, block int) Grid {
	return Grid{Blocks: [3]int{max(1, (n+block-1)/block), 1, 1}, Threads: [3]int{block, 1, 1}}
}

// Arg is one argument of a kernel: a buffer or a number of stated width.
type Arg struct {
	blk  *block
	ptr  unsafe.Pointer
	n    int    // elements of a buffer
	bits uint64 // value of a number
	typ  elem.Type
	buf  bool
}

// Arg passes the buffer to a kernel: a pointer there, a slice for the host
// function.
func (b Buffer[T]) Arg() Arg {
	return Arg{blk: b.blk, ptr: b.addr(), n: b.n, typ: elem.Of[T](), buf: true}
}

// I32 passes v to a parameter of type int. It panics when v does not fit.
func I32(v int) Arg {
	if int(int32(v)) != v {
		panic(fmt.Sprintf("spmd: I32(%d) does not fit 32 bits", v))
	}
	return number(int32(v))
}

// I64 passes v to a parameter of type long long.
func I64(v int) Arg { return number(int64(v)) }

// U64 passes v to a parameter of type unsigned long long.
func U64(v uint64) Arg { return number(v) }

// F32 passes v to a parameter of type float.
func F32(v float32) Arg { return number(v) }

// F64 passes v to a parameter of type double.
func F64(v float64) Arg { return number(v) }

func number[T Elem](v T) Arg {
	a := Arg{typ: elem.Of[T]()}
	*(*T)(unsafe.Pointer(&a.bits)) = v
	return a
}

// Args are the arguments of one launch, as the host function of a kernel sees
// them. Asking for another type than was passed panics with both types.
type Args struct{ list []Arg }

// I32 returns argument i, passed by I32.
func (a Args) I32(i int) int { return int(value[int32](a, i)) }

// I64 returns argument i, passed by I64.
func (a Args) I64(i int) int { return int(value[int64](a, i)) }

// U64 returns argument i, passed by U64.
func (a Args) U64(i int) uint64 { return value[uint64](a, i) }

// F32 returns argument i, passed by F32.
func (a Args) F32(i int) float32 { return value[float32](a, i) }

// F64 returns argument i, passed by F64.
func (a Args) F64(i int) float64 { return value[float64](a, i) }

func value[T Elem](a Args, i int) T {
	x := &a.list[i]
	if x.buf || x.typ != elem.Of[T]() {
		panic(fmt.Sprintf("argument %d is %v, the kernel wants %v", i, x, elem.Of[T]()))
	}
	return *(*T)(unsafe.Pointer(&x.bits))
}

// ArgSlice returns argument i, a buffer of T, as a slice of its elements.
func ArgSlice[T Elem](a Args, i int) []T {
	x := &a.list[i]
	if !x.buf || x.typ != elem.Of[T]() {
		panic(fmt.Sprintf("argument %d is %v, the kernel wants a buffer of %v", i, x, elem.Of[T]()))
	}
	return unsafe.Slice((*T)(x.ptr), x.n)
}

// String says what an argument is, for messages.
func (a *Arg) String() string {
	if a.buf {
		return fmt.Sprintf("a buffer of %d %v", a.n, a.typ)
	}
	return a.typ.String()
}

// Launch enqueues k on s. Nothing checks the arguments against the CUDA source,
// and only the host function checks their types: call it from the one typed
// function that stands beside the kernel. Freed buffers and those of another
// world are refused. It allocates nothing.
func (k *Kernel) Launch(s *Stream, g Grid, args ...Arg) error {
	for _, n := range [...]int{g.Blocks[0], g.Blocks[1], g.Blocks[2], g.Threads[0], g.Threads[1], g.Threads[2]} {
		if n < 1 {
			return fmt.Errorf("%s: Launch of %s: grid of %v blocks of %v threads", ccall.At(), k.name, g.Blocks, g.Threads)
		}
	}
	c := command{call: call{kind: cmdKernel}, kernel: k, grid: g}
	return s.submit(&c, args)
}
