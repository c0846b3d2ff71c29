// Command anapp computes how heat spreads in a rod that is divided over the ranks. See README.md.
package main

import (
	"context"
	"fmt"
	"math"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/telemetry"
)

// config is every setting of a run.
type config struct {
	Points int
	Iters  int
	Graph  bool
}

func (c *config) flags(fs *pflag.FlagSet) {
	fs.IntVar(&c.Points, "points", 100_000, "points of the rod, over all ranks")
	fs.IntVar(&c.Iters, "iters", 100, "timed iterations, of two steps each")
	fs.BoolVar(&c.Graph, "graph", false, "capture an iteration once and replay it")
}

// check runs on every rank before MPI starts: the job ends with one line for bad input.
func (c *config) check(ranks int) error {
	switch {
	case c.Points < ranks:
		return fmt.Errorf("--points %d: fewer than the %d ranks", c.Points, ranks)
	case c.Points > math.MaxInt/32:
		return fmt.Errorf("--points %d: more bytes than can be addressed", c.Points)
	case c.Iters < 1:
		return fmt.Errorf("--iters %d: must be at least 1", c.Iters)
	}
	return nil
}

func main() {
	var c config
	fs := pflag.NewFlagSet("anapp", pflag.ExitOnError)
	c.flags(fs)
	spmd.Main(fs, func(_ context.Context, w *spmd.World) error {
		r, err := run(w, c)
		if err != nil {
			return err // on any rank: the job ends on all of them
		}
		w.Log().Info().Str("median", spmd.Amount(r.MedianUS/1e6, "s")).
			Str("rate", spmd.Amount(r.GBps*1e9, "B/s")).Str("rms_err", spmd.Amount(r.RMSErr, "")).
			Msg("done") // --json has all digits
		return w.Emit(r) // rank 0 writes one line of JSON where --json says
	}, c.check)
}

// result is the line of --json about the whole run. Measurements on the way, by w.Emit(step{...})
// in a loop, have lines of their own.
type result struct {
	Summary     bool   `json:"summary"`
	App         string `json:"app"`
	Ranks       int    `json:"ranks"`
	Nodes       int    `json:"nodes"`
	Device      string `json:"device"`
	Collectives string `json:"collectives"`
	Graph       bool   `json:"graph"`
	Dtype       string `json:"dtype"`
	Elements    int    `json:"elements"`
	Bytes       int    `json:"bytes"`
	telemetry.Stats
	GBps   float64 `json:"gbps"`
	RMSErr float64 `json:"rms_err"`
	OK     bool    `json:"ok"`
}

// warmup is the number of iterations before timing: on a GPU the first one waits until the kernel
// is compiled.
const warmup = 3

// run lets the heat of a sine flow, times it, and compares the result with the exact answer. An
// iteration reads and writes each point twice.
func run(w *spmd.World, c config) (result, error) {
	r := result{Summary: true, App: "anapp", Ranks: w.Size(), Nodes: w.Nodes(), Device: w.Device(),
		Collectives: w.Collectives(), Graph: c.Graph, Dtype: "float64", Elements: c.Points, Bytes: 4 * 8 * c.Points}
	mine := spmd.ShardOf(c.Points, w.Rank(), w.Size()) // the points that this rank holds
	s, err := w.NewStream("anapp")
	if err != nil {
		return r, err
	}
	u, err := newRod(w, mine.Len)
	if err != nil {
		return r, err
	}
	next, err := newRod(w, mine.Len)
	if err != nil {
		return r, err
	}
	if err := u.Slice(1, 1+mine.Len).CopyFrom(exact(c, mine, 0)); err != nil {
		return r, err
	}

	// Nothing in here waits: the work is enqueued, and runs in the order of the stream.
	iteration := func() error {
		if err := step(w.Comm().On(s), s, next, u); err != nil {
			return err
		}
		return step(w.Comm().On(s), s, u, next) // back into u: every iteration is the same, and a graph can replay it
	}
	if r.Stats, err = telemetry.MeasureStream(w.Comm(), s, c.Graph, warmup, c.Iters, iteration); err != nil {
		return r, err
	}
	r.GBps = r.Stats.GBps(r.Bytes)

	steps := 2 * (warmup + c.Iters)
	if r.RMSErr, err = rmsError(w, c, u, exact(c, mine, steps)); err != nil {
		return r, err
	}
	bound := 1e-15 * float64(steps+10) // a step rounds by a few times 1e-16, and amplifies nothing
	if r.OK = r.RMSErr <= bound; !r.OK {
		return r, fmt.Errorf("the heat is wrong: root mean square error %g, at most %g is allowed", r.RMSErr, bound)
	}
	return r, nil
}

// exact returns the points of part after a number of steps: a sine keeps its shape, and shrinks by
// one factor in each.
func exact(c config, part spmd.Shard, steps int) []float64 {
	k := math.Pi / float64(c.Points+1)
	height := math.Pow(1-4*rate*math.Pow(math.Sin(k/2), 2), float64(steps))
	x := make([]float64, part.Len)
	for i := range x {
		x[i] = height * math.Sin(k*float64(part.Off+i+1))
	}
	return x
}

// rmsError compares this rank's part of the rod with want, and returns the error of the whole rod
// on every rank.
//
// Collective, blocking.
func rmsError(w *spmd.World, c config, u spmd.Buffer[float64], want []float64) (float64, error) {
	got := make([]float64, u.Len())
	if err := u.CopyTo(got); err != nil {
		return 0, err
	}
	squares := 0.0
	for i, x := range want {
		squares += (got[i+1] - x) * (got[i+1] - x)
	}
	sum, err := spmd.Alloc[float64](w, 1)
	if err != nil {
		return 0, err
	}
	defer sum.Free()
	sum.Set(0, squares)
	if err := spmd.AllReduce(w.Comm(), sum, sum, spmd.Sum); err != nil { // on no stream: finished on return
		return 0, err
	}
	return math.Sqrt(sum.At(0) / float64(c.Points)), nil
}
