// Sweep runs one small job for each value of a parameter. Groups of ranks take them in turn.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/random"
)

func main() {
	spmd.Main(pflag.NewFlagSet("sweep", pflag.ExitOnError), sweep)
}

//go:generate go run lockstep/spmd/spmdgen

// sweepSpread returns how often one of many was above a half in so many steps.
//
//spmd:kernel
func sweepSpread(i int, begin []float32, rate float64, steps int) (above int64) {
	x := float64(begin[i])
	for range steps {
		if x = rate * x * (1 - x); x > 0.5 {
			above++
		}
	}
	return above
}

func sweep(_ context.Context, w *spmd.World) error {
	const jobs, starts, steps, each = 12, 3000, 1000, 1 // each is the ranks of a group
	group, err := w.Comm().Split(w.Rank()/each, w.Rank())
	s, err2 := w.NewStream("sweep")
	mine := spmd.ShardOf(starts, group.Rank(), group.Size()) // a job is divided among the ranks of its group
	begin, err3 := spmd.Alloc[float32](w, mine.Len)
	above, err4 := spmd.Alloc[int64](w, 1)
	if err = errors.Join(err, err2, err3, err4); err != nil {
		return err
	}
	found := make([]float64, jobs)
	err = random.Uniform(s, begin, 1, mine.Off)
	for job := w.Rank() / each; err == nil && job < jobs; job += (w.Size() + each - 1) / each {
		err = errors.Join(launchSweepSpread(s, above, mine.Len, begin, 3.45+0.05*float64(job), steps),
			spmd.AllReduce(group.On(s), above, above, spmd.Sum))
		if group.Rank() == 0 {
			found[job] = float64(above.At(0)) / (starts * steps)
		}
	}
	all := make([]float64, jobs)
	err = errors.Join(err, hostdata.AllReduceSlice(w.Comm(), all, found, spmd.Sum))
	for job := 0; err == nil && job < jobs && w.Rank() == 0; job++ {
		rate := 3.45 + 0.05*float64(job)
		fmt.Printf("rate %.2f: above a half in %.2f of the steps\n", rate, all[job])
		err = w.Emit(map[string]any{"rate": rate, "above": all[job]})
	}
	return errors.Join(err, group.Close())
}
