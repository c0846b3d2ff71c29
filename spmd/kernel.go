package spmd

import (
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/internal/elem"
	"lockstep/spmd/internal/exec"
	"lockstep/spmd/internal/exec/hostexec"
	"lockstep/spmd/internal/kernels"
)

// Kernel is one computation in two forms: CUDA C++ for GPUs, and the Go function
// that does the same on the host. Declare it as a package variable beside its
// source; it holds nothing that belongs to a world.
type Kernel exec.Kernel

func (k *Kernel) in() *exec.Kernel { return (*exec.Kernel)(k) }

// NewKernel declares a kernel. source is CUDA C++, usually an embedded file (see
// package embed). In it name is an extern "C" __global__ function, or an instance of a
// template, such as "scale<float>": a name expression of NVRTC. host does the same to
// the same arguments. An error or a panic of host fails the stream.
//
// Kernels of one source with the same options are compiled as one program. --check takes a kernel
// to write what its parameters point to, unless they point to const.
func NewKernel(name, source string, host func(Args) error, options ...KernelOptions) *Kernel {
	s := kernels.Source{Text: source, Names: []string{name}}
	for i := range options {
		options[i].set(&s)
	}
	kernels.Add(s)
	return (*Kernel)(exec.NewKernel(name, s, host))
}

// KernelOptions say how the source of a kernel is compiled, and what it does.
type KernelOptions struct {
	// Flags are passed to NVRTC, such as "-DWIDTH=4" or "--use_fast_math". NVRTC compiles for the
	// device's architecture, and C++14 unless a flag says otherwise.
	// Source: NVRTC, Supported Compile Options.
	Flags []string

	// ArchSpecific compiles for the device's architecture with the features that only this one has,
	// such as sm_90a with its wgmma instructions. If NVRTC can do that, it defines the macro
	// __CUDA_ARCH_FEAT_SM90_ALL, and the like for other architectures. Without the macro the source
	// has to do without the features.
	ArchSpecific bool

	// Tolerance is the part of them by which the results of the CUDA source may differ from the
	// host function's. At 0 spmdtest.CompareKernels wants the same bits.
	Tolerance float64

	// Scratch are arguments that hold nothing for others after a launch, such as parts of sums on a
	// GPU.
	Scratch []int

	// EachOnce says that the kernel is called for all indices below its first so many arguments. In
	// every buffer with as many elements it touches the element of each index once. The summary
	// then shows how many bytes the kernel moves.
	EachOnce int
}

func (o *KernelOptions) set(s *kernels.Source) {
	s.Flags = append(s.Flags, o.Flags...)
	s.ArchSpecific, s.Tolerance, s.Indices = o.ArchSpecific, o.Tolerance, o.EachOnce
	for _, i := range o.Scratch {
		s.Scratch |= 1 << i
	}
}

// Grid is the shape of a launch: blocks and threads, the shared memory of a block, clusters, and
// whether the kernel may start before the previous one is over. The host function does not see it.
type Grid = exec.Grid

// Cover1D returns a grid of blocks of the given number of threads, just enough for one thread for
// each of n.
func Cover1D(n, block int) Grid {
	return Grid{Blocks: [3]int{max(1, (n+block-1)/block), 1, 1}, Threads: [3]int{block, 1, 1}}
}

// Arg is one argument of a kernel: a buffer, or a number of stated width. Its String says which.
//
// For packages on top of this one, Len returns how many elements a buffer has, and -1 for another
// argument. Int returns the number that I64 passes, and 0 for another argument. x.Overlaps(&y) says
// whether two buffers share memory.
type Arg = exec.Arg

// Arg passes the buffer to a kernel, as a pointer, and to the host function, as a slice.
func (b Buffer[T]) Arg() Arg {
	return Arg{Block: b.block(), Ptr: b.addr(), N: b.Len(), Type: elem.Of[T](), Kind: exec.BufferArg}
}

// I32 passes v to a parameter of type int. It panics when v does not fit.
func I32(v int) Arg {
	if int(int32(v)) != v {
		tooLarge(v)
	}
	return Arg{Type: elem.Int32, Bits: elem.Bits{uint64(uint32(v))}}
}

//go:noinline
func tooLarge(v int) { panic(fmt.Sprintf("spmd: I32(%d) does not fit 32 bits", v)) }

// I64 passes v to a parameter of type long long.
func I64(v int) Arg { return Arg{Type: elem.Int64, Bits: elem.Bits{uint64(v)}} }

// F32 passes v to a parameter of type float.
func F32(v float32) Arg { return Scalar(v) }

// F64 passes v to a parameter of type double.
func F64(v float64) Arg { return Scalar(v) }

// Bool passes v to a parameter of type bool.
func Bool(v bool) Arg {
	if v {
		return Scalar(uint8(1))
	}
	return Scalar(uint8(0))
}

// Scalar passes v to a parameter of the type in C++ that Elem names, such as uint8_t or bf16.
func Scalar[T Elem](v T) Arg { return exec.Number(elem.Of[T](), v) }

// Struct passes a copy of v to a parameter that is a struct of the same layout, of at most 4,096
// bytes. Declare the parameter const __grid_constant__. Struct allocates: make it once for many
// launches. It panics if v is larger, or holds Go's pointers.
func Struct[T any](v T) Arg { return exec.Struct(v) }

// Args are the arguments of one launch, as the host function of a kernel sees them. The methods
// I32, I64, U64, F32, F64 and Bool return argument i, which the function of that name passed.
// Asking for another type than was passed panics with both types.
//
// EachOnce(dims) returns how many bytes a call moves that touches the element of every index below
// its first dims arguments once in each buffer.
type Args = exec.Args

// ArgScalar returns argument i, passed by Scalar.
func ArgScalar[T Elem](a Args, i int) T { return exec.Value[T](a, i, elem.Of[T]()) }

// ArgStruct returns argument i, passed by Struct.
func ArgStruct[T any](a Args, i int) T { return exec.StructAt[T](a, i) }

// ArgSlice returns argument i, a buffer of T, as a slice of its elements.
func ArgSlice[T Stored](a Args, i int) []T { return exec.SliceAt[T](a, i, elem.Of[T]()) }

// Launch enqueues k on s. Call it from the one typed function that stands beside the kernel. It
// fails for freed buffers and buffers of another world, and allocates nothing. A launch is no
// value: Stream.Capture makes a Graph of launches, which a program keeps and launches again.
//
// On a GPU the arguments must have the number and the sizes of the parameters in the CUDA source.
// Drivers from CUDA 12.4 on know these. In tests (spmdtest.Main) launches on the host are compared
// with the source, types too.
func (k *Kernel) Launch(s *Stream, g Grid, args ...Arg) error {
	if err := exec.CheckGrid(k.in().Name(), &g); err != nil {
		return err
	}
	if kernels.Comparing() && s.rank().OnHost() {
		if err := hostexec.Fits(k.in(), args); err != nil {
			return fmt.Errorf("%s: %w", ccall.At(), err)
		}
	}
	c, err := s.rank().BeginArgs(s.queue(), exec.DoKernel, args)
	if err != nil {
		return err
	}
	c.Kernel, c.Grid = k.in(), g
	return s.queue().Enqueue(c)
}
