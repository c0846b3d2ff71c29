package vector

import (
	_ "embed"
	"fmt"

	"lockstep/internal/ccall"
	"lockstep/spmd"
	"lockstep/spmd/library"
)

// The common parts of this package's kernels in CUDA C++.

//go:embed chain.cuh
var chainSource string

// threads is the number of threads of a block in this package's kernels.
const threads = 256

// cTypes are the element types in C++, in the order of Number.
var cTypes = [...]string{"int32_t", "uint32_t", "int64_t", "uint64_t", "float", "double"}

// typeOf is T's place in Number.
func typeOf[T Number]() int {
	switch any(*new(T)).(type) {
	case int32:
		return 0
	case uint32:
		return 1
	case int64:
		return 2
	case uint64:
		return 3
	case float32:
		return 4
	}
	return 5
}

// device declares a kernel in CUDA C++. The host function is its Function's.
func device(name, source string, flags ...string) *spmd.Kernel {
	return spmd.NewKernel(name, source, nil, spmd.KernelOptions{Flags: flags})
}

// cores returns how many multiprocessors the GPU of a call has, 1 if kernels are emulated.
func cores(call library.Call) int {
	if call.Stream == nil {
		return 1
	}
	return call.Stream.Device().Multiprocessors()
}

// clearGrid returns a grid that clears n words, of blocks with so many threads.
func clearGrid(call library.Call, n, threads int) spmd.Grid {
	return spmd.Cover1D(min(n, cores(call)*threads), threads)
}

// after returns a grid of one dimension whose kernel begins while the launch ahead ends.
func after(blocks, shared int) spmd.Grid {
	return spmd.Grid{Blocks: [3]int{blocks, 1, 1}, Threads: [3]int{threads, 1, 1}, Shared: shared, Programmatic: true}
}

func over(n, d int) int { return (n + d - 1) / d }

// chained returns the words of memory that chain.cuh needs for a launch of so many tiles.
func chained(tiles, group, bytes int) int {
	groups := over(tiles, group)
	return 2 + (tiles+groups+over(groups, group)+1)*bytes/4
}

// one refuses results that are not buffers of one element.
func one[T spmd.Elem](op, what string, b spmd.Buffer[T]) error {
	if b.Len() != 1 {
		return fmt.Errorf("%s: %s: %s has %d elements, the result 1", ccall.At(), op, what, b.Len())
	}
	return nil
}

// apart refuses a result that overlaps the vectors that it is of.
func apart[T spmd.Elem](op string, dst spmd.Buffer[T], x, y spmd.Buffer[T]) error {
	return library.Apart(op, library.Writes("dst", dst), library.Reads("x", x), library.Reads("y", y))
}
