package main

import (
	_ "embed"

	"lockstep/host"
	"lockstep/spmd"
)

//go:embed sum.cu
var source string

var sumKernel = spmd.NewKernel("sum_f32", source, func(a spmd.Args) error {
	sum, x := spmd.ArgSlice[float64](a, 0), spmd.ArgSlice[float32](a, 3)
	sum[0] = host.SumParallel(x)
	return nil
})

const (
	sumThreads = 512 // of a block
	sumEach    = 16  // elements that are worth a thread
	sumBlocks  = 512 // at most: what a large GPU holds at once
)

// summer sums on the device. Its launches may not run at the same time as each
// other: they share the scratch memory.
type summer struct {
	part    spmd.Buffer[float64] // a share of the sum for each block
	arrived spmd.Buffer[uint32]  // how many shares are written
}

func newSummer(w *spmd.World) (k summer, err error) {
	if k.part, err = spmd.Alloc[float64](w, sumBlocks); err != nil {
		return k, err
	}
	if k.arrived, err = spmd.Alloc[uint32](w, 1); err != nil {
		return k, err
	}
	return k, k.arrived.Fill(0)
}

// sum enqueues out[0] = the sum of x, accumulated in float64, in an order that
// depends on the length alone.
func (k summer) sum(s *spmd.Stream, out spmd.Buffer[float64], x spmd.Buffer[float32]) error {
	blocks := min(sumBlocks, 1+x.Len()/(sumThreads*sumEach))
	return sumKernel.Launch(s, spmd.Cover1D(blocks*sumThreads, sumThreads), out.Arg(), k.part.Arg(), k.arrived.Arg(), x.Arg(), spmd.I64(x.Len()))
}
