package main

import (
	_ "embed"
	"fmt"

	"lockstep/host"
	"lockstep/spmd"
	"lockstep/spmd/telemetry"
)

//go:embed sum.cu
var sumSource string

// sumTuning is the sizes of sum_f32.
type sumTuning struct {
	threads  int // of a block
	deep     int // loads of 16 bytes that a thread has in flight
	resident int // blocks that a multiprocessor must hold, which limits the registers of a thread
}

var sumTuned = sumTuning{threads: 512, deep: 8, resident: 2}

func (t sumTuning) source() string {
	return fmt.Sprintf("#define SUM_THREADS %d\n#define SUM_DEEP %d\n#define SUM_RESIDENT %d\n#line 1\n",
		t.threads, t.deep, t.resident) + sumSource
}

func newSumKernel(t sumTuning) *spmd.Kernel {
	return spmd.NewKernel("sum_f32", t.source(), func(a spmd.Args) error {
		sum, x := spmd.ArgSlice[float64](a, 0), spmd.ArgSlice[float32](a, 3)
		sum[0] = host.SumParallel(x)
		return nil
	}, spmd.KernelOptions{Tolerance: 1e-12, Scratch: []int{1, 2}})
}

var sumKernel = newSumKernel(sumTuned)

// adder is one way to sum: a kernel, and the memory of its result. Its launches must not run at the
// same time, since they share the scratch memory.
type adder[T float64 | int64] struct {
	kernel                *spmd.Kernel
	threads, each, blocks int // of it; each is how many elements are worth a thread

	sum     spmd.Buffer[T] // of this rank
	answer  spmd.Buffer[T] // the total, where the host reads it
	part    spmd.Buffer[T] // a share of the sum for each block
	arrived spmd.Buffer[uint32]
}

// open allocates the memory. The sum has n elements. Collective.
func (a *adder[T]) open(w *spmd.World, n int) (err error) {
	if a.answer, err = spmd.AllocPinned[T](w, n); err != nil {
		return err
	}
	if a.sum = a.answer; w.Size() > 1 {
		if a.sum, err = spmd.AllocSymmetric[T](w, n); err != nil {
			return err
		}
	}
	if a.part, err = spmd.Alloc[T](w, n*a.blocks); err != nil {
		return err
	}
	if a.arrived, err = spmd.Alloc[uint32](w, 1); err != nil {
		return err
	}
	return a.arrived.SetAll(0)
}

// local enqueues sum = the sum of x, in an order that depends only on the length and
// the kind of GPU.
func (a *adder[T]) local(s *spmd.Stream, x spmd.Buffer[float32]) error {
	blocks := min(a.blocks, 1+x.Len()/(a.threads*a.each))
	return a.kernel.Launch(s, spmd.Cover1D(blocks*a.threads, a.threads), a.sum.Arg(), a.part.Arg(), a.arrived.Arg(),
		x.Arg(), spmd.I64(x.Len()))
}

// global enqueues answer = the sum of all ranks, straight into the host's memory: a copy would have
// to wake its engine first. A rank that is alone has it from the kernel.
func (a *adder[T]) global(w *spmd.World, s *spmd.Stream, x spmd.Buffer[float32]) error {
	if err := a.local(s, x); err != nil || w.Size() == 1 {
		return err
	}
	return spmd.AllReduce(w.Comm().On(s), a.answer, a.sum, spmd.Sum)
}

// newPlain returns an adder with as many blocks as the GPU holds at once. A second wave would cost
// as much as the sum of 7,500,000 elements, a share of 4 GPUs.
func newPlain(w *spmd.World, k *spmd.Kernel, t sumTuning) *adder[float64] {
	return &adder[float64]{kernel: k, threads: t.threads, each: 4 * t.deep,
		blocks: t.resident * max(1, w.Multiprocessors())}
}

// summer is a way to sum: step enqueues it, answer reads the last sum, and measure times steps
// until the host sees their sums.
type summer struct {
	step    func(x spmd.Buffer[float32]) error
	answer  func() float64
	measure func(c config, steps []func() error) (telemetry.Stats, error)
}

func (a *adder[T]) summer(w *spmd.World, s *spmd.Stream, answer func() float64) summer {
	return summer{
		step:   func(x spmd.Buffer[float32]) error { return a.global(w, s, x) },
		answer: answer,
		measure: func(c config, steps []func() error) (telemetry.Stats, error) {
			return telemetry.MeasureAwait(w.Comm(), s, a.answer, c.Graph, c.Warmup, c.Iters, steps...)
		},
	}
}

// plainSummer accumulates in float64.
func plainSummer(w *spmd.World, s *spmd.Stream) (summer, error) {
	a := newPlain(w, sumKernel, sumTuned)
	err := a.open(w, 1)
	return a.summer(w, s, func() float64 { return a.answer.At(0) }), err
}

// exactSummer rounds once, at the end.
func exactSummer(w *spmd.World, s *spmd.Stream) (summer, error) {
	a := &adder[int64]{kernel: exactKernel, threads: exactThreads, each: exactEach, blocks: exactBlocks}
	err := a.open(w, words)
	return a.summer(w, s, func() float64 {
		var e exact
		for i := range e {
			e[i] = a.answer.At(i)
		}
		return e.value()
	}), err
}
