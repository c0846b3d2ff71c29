package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"lockstep/bench/measure"
)

// divisionRanks are the ranks of every way to divide a run. divisionSteps are the steps whose
// losses are compared.
const (
	divisionRanks = 4
	divisionSteps = 50
)

// division is one way in which the ranks divide a run.
type division struct {
	tensor, stages int
	shard          string
}

// divisions returns all divisions of so many ranks. The first is plain data parallel.
func divisions(ranks int) (all []division) {
	for tensor := 1; tensor <= ranks; tensor++ {
		for stages := 1; stages <= ranks; stages++ {
			if ranks%(tensor*stages) != 0 {
				continue
			}
			for _, shard := range []string{"off", "optimizer", "gradients", "parameters"} {
				all = append(all, division{tensor, stages, shard})
			}
		}
	}
	return all
}

func (d division) flags(ranks int) []string {
	return []string{"--dp", strconv.Itoa(ranks / (d.tensor * d.stages)), "--tp", strconv.Itoa(d.tensor), "--pp",
		strconv.Itoa(d.stages), "--shard", d.shard}
}

// division compares the losses of every way to divide a run with those of plain data parallel. It
// also compares the memory that each run announced with what its buffers then took.
func (b *bench) division() error {
	text := filepath.Join(b.Dir, "division.txt")
	if err := os.WriteFile(text, []byte(measure.Numbers(100_000)), 0o666); err != nil {
		return err
	}
	run := func(d division, steps int, more ...string) ([]measure.TrainStep, measure.TrainStep, error) {
		flags := slices.Concat([]string{b.Program("train"), "--device", "host", "--data", text, "--layers", "5",
			"--heads", "4", "--channels", "64", "--batch", "2", "--global-batch", "16", "--val-batches", "0",
			"--sample", "0", "--json", "-", "--log-level", "warn", "--steps", strconv.Itoa(steps)},
			d.flags(divisionRanks), more)
		out, err := measure.Output(measure.MPIRun(divisionRanks, flags...)...)
		if err != nil {
			return nil, measure.TrainStep{}, err
		}
		lines, err := measure.Exactly[measure.TrainStep](out, steps+1)
		if err != nil {
			return nil, measure.TrainStep{}, err
		}
		return lines[:steps], lines[steps], nil
	}
	differ, memory := map[string]float64{}, map[string]float64{}
	var plain []measure.TrainStep
	for _, d := range divisions(divisionRanks) {
		what := strings.Join(d.flags(divisionRanks), " ")
		steps, summary, err := run(d, divisionSteps, "--dtype", "float32")
		if err != nil {
			return err
		}
		memory[what] = summary.Unforeseen()
		if plain == nil {
			plain = steps
		} else {
			differ[what] = largestDifference(steps, plain)
		}
		for _, more := range []string{"--recompute gelu", "--recompute block", "--dtype bfloat16"} {
			if _, summary, err = run(d, 2, strings.Fields(more)...); err != nil {
				return err
			}
			memory[what+" "+more] = summary.Unforeseen()
		}
	}
	for _, r := range []struct {
		what, unit string
		parts      map[string]float64
		goal       float64
	}{
		{fmt.Sprintf("largest difference of a loss over %d steps in float32 from plain data parallel, by division",
			divisionSteps), "nats", differ, 1e-4},
		{"memory of buffers that differs from what was told before, as a part of it, by division", "part", memory,
			0.05},
	} {
		worst := 0.0
		for _, v := range r.parts {
			worst = max(worst, v)
		}
		b.Limit(measure.Row{What: r.what, Ranks: divisionRanks, Ours: worst, Unit: r.unit, Goal: r.goal,
			Parts: r.parts})
	}
	return nil
}

// largestDifference returns the largest difference of two runs' losses in the same step.
func largestDifference(a, b []measure.TrainStep) float64 {
	worst := 0.0
	for i := range a {
		worst = max(worst, math.Abs(a[i].Loss-b[i].Loss))
	}
	return worst
}
