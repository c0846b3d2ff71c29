package blas

import (
	_ "embed"
	"fmt"
	"math/bits"

	"lockstep/host"
	"lockstep/spmd"
)

// collect takes the elements that the neighbours need.
//
//spmd:kernel
func collect[T float32 | float64](i int, to, x []T, index []int32) { to[i] = x[index[i]] }

//go:embed csr.cu
var csrSource string

// lanesBits is the number of kernels for a type: of 1, 2, 4 to 32 threads for a row.
const lanesBits = 6

var (
	csrSingle = csrKernels[float32]("float")
	csrDouble = csrKernels[float64]("double")
)

func csrKernels[T float32 | float64](name string) (list [lanesBits]*spmd.Kernel) {
	for i := range list {
		lanes := 1 << i
		list[i] = spmd.NewKernel(fmt.Sprintf("csr_product<%s, %d>", name, lanes), csrSource,
			func(a spmd.Args) error { return csrOnHost[T](a, lanes) },
			spmd.KernelOptions{Flags: []string{"--fmad=false"}})
	}
	return list
}

// csrKernelFor returns the kernel for rows of elements/rows elements on average, and its threads
// for a row. Each thread is to have about two elements.
func csrKernelFor[T float32 | float64](rows, elements int) (k *spmd.Kernel, lanes int) {
	i := min(bits.Len(uint(elements/max(1, 2*rows))), lanesBits-1)
	list := &csrDouble
	if _, ok := any(T(0)).(float32); ok {
		list = &csrSingle
	}
	return list[i], 1 << i
}

const csrThreads = 256

// csrGrain is the least number of rows that is worth a goroutine.
const csrGrain = 1 << 10

// csrOnHost adds up in the order of the kernel.
func csrOnHost[T float32 | float64](a spmd.Args, lanes int) error {
	rows := a.I32(7)
	if rows <= csrGrain {
		csrOfRows[T](a, lanes, 0, rows)
	} else {
		host.Parallel(rows, csrGrain, func(lo, hi int) { csrOfRows[T](a, lanes, lo, hi) })
	}
	return nil
}

// csrOfRows has each lane add up its elements, and then adds lanes by halves.
func csrOfRows[T float32 | float64](a spmd.Args, lanes, lo, hi int) {
	y, start, column := spmd.ArgSlice[T](a, 0), spmd.ArgSlice[int32](a, 1), spmd.ArgSlice[int32](a, 2)
	value, x, halo := spmd.ArgSlice[T](a, 3), spmd.ArgSlice[T](a, 4), spmd.ArgSlice[T](a, 5)
	own := a.I32(6)
	for row := lo; row < hi; row++ {
		var sum [1 << (lanesBits - 1)]T
		first, end := start[row], start[row+1]
		for k, c := range column[first:end] {
			v := value[int(first)+k]
			if int(c) < own {
				v *= x[c]
			} else {
				v *= halo[int(c)-own]
			}
			sum[k&(lanes-1)] += v
		}
		for d := lanes / 2; d > 0; d /= 2 {
			for l := range d {
				sum[l] += sum[l+d]
			}
		}
		y[row] = sum[0]
	}
}
