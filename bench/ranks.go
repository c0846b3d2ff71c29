package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"lockstep/bench/measure"
)

// layouts are the ways to start four ranks: the number of processes, 0 without mpirun, and the
// flags for several ranks in each. The later ones are compared with the first, and may take so many
// times as long.
var layouts = []struct {
	what      string
	processes int
	flags     []string
	goal      float64
}{
	{"4 processes of 1 rank", 4, nil, 0},
	{"1 process of 4 ranks", 0, []string{"--ranks", "4"}, 1},
}

// exchanged are the calls that ranks compares, with their bytes.
var exchanged = []struct {
	measure, what string
	bytes         []int
}{
	{"allreduce", "all-reduce of %d bytes, float32", []int{8, 16 << 10, 1 << 20, 16 << 20}},
	{"alltoall", "all-to-all of %d bytes to each rank", []int{8, 1 << 10, 16 << 10, 256 << 10}},
}

// ranks compares ranks that are goroutines with ranks that are processes: collectives by their
// size, and a step of training. If there are more ranks than cores their waits vary, so the fastest
// round counts.
func (b *bench) ranks() error {
	for _, e := range exchanged {
		for _, bytes := range e.bytes {
			if err := b.layouts(e.measure, fmt.Sprintf(e.what, bytes), bytes); err != nil {
				return err
			}
		}
	}
	return b.trainLayouts()
}

// layouts compares a collective over all layouts.
func (b *bench) layouts(call, what string, bytes int) error {
	us := make([][]float64, len(layouts))
	for range b.Rounds {
		for i, l := range layouts {
			cmd, err := b.Rank(l.processes, call, append([]string{"--bytes", strconv.Itoa(bytes)}, l.flags...)...)
			if err != nil {
				return err
			}
			p, err := onePoint(cmd)
			if err != nil {
				return err
			}
			us[i] = append(us[i], p.MedianUS)
		}
	}
	for i, l := range layouts[1:] {
		b.CompareTimes(measure.Row{What: what + ", " + l.what, Ranks: 4, Ours: slices.Min(us[i+1]), Unit: "us",
			Goal: l.goal},
			layouts[0].what, slices.Min(us[0]))
	}
	return nil
}

// layoutSteps are the steps of a run of train.
const layoutSteps = 100

// trainLayouts compares the default training on two ranks.
func (b *bench) trainLayouts() error {
	var ours, theirs []float64
	for range b.Rounds {
		for _, side := range []struct {
			ms    *[]float64
			ranks int
			flags []string
		}{{&theirs, 2, nil}, {&ours, 0, []string{"--ranks", "2"}}} {
			steps, err := b.trainSteps(side.ranks, layoutSteps, side.flags)
			if err != nil {
				return err
			}
			slices.SortFunc(steps, func(x, y measure.TrainStep) int { return cmp.Compare(x.MS, y.MS) })
			*side.ms = append(*side.ms, steps[len(steps)/8].MS) // the median of the faster quarter
		}
	}
	b.CompareTimes(measure.Row{What: "step of the default training, 1 process of 2 ranks", Ranks: 2,
		Ours: measure.Median(ours), Unit: "ms", Goal: 1.05},
		"mpirun -np 2", measure.Median(theirs))
	return nil
}
