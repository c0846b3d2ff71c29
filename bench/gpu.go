package main

import (
	"cmp"
	"fmt"
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

// jobs returns the numbers of ranks for comparisons: 1 and all GPUs.
func (b *bench) jobs() []int { return slices.Compact([]int{1, len(b.GPUs)}) }

// enqueue compares an all-reduce on a stream with ncclAllReduce called from C.
func (b *bench) enqueue() error {
	program, err := b.C("nccl_enqueue", append([]string{"mpicc"}, cuda("-lnccl", "-lcudart")...)...)
	if err != nil {
		return err
	}
	for _, n := range b.jobs() {
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

// startup measures the time from the start of a process to the end of its first collective, after
// one run that fills the caches of kernels and files.
func (b *bench) startup() error {
	const limit = 3 // s
	for _, n := range b.jobs() {
		cmd, err := b.Rank(n, "startup", "--log-level", "info", "--log-format", "json")
		if err != nil {
			return err
		}
		type run struct {
			total float64
			parts map[string]float64
		}
		var runs []run
		for i := range b.Rounds + 1 {
			out, log, err := measure.Outputs(nil, cmd...)
			if err != nil {
				return err
			}
			total, err := measure.Exactly[measure.Started](out, 1)
			if err != nil {
				return fmt.Errorf("%v: %w", cmd, err)
			}
			parts, err := startupParts(log)
			if err != nil {
				return err
			}
			if i > 0 {
				runs = append(runs, run{total[0].MS / 1e3, parts})
			}
		}
		slices.SortFunc(runs, func(a, b run) int { return cmp.Compare(a.total, b.total) })
		r := runs[len(runs)/2]
		b.Limit(measure.Row{What: "process start to the end of the first collective, warm", Ranks: n, Ours: r.total,
			Unit: "s", Goal: limit, Parts: r.parts})
	}
	return nil
}

// startupParts returns the parts of the startup, in s. Rank 0's log has them in ms in
// its first line.
func startupParts(log string) (map[string]float64, error) {
	all, err := measure.Lines[struct {
		Startup map[string]float64 `json:"startup_ms"`
	}](log)
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		if l.Startup != nil {
			for k := range l.Startup {
				l.Startup[k] /= 1e3
			}
			return l.Startup, nil
		}
	}
	return nil, fmt.Errorf("no line of the log has startup_ms: %q", log)
}
