package main

import (
	"cmp"
	"os"
	"slices"

	"lockstep/bench/measure"
)

// cuda returns the compiler's flags for CUDA. CPATH and LIBRARY_PATH add folders.
func cuda(libraries ...string) []string {
	home := cmp.Or(os.Getenv("CUDA_HOME"), "/usr/local/cuda")
	return append([]string{"-I" + home + "/include", "-L" + home + "/lib64", "-L" + home + "/lib64/stubs"},
		libraries...)
}

// enqueue compares an all-reduce on a stream with ncclAllReduce called from C.
func (b *bench) enqueue() error {
	program, err := b.C("nccl_enqueue", append([]string{"mpicc"}, cuda("-lnccl", "-lcudart")...)...)
	if err != nil {
		return err
	}
	for _, n := range slices.Compact([]int{1, len(b.GPUs)}) {
		if err := b.hostTime(n, "enqueue", "an all-reduce of 8 bytes on a stream", "ncclAllReduce from C",
			measure.MPIRun(n, program)); err != nil {
			return err
		}
	}
	return nil
}

// launch compares the launch of a kernel with cuLaunchKernel called from C.
func (b *bench) launch() error {
	program, err := b.C("launch", append([]string{measure.CC()}, cuda("-lcuda")...)...)
	if err != nil {
		return err
	}
	return b.hostTime(1, "launch", "a kernel launch", "cuLaunchKernel from C", []string{program})
}

// hostTime compares the host's time for a call, and counts its allocations. The best turn of each
// side counts: a process that the system puts far from its GPU is slow from start to end, by more
// than the difference of the sides.
func (b *bench) hostTime(ranks int, call, what, peer string, program []string) error {
	rank, err := b.Rank(ranks, call)
	if err != nil {
		return err
	}
	theirUS, ourUS, worst, err := b.turns(program, rank)
	if err != nil {
		return err
	}
	theirs, ours := slices.Min(theirUS), slices.Min(ourUS)
	b.CompareTimes(measure.Row{What: "host time of " + what, Ranks: ranks, Ours: ours, Unit: "us",
		Goal: (theirs + measure.HostOverhead) / theirs}, peer, theirs)
	b.Limit(measure.Row{What: "Go allocations of " + what, Ranks: ranks, Ours: float64(worst.Allocs),
		Unit: "allocations", Goal: 0})
	return nil
}
