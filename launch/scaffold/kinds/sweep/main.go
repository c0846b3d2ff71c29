// Command anapp computes something for each value of a parameter: many small jobs in one.
// See README.md.
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/random"
	"lockstep/spmd/telemetry"
)

// config is every setting of a run.
type config struct {
	From, To float64
	Jobs     int
	Group    int
	Starts   int
	Steps    int
}

func (c *config) flags(fs *pflag.FlagSet) {
	fs.Float64Var(&c.From, "from", 2.5, "rate of the first job, without a unit")
	fs.Float64Var(&c.To, "to", 4, "rate of the last job, without a unit")
	fs.IntVar(&c.Jobs, "jobs", 31, "jobs, which are points between these rates")
	fs.IntVar(&c.Group, "group", 1, "ranks that share a job")
	fs.IntVar(&c.Starts, "starts", 10_000, "samples of a job")
	fs.IntVar(&c.Steps, "steps", 1000, "steps of a sample")
}

// check runs on every rank before MPI starts: the job ends with one line for bad input.
func (c *config) check(ranks int) error {
	switch {
	case c.Jobs < 1:
		return fmt.Errorf("--jobs %d: must be at least 1", c.Jobs)
	case c.Group < 1 || c.Group > ranks:
		return fmt.Errorf("--group %d: must be 1 to the %d ranks", c.Group, ranks)
	case c.Starts < c.Group:
		return fmt.Errorf("--starts %d: fewer than the %d ranks of a group", c.Starts, c.Group)
	case c.Steps < 1:
		return fmt.Errorf("--steps %d: must be at least 1", c.Steps)
	}
	return nil
}

// value is the parameter of a job.
func (c *config) value(job int) float64 {
	return c.From + (c.To-c.From)*float64(job)/float64(max(1, c.Jobs-1))
}

func main() {
	var c config
	fs := pflag.NewFlagSet("anapp", pflag.ExitOnError)
	c.flags(fs)
	spmd.Main(fs, func(_ context.Context, w *spmd.World) error {
		all, err := run(w, c)
		if err != nil {
			return err // on any rank: the job ends on all of them
		}
		for _, r := range all {
			if err := w.Emit(r); err != nil { // rank 0 writes a line of JSON where --json says
				return err
			}
		}
		w.Log().Info().Int("jobs", len(all)).Msg("done")
		return nil
	}, c.check)
}

// result is one line of --json.
type result struct {
	Rate  float64 `json:"rate"`
	Above float64 `json:"above"`
}

// The command writes kernels_spmd.go: the kernel in CUDA C++ for GPUs, and the function that
// launches it. The results of a kernel are added up over all i.
//
//go:generate go run lockstep/spmd/spmdgen

// spread lets sample i take some steps, and returns in how many of them it was above a half.
//
//spmd:kernel
func spread(i int, start []float64, rate float64, steps int) (above int64) {
	x := start[i]
	for range steps {
		if x = rate * x * (1 - x); x > 0.5 {
			above++
		}
	}
	return above
}

// run computes all jobs, and returns their results on every rank. Groups of ranks take the jobs in
// turn.
func run(w *spmd.World, c config) (all []result, err error) {
	groups := (w.Size() + c.Group - 1) / c.Group // the last one may have fewer ranks
	mine := w.Rank() / c.Group
	group, err := w.Comm().Split(mine, w.Rank())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, group.Close()) }()
	part := spmd.ShardOf(c.Starts, group.Rank(), group.Size()) // of each job, the samples of this rank
	s, err := w.NewStream("anapp")
	if err != nil {
		return nil, err
	}
	start, err := spmd.Alloc[float64](w, part.Len)
	if err != nil {
		return nil, err
	}
	defer start.Free()
	above, err := spmd.Alloc[int64](w, c.Jobs)
	if err != nil {
		return nil, err
	}
	defer above.Free()

	p := telemetry.StartWork(w, "computing", int64((c.Jobs+groups-1)/groups), "jobs")
	defer p.Done()
	err = errors.Join(above.SetAll(0), random.Uniform(s, start, w.Seed(), part.Off)) // in each job the same
	for job := mine; err == nil && job < c.Jobs; job += groups {
		one := above.Slice(job, job+1)
		err = errors.Join(launchSpread(s, one, part.Len, start, c.value(job), c.Steps),
			spmd.Reduce(group.On(s), one, one, spmd.Sum, 0), s.Synchronize())
		p.Add(1)
	}
	if err != nil {
		return nil, err
	}
	// Only the first rank of a group has the sum of a job.
	counts := make([]int64, c.Jobs)
	if group.Rank() == 0 {
		if err := above.CopyTo(counts); err != nil {
			return nil, err
		}
	}
	if err := hostdata.AllReduceSlice(w.Comm(), counts, counts, spmd.Sum); err != nil {
		return nil, err
	}
	for job, n := range counts {
		all = append(all, result{c.value(job), float64(n) / float64(c.Starts*c.Steps)})
	}
	return all, nil
}
