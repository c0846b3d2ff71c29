// Command reduce sums float32 numbers that the ranks hold in parts: each sums its own, then all add
// the partial sums. See README.md.
package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"lockstep/internal/cli"
	"lockstep/spmd"
	"lockstep/spmd/random"
	"lockstep/spmd/telemetry"
)

// config is every setting of a run.
type config struct {
	Elements int
	Parts    string
	Iters    int
	Warmup   int
	Graph    bool
	Exact    bool
	Values   string
	Cold     bool
	Samples  bool
}

func (c *config) flags(fs *pflag.FlagSet) {
	fs.IntVar(&c.Elements, "elements", 30_000_000, "numbers to sum, over all ranks")
	fs.StringVar(&c.Parts, "parts", "equal",
		"how the ranks hold them: equal, or unequal (rank r has r+1 times the part of rank 0)")
	fs.IntVar(&c.Iters, "iters", 100, "timed iterations")
	fs.IntVar(&c.Warmup, "warmup", -1,
		"iterations before timing; -1 is 10, and 1,000 on GPUs, where the first milliseconds are uneven")
	fs.BoolVar(&c.Graph, "graph", false, "capture the step once and replay it")
	fs.BoolVar(&c.Exact, "exact", false,
		"sum without rounding: the same bits for every number of ranks and every split")
	fs.StringVar(&c.Values, "values", "uniform",
		"the numbers: uniform (from 0 to 1), or wide (of either sign and 97 magnitudes; only with --exact)")
	fs.BoolVar(&c.Cold, "cold", false, "sum copies of the numbers in turn, so that none is left in a cache")
	fs.BoolVar(&c.Samples, "samples", false, "write the time of every iteration, too: samples_us in the line of --json")
	cli.Choices(fs, "parts", "equal", "unequal")
	cli.Choices(fs, "values", "uniform", "wide")
	cli.About(fs, "reduce sums numbers that the ranks hold in parts, and measures how long it takes.",
		"mpirun -np 4 bin/reduce",
		"mpirun -np 4 bin/reduce --elements 100000000 --parts unequal --graph",
		"mpirun -np 4 bin/reduce --exact --values wide --json sums.json")
}

func (c *config) check(ranks int) error {
	switch {
	case c.Elements < 1:
		return fmt.Errorf("--elements %d: must be at least 1", c.Elements)
	case c.Elements > math.MaxInt/4:
		return fmt.Errorf("--elements %d: more bytes than can be addressed", c.Elements)
	case c.Elements < ranks:
		return fmt.Errorf("--elements %d: fewer than the %d ranks", c.Elements, ranks)
	case c.Iters < 1:
		return fmt.Errorf("--iters %d: must be at least 1", c.Iters)
	case c.Warmup < -1:
		return fmt.Errorf("--warmup %d: must be at least 0, or -1", c.Warmup)
	case c.Parts != "equal" && c.Parts != "unequal":
		return fmt.Errorf("--parts %s: want equal or unequal", c.Parts)
	case c.Values != "uniform" && c.Values != "wide":
		return fmt.Errorf("--values %s: want uniform or wide", c.Values)
	case c.Values == "wide" && !c.Exact:
		return fmt.Errorf("--values wide wants --exact: any other sum of such numbers depends on their order")
	}
	return nil
}

func main() {
	var c config
	fs := pflag.NewFlagSet("reduce", pflag.ExitOnError)
	c.flags(fs)
	spmd.Main(fs, func(_ context.Context, w *spmd.World) error {
		r, err := run(w, c)
		if err != nil {
			return err
		}
		return report(w, r)
	}, c.check)
}

// result is one line of --json.
type result struct {
	App         string `json:"app"`
	Ranks       int    `json:"ranks"`
	Nodes       int    `json:"nodes"`
	Device      string `json:"device"`
	Collectives string `json:"collectives"`
	Graph       bool   `json:"graph"`
	Parts       string `json:"parts"`
	Exact       bool   `json:"exact"`
	Values      string `json:"values"`
	Cold        bool   `json:"cold"`
	Dtype       string `json:"dtype"`
	Elements    int    `json:"elements"`
	Bytes       int    `json:"bytes"`
	telemetry.Stats
	GBps      float64   `json:"gbps"`
	Sum       float64   `json:"sum"`
	MaxRelErr float64   `json:"max_rel_err"`
	OK        bool      `json:"ok"`
	SamplesUS []float64 `json:"samples_us,omitempty"` // with --samples: the time of every iteration, in order
	Slow      []slow    `json:"slow,omitempty"`
}

// slow is an iteration that took slowMedians medians or more, and what its ranks did meanwhile.
type slow struct {
	Iter       int     `json:"iter"`
	US         float64 `json:"us"`
	EnqueuedUS float64 `json:"enqueued_us"` // until the last rank had enqueued it
	FastestUS  float64 `json:"fastest_us"`  // of the fastest rank
	Cause      string  `json:"cause"`
}

// cause returns what held the iteration up.
func (s *slow) cause() string {
	switch {
	case s.EnqueuedUS > s.US/2:
		return "a host enqueued it late"
	case s.FastestUS < s.US/2:
		return "a host began late or noticed the end late"
	default:
		return "all ranks waited for the devices"
	}
}

const (
	slowMedians = 10
	slowMost    = 10 // that are told
)

// slowOf returns the slowest iterations, the slowest first.
func slowOf(t telemetry.Stats) []slow {
	var all []slow
	for i, us := range t.Samples {
		if us >= slowMedians*t.MedianUS {
			s := slow{Iter: i, US: us, EnqueuedUS: t.Enqueued[i], FastestUS: t.Fastest[i]}
			s.Cause = s.cause()
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b slow) int { return cmp.Compare(b.US, a.US) })
	return all[:min(len(all), slowMost)]
}

// maxRelErr is far above the error of float32 inputs summed in float64, and below that of a float32
// sum of this length.
const maxRelErr = 1e-9

// coldBytes are more than any cache has. coldCopies of a small part have less.
var coldBytes = 512 << 20

const coldCopies = 256

// run fills the parts, times the sum, and checks it.
func run(w *spmd.World, c config) (result, error) {
	r := result{App: "reduce", Ranks: w.Size(), Nodes: w.Nodes(), Device: w.Device(), Collectives: w.Collectives(),
		Graph: c.Graph, Parts: c.Parts, Exact: c.Exact, Values: c.Values, Cold: c.Cold,
		Dtype: "float32", Elements: c.Elements, Bytes: 4 * c.Elements}
	if c.Warmup < 0 {
		c.Warmup = 10
		if !w.OnHost() {
			c.Warmup = 1000
		}
	}
	mine := part(c, w.Rank(), w.Size())
	copies := 1
	if c.Cold {
		copies += min(coldCopies, coldBytes*w.Size()/r.Bytes)
	}
	var parts []spmd.Buffer[float32] // first of all, since nothing else matters if memory is short
	for range copies {
		x, err := spmd.Alloc[float32](w, mine.Len)
		if err != nil {
			return r, err
		}
		parts = append(parts, x)
	}
	want, err := reference(w, mine, c.Values)
	if err != nil {
		return r, err
	}
	s, err := w.NewStream("reduce")
	if err != nil {
		return r, err
	}
	newSum := plainSummer
	if c.Exact {
		newSum = exactSummer
	}
	sum, err := newSum(w, s)
	if err != nil {
		return r, err
	}
	var turns []func() error
	for _, x := range parts {
		if err := fill(w, s, c, mine, x); err != nil {
			return r, err
		}
		turns = append(turns, func() error { return sum.step(x) })
	}
	if r.Stats, err = sum.measure(c, turns); err != nil {
		return r, err
	}
	if c.Samples {
		r.SamplesUS = r.Stats.Samples
	}
	r.Slow = slowOf(r.Stats)
	r.Sum, r.GBps = sum.answer(), r.Stats.GBps(r.Bytes)
	if r.Sum != want {
		r.MaxRelErr = math.Abs((r.Sum - want) / want)
	}
	r.OK = r.MaxRelErr <= maxRelErr && (!c.Exact || r.Sum == want)
	return r, nil
}

// fill puts the rank's part of the numbers into x.
func fill(w *spmd.World, s *spmd.Stream, c config, mine spmd.Shard, x spmd.Buffer[float32]) error {
	err := random.Uniform(s, x, w.Seed(), mine.Off)
	if err == nil && c.Values == "wide" {
		err = launchWidenAll(s, mine.Len, x)
	}
	return err
}

// part returns the part of a rank.
func part(c config, rank, size int) spmd.Shard {
	if c.Parts == "equal" {
		return spmd.ShardOf(c.Elements, rank, size)
	}
	// Parts begin at 0, 1, 3, 6, ... of size(size+1)/2.
	at := func(r int) int {
		return int(math.Round(float64(c.Elements) * float64(r*(r+1)) / float64(size*(size+1))))
	}
	return spmd.Shard{Off: at(rank), Len: at(rank+1) - at(rank)}
}

// reference returns the sum without any rounding, of the numbers that the host makes from the seed.
func reference(w *spmd.World, mine spmd.Shard, values string) (float64, error) {
	b, err := spmd.AllocPinned[int64](w, words)
	if err != nil {
		return 0, err
	}
	defer b.Free()
	var e exact
	var chunk [4096]float32
	for at := 0; at < mine.Len; at += len(chunk) {
		x := chunk[:min(len(chunk), mine.Len-at)]
		for i := range x {
			k := spmd.UniformBits(w.Seed(), uint64(mine.Off+at+i))
			if x[i] = float32(k) / (1 << 24); values == "wide" {
				x[i] = widen(k)
			}
		}
		e.add(x)
	}
	if err := b.CopyFrom(e[:]); err != nil {
		return 0, err
	}
	if err := spmd.AllReduce(w.Comm(), b, b, spmd.Sum); err != nil {
		return 0, err
	}
	if err := b.CopyTo(e[:]); err != nil {
		return 0, err
	}
	return e.value(), nil
}

// report prints the table and writes the JSON line, on rank 0. A wrong sum is an error on every
// rank, and writes no line, since JSON has no NaN.
func report(w *spmd.World, r result) error {
	if w.Rank() == 0 {
		t := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "ranks\telements\tmin us\tmedian us\tp99 us\tmax us\tGB/s\tsum\trel. error\t")
		fmt.Fprintf(t, "%d\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t%.3f\t%.1e\t\n",
			r.Ranks, r.Elements, r.MinUS, r.MedianUS, r.P99US, r.MaxUS, r.GBps, r.Sum, r.MaxRelErr)
		if err := t.Flush(); err != nil {
			return err
		}
		for _, s := range r.Slow {
			fmt.Fprintf(os.Stderr, "iteration %d took %.1f us, %.1f until the last rank had enqueued it, %.1f on "+
				"the fastest rank: %s\n", s.Iter, s.US, s.EnqueuedUS, s.FastestUS, s.Cause)
		}
	}
	if !r.OK {
		return fmt.Errorf("the sum is wrong: relative error %g, at most %g is allowed, and none with --exact",
			r.MaxRelErr, maxRelErr)
	}
	return w.Emit(r)
}
