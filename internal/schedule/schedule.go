// Package schedule calculates how a pipeline divides layers between stages, and when these work.
package schedule

import (
	"fmt"
	"math"
	"time"
)

// PassTime is how long a stage of a pipeline takes for the passes of one micro-batch, in any unit.
type PassTime struct{ Forward, Backward float64 }

// Schedule is when the stages of a pipeline work, as calculated from the times of their passes.
type Schedule struct {
	Length float64   // of a run, in the unit of the passes: to the end of the first stage, which ends last
	Ends   []float64 // when each stage has done its last pass
	Idle   []float64 // the part of Length in which each stage has nothing to do
}

// New calculates a run of micro micro-batches in the order of parallel.Pipeline. Messages take no
// time: a pass begins when its stage has done the passes before it, and the pass that makes its
// input is done. The stages may take unequal times. It panics if there is no stage or no
// micro-batch, or a time is not a number of at least 0.
func New(stages []PassTime, micro int) Schedule {
	n := len(stages)
	if n < 1 || micro < 1 {
		panic(fmt.Sprintf("schedule: %d micro-batches for %d stages", micro, n))
	}
	for r, x := range stages {
		if !(x.Forward >= 0 && x.Backward >= 0) || math.IsInf(x.Forward+x.Backward, 1) {
			panic(fmt.Sprintf("schedule: stage %d takes the times %g and %g", r, x.Forward, x.Backward))
		}
	}
	s := Schedule{Ends: make([]float64, n), Idle: make([]float64, n)}
	// The ends of the passes that were calculated, by stage and micro-batch.
	forward, backward := make([][]float64, n), make([][]float64, n)
	for r := range n {
		forward[r], backward[r] = make([]float64, 0, micro), make([]float64, 0, micro)
	}
	input := func(r int, t Task) (at float64, known bool) {
		from, ends := r-1, forward
		if t.Backward {
			from, ends = r+1, backward
		}
		switch {
		case from < 0 || from == n:
			return 0, true
		case t.Micro < len(ends[from]):
			return ends[from][t.Micro], true
		}
		return 0, false
	}
	for len(backward[0]) < micro {
		for r, x := range stages {
			for len(backward[r]) < micro {
				t := task(len(forward[r])+len(backward[r]), InFlight(n, r, micro)-1, micro)
				at, known := input(r, t)
				if !known {
					break
				}
				ends, time := &forward[r], x.Forward
				if t.Backward {
					ends, time = &backward[r], x.Backward
				}
				s.Ends[r] = max(s.Ends[r], at) + time
				*ends = append(*ends, s.Ends[r])
			}
		}
	}
	if s.Length = s.Ends[0]; s.Length > 0 {
		for r, x := range stages {
			s.Idle[r] = max(0, 1-float64(micro)*(x.Forward+x.Backward)/s.Length)
		}
	}
	return s
}

// InFlight returns the most micro-batches that stage r of n has begun and not ended.
func InFlight(n, r, micro int) int { return min(n-r, micro) }

// Tasks returns the tasks of stage r of n in the order in which parallel.Pipeline enqueues them.
func Tasks(n, r, micro int) []Task {
	tasks := make([]Task, 2*micro)
	for k := range tasks {
		tasks[k] = task(k, InFlight(n, r, micro)-1, micro)
	}
	return tasks
}

// task returns a stage's task k of a run, counted from 0. The stage takes ahead micro-batches
// forward, then one forward and one backward in turn.
func task(k, ahead, micro int) Task {
	turn := k - ahead
	switch {
	case turn < 0:
		return Task{k, false}
	case turn >= 2*(micro-ahead):
		return Task{k - micro, true}
	case turn%2 == 0:
		return Task{ahead + turn/2, false}
	}
	return Task{turn / 2, true}
}

// Task is a stage's work at a time: one of the passes of a micro-batch.
type Task struct {
	Micro    int
	Backward bool
}

// Time is a stage's measurement of its runs.
type Time struct {
	Whole   time.Duration // from the begin to the end of each run, in the stage's stream
	Waiting time.Duration // its part in messages: mostly until a neighbour gets there
}

// Idle returns, for each stage of a pipeline, the part of the time in which it has nothing to do:
// until it has the first input, in messages, and from its end to that of the stage that takes
// longest. Stages begin a run together if the one before has ended on all. It is 0 for all if
// nothing was measured.
func Idle(stages []Time) []float64 {
	idle, longest := make([]float64, len(stages)), time.Duration(0)
	for _, s := range stages {
		longest = max(longest, s.Whole)
	}
	for i, s := range stages {
		if longest > 0 {
			idle[i] = 1 - float64(s.Whole-s.Waiting)/float64(longest)
		}
	}
	return idle
}
