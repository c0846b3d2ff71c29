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

// adder is one way to sum: a kernel, and what its result is made of. Its launches may
// not run at the same time as each other: they share the scratch memory.
type adder[T float64 | int64] struct {
	kernel                *spmd.Kernel
	threads, each, blocks int

	sum, answer spmd.Buffer[T] // on the device, and where the host reads it
	part        spmd.Buffer[T] // a share of the sum for each block
	arrived     spmd.Buffer[uint32]
}

// open takes the memory; the sum has n elements.
func (a *adder[T]) open(w *spmd.World, n int) (err error) {
	if a.sum, err = spmd.Alloc[T](w, n); err != nil {
		return err
	}
	if a.part, err = spmd.Alloc[T](w, n*a.blocks); err != nil {
		return err
	}
	if a.answer, err = spmd.AllocPinned[T](w, n); err != nil {
		return err
	}
	if a.arrived, err = spmd.Alloc[uint32](w, 1); err != nil {
		return err
	}
	return a.arrived.Fill(0)
}

// local enqueues sum = the sum of x, in an order that depends on the length alone.
func (a *adder[T]) local(s *spmd.Stream, x spmd.Buffer[float32]) error {
	blocks := min(a.blocks, 1+x.Len()/(a.threads*a.each))
	return a.kernel.Launch(s, spmd.Cover1D(blocks*a.threads, a.threads), a.sum.Arg(), a.part.Arg(), a.arrived.Arg(), x.Arg(), spmd.I64(x.Len()))
}

// global enqueues answer = the sum of all ranks.
func (a *adder[T]) global(w *spmd.World, s *spmd.Stream, x spmd.Buffer[float32]) error {
	if err := a.local(s, x); err != nil {
		return err
	}
	if err := spmd.AllReduce(w.Comm.On(s), a.sum, a.sum, spmd.Sum); err != nil {
		return err
	}
	return spmd.Copy(s, a.answer, a.sum)
}

// plainStep returns what enqueues a sum accumulated in float64, and what reads it.
func plainStep(w *spmd.World, s *spmd.Stream) (step func(x spmd.Buffer[float32]) error, answer func() float64, err error) {
	a := &adder[float64]{kernel: sumKernel, threads: sumThreads, each: sumEach, blocks: sumBlocks}
	if err := a.open(w, 1); err != nil {
		return nil, nil, err
	}
	return func(x spmd.Buffer[float32]) error { return a.global(w, s, x) }, func() float64 { return a.answer.At(0) }, nil
}

// exactStep is plainStep for a sum that is rounded once, at the end.
func exactStep(w *spmd.World, s *spmd.Stream) (step func(x spmd.Buffer[float32]) error, answer func() float64, err error) {
	a := &adder[int64]{kernel: exactKernel, threads: exactThreads, each: exactEach, blocks: exactBlocks}
	if err := a.open(w, words); err != nil {
		return nil, nil, err
	}
	return func(x spmd.Buffer[float32]) error { return a.global(w, s, x) }, func() float64 {
		var e exact
		for i := range e {
			e[i] = a.answer.At(i)
		}
		return e.value()
	}, nil
}
