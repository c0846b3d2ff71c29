package main

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

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

// replay launches a graph with collectives many times. A wrong result, a status other than 0, and a
// process that does not end are failures.
func (b *bench) replay() error {
	var failed error
	for n := 1; n <= len(b.GPUs); n++ {
		cmd, err := b.Rank(n, "replay")
		if err != nil {
			return err
		}
		r := measure.Row{What: fmt.Sprintf("failures of %d replays of a graph with collectives, and of the exit",
			measure.Replays), Ranks: n, Unit: "failures"}
		if _, err := measure.Output(cmd...); err != nil {
			r.Ours, failed = 1, err
		}
		b.Limit(r)
	}
	return failed
}

// lossGoals bound the difference between a loss on GPUs and the loss of the same training in
// float32 on the host. Training is smooth at this rate. At three times the rate the host's own
// float32 and bfloat16 part, by 0.34 in a step.
var lossGoals = []struct {
	DType string
	goal  float64
}{{"float32", 1e-4}, {"bfloat16", 1e-2}}

const lossSteps = 10

// losses compares the losses of a short training on GPUs and on the host, from the same sequences.
func (b *bench) losses() error {
	data := filepath.Join(b.Dir, "numbers.txt")
	if err := os.WriteFile(data, []byte(measure.Numbers(100_000)), 0o666); err != nil {
		return err
	}
	train := func(n int, flags ...string) ([]float64, error) {
		out, err := measure.Output(measure.MPIRun(n,
			append([]string{b.Program("train"), "--data", data, "--cache", b.Dir, "--steps", strconv.Itoa(lossSteps),
				"--batch", "1", "--global-batch", "24", "--lr", "1e-3", "--val-batches", "0", "--sample", "0", "--json",
				"-", "--log-level", "warn"}, flags...)...)...)
		if err != nil {
			return nil, err
		}
		return stepLosses(out)
	}
	want, err := train(1, "--device", "host", "--dtype", "float32")
	if err != nil {
		return err
	}
	for _, g := range lossGoals {
		for n := 1; n <= len(b.GPUs); n++ {
			got, err := train(n, "--device", "cuda", "--dtype", g.DType)
			if err != nil {
				return err
			}
			worst := 0.0
			for i := range want {
				worst = max(worst, math.Abs(got[i]-want[i]))
			}
			b.Limit(measure.Row{What: fmt.Sprintf(
				"largest difference of a loss from the host's in float32, %s, %d steps", g.DType, lossSteps), Ranks: n,
				Ours: worst, Unit: "nats", Goal: g.goal})
		}
	}
	return nil
}

// stepLosses returns the losses of all steps that train printed.
func stepLosses(out string) ([]float64, error) {
	steps, err := measure.Steps(out, lossSteps)
	if err != nil {
		return nil, err
	}
	var losses []float64
	for _, s := range steps {
		losses = append(losses, s.Loss)
	}
	return losses, nil
}

// errors reports the largest errors that the tests of apps/train find on GPUs, against their model
// in float64. It runs the tests that make test-gpu has built.
func (b *bench) errors() error {
	file := filepath.Join(b.Dir, "measured")
	for _, t := range []struct{ folder, name string }{
		{"apps/train/gpt", "TestModelAgainstReference"}, {"apps/train/trainer", "TestLossDoesNotDependOnRanks"},
	} {
		test, err := filepath.Abs(b.Program(filepath.Join("test", t.folder, filepath.Base(t.folder)+".test")))
		if err != nil {
			return err
		}
		for n := 1; n <= len(b.GPUs); n++ {
			env := []string{"LOCKSTEP_MEASURED=" + file, "SPMDTEST_DEVICE=cuda", "SPMDTEST_RANKS=" + strconv.Itoa(n)}
			if _, _, err := measure.Outputs(env, "sh", "-c",
				"cd "+t.folder+" && exec "+test+" -test.run '^"+t.name+"$'"); err != nil {
				return err
			}
		}
	}
	return b.judge(file, []errorGoal{
		{"difference of the float32 loss from the float64 model", 1, 1e-4},
		{"largest relative difference of a float32 gradient tensor from the float64 model", 1, 1e-4},
		{"difference of the bfloat16 loss from the float64 model", 1, 1e-2},
		{"largest relative difference of a bfloat16 gradient tensor from the float64 model", 1, 2e-2},
		{"largest difference of a loss on 1, 2, 3 and 4 ranks over 20 steps", len(b.GPUs), 1e-4},
	})
}
