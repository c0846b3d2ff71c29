// Command reduce sums float32 numbers that the ranks hold in parts: each sums its
// own, then the partial sums are all-reduced. See README.md.
package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

// config is every setting of a run.
type config struct {
	Elements int
	Parts    string
	Iters    int
	Warmup   int
	Graph    bool
}

func (c *config) flags(fs *pflag.FlagSet) {
	fs.IntVar(&c.Elements, "elements", 30_000_000, "numbers to sum, over all ranks")
	fs.StringVar(&c.Parts, "parts", "equal", "how the ranks hold them: equal, or unequal (rank r has r+1 times the part of rank 0)")
	fs.IntVar(&c.Iters, "iters", 100, "timed iterations")
	fs.IntVar(&c.Warmup, "warmup", 10, "iterations before timing")
	fs.BoolVar(&c.Graph, "graph", false, "capture the step once and replay it")
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
	case c.Warmup < 0:
		return fmt.Errorf("--warmup %d: must not be negative", c.Warmup)
	case c.Parts != "equal" && c.Parts != "unequal":
		return fmt.Errorf("--parts %s: want equal or unequal", c.Parts)
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
	Dtype       string `json:"dtype"`
	Elements    int    `json:"elements"`
	Bytes       int    `json:"bytes"`
	spmd.Timing
	GBps      float64 `json:"gbps"`
	Sum       float64 `json:"sum"`
	MaxRelErr float64 `json:"max_rel_err"`
	OK        bool    `json:"ok"`
}

// maxRelErr is what float32 inputs summed in float64 stay below by far, and a
// float32 sum of this length would not.
const maxRelErr = 1e-9

// run fills the parts, times the sum, and checks it.
func run(w *spmd.World, c config) (result, error) {
	r := result{App: "reduce", Ranks: w.Size(), Nodes: w.Nodes(), Device: w.Device(), Collectives: w.Collectives(),
		Graph: c.Graph, Parts: c.Parts, Dtype: "float32", Elements: c.Elements, Bytes: 4 * c.Elements}
	mine := part(c, w.Rank(), w.Size())
	s, err := w.NewStream("reduce")
	if err != nil {
		return r, err
	}
	x, err := spmd.Alloc[float32](w, mine.Len)
	if err != nil {
		return r, err
	}
	sum, err := spmd.Alloc[float64](w, 1)
	if err != nil {
		return r, err
	}
	answer, err := spmd.AllocPinned[float64](w, 1)
	if err != nil {
		return r, err
	}
	if err := spmd.Uniform(s, x, w.Seed(), mine.Off); err != nil {
		return r, err
	}
	exact, err := reference(w, mine)
	if err != nil {
		return r, err
	}

	local, err := newSummer(w)
	if err != nil {
		return r, err
	}
	enqueue := func() error {
		if err := local.sum(s, sum, x); err != nil {
			return err
		}
		if err := spmd.AllReduce(w.Comm.On(s), sum, sum, spmd.Sum); err != nil {
			return err
		}
		return spmd.Copy(s, answer, sum)
	}
	r.Timing, err = spmd.MeasureStream(w.Comm, s, c.Graph, c.Warmup, c.Iters, enqueue)
	if err != nil {
		return r, err
	}
	r.Sum, r.GBps = answer.At(0), r.Timing.GBps(r.Bytes)
	r.MaxRelErr = math.Abs(r.Sum-exact) / exact
	r.OK = r.MaxRelErr <= maxRelErr
	return r, nil
}

// part is what a rank holds.
func part(c config, rank, size int) spmd.Shard {
	if c.Parts == "equal" {
		return spmd.ShardOf(c.Elements, rank, size)
	}
	// Part boundaries at 0, 1, 3, 6, ... of size(size+1)/2.
	at := func(r int) int {
		return int(math.Round(float64(c.Elements) * float64(r*(r+1)) / float64(size*(size+1))))
	}
	return spmd.Shard{Off: at(rank), Len: at(rank+1) - at(rank)}
}

// reference is the sum without any rounding: the inputs are multiples of 2^-24, so
// it is a sum of integers.
func reference(w *spmd.World, mine spmd.Shard) (float64, error) {
	total, err := spmd.AllocPinned[uint64](w, 1)
	if err != nil {
		return 0, err
	}
	defer total.Free()
	parts := uint64(0)
	for i := range mine.Len {
		parts += uint64(spmd.UniformBits(w.Seed(), uint64(mine.Off+i)))
	}
	total.Set(0, parts)
	if err := spmd.AllReduce(w.Comm, total, total, spmd.Sum); err != nil {
		return 0, err
	}
	return float64(total.At(0)) / (1 << 24), nil
}

// report prints the table and writes the JSON line, on rank 0. A wrong sum is an
// error on every rank, and no line: JSON has no NaN.
func report(w *spmd.World, r result) error {
	if w.Rank() == 0 {
		t := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "ranks\telements\tmin us\tmedian us\tp99 us\tmax us\tGB/s\tsum\trel. error\t")
		fmt.Fprintf(t, "%d\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t%.3f\t%.1e\t\n",
			r.Ranks, r.Elements, r.MinUS, r.MedianUS, r.P99US, r.MaxUS, r.GBps, r.Sum, r.MaxRelErr)
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if !r.OK {
		return fmt.Errorf("the sum is wrong: relative error %g, at most %g is allowed", r.MaxRelErr, maxRelErr)
	}
	return w.Emit(r)
}
