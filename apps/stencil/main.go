// Command stencil computes how heat spreads on a grid of two or three dimensions, which the ranks
// divide. In each step the cells at the borders of a rank's part travel to its neighbours while it
// computes those inside. See README.md.
package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"lockstep/internal/cli"
	"lockstep/spmd"
	"lockstep/spmd/parallel"
	"lockstep/spmd/telemetry"
)

// extent is the value of a flag such as 4096x2048: a number for each axis.
type extent []int

// String implements pflag.Value.
func (e *extent) String() string {
	var text []string
	for _, n := range *e {
		text = append(text, strconv.Itoa(n))
	}
	return strings.Join(text, "x")
}

// Set implements pflag.Value.
func (e *extent) Set(text string) error {
	*e = nil
	for _, f := range strings.Split(text, "x") {
		n, err := strconv.Atoi(f)
		if err != nil || n < 1 {
			return fmt.Errorf("want positive numbers, such as 1000x2000 or 100x200x300")
		}
		*e = append(*e, n)
	}
	if len(*e) != 2 && len(*e) != 3 {
		return fmt.Errorf("want 2 or 3 numbers, such as 1000x2000 or 100x200x300")
	}
	return nil
}

// Type implements pflag.Value.
func (e *extent) Type() string { return "extent" }

// config is every setting of a run.
type config struct {
	Size    extent // nil: the default for the device
	Mesh    extent // nil: as even as the ranks allow
	Edges   string
	Dtype   string
	Steps   int
	Iters   int
	Warmup  int
	Graph   bool
	Overlap bool
	Image   string

	overwrite bool // a picture that is there is replaced
}

// These are the choices of --edges and --dtype. The first is the default.
var (
	edgesOf = []string{"fixed", "periodic"}
	dtypes  = []string{"float32", "float64"}
)

func (c *config) flags(fs *pflag.FlagSet) {
	fs.Var(&c.Size, "size", "cells along each axis, rows first: `YxX`, or ZxYxX (default 4096x4096 on the host, "+
		"16384x16384 on a GPU)")
	fs.Var(&c.Mesh, "mesh", "ranks along each axis, as `YxX` or ZxYxX; without it as even as can be, more along the "+
		"first")
	fs.StringVar(&c.Edges, "edges", edgesOf[0],
		"what is beyond the grid: fixed (cells that stay 0), or periodic (its other end)")
	fs.StringVar(&c.Dtype, "dtype", dtypes[0], "of the cells: float32, float64")
	fs.IntVar(&c.Steps, "steps", 10, "time steps of an iteration, an even number; with --graph they are one graph")
	fs.IntVar(&c.Iters, "iters", 20, "timed iterations")
	fs.IntVar(&c.Warmup, "warmup", 3, "iterations before timing")
	fs.BoolVar(&c.Graph, "graph", true,
		"capture an iteration once and replay it; where MPI carries the memory of GPUs the default is false")
	fs.BoolVar(&c.Overlap, "overlap", true, "compute the inside while halos travel; false: after that")
	fs.StringVar(&c.Image, "image", "",
		"write the result to `FILE` as a PNG, of a grid of three dimensions its middle plane")
	cli.Choices(fs, "edges", edgesOf...)
	cli.Choices(fs, "dtype", dtypes...)
	cli.About(fs, "stencil computes how heat spreads on a grid that the ranks share, and measures how long it takes.",
		"mpirun -np 4 bin/stencil",
		"mpirun -np 4 bin/stencil --size 512x512x512 --mesh 1x2x2 --dtype float64",
		"mpirun -np 4 bin/stencil --size 1000x1000 --edges periodic --image heat.png")
}

func (c *config) check(fs *pflag.FlagSet, ranks int) error {
	switch {
	case !slices.Contains(edgesOf, c.Edges):
		return fmt.Errorf("--edges %s: want %s", c.Edges, strings.Join(edgesOf, ", "))
	case !slices.Contains(dtypes, c.Dtype):
		return fmt.Errorf("--dtype %s: want %s", c.Dtype, strings.Join(dtypes, ", "))
	case c.Steps < 2 || c.Steps%2 != 0:
		return fmt.Errorf("--steps %d: must be an even number, at least 2: the grid is in two buffers in turn", c.Steps)
	case c.Iters < 1:
		return fmt.Errorf("--iters %d: must be at least 1", c.Iters)
	case c.Warmup < 0:
		return fmt.Errorf("--warmup %d: must not be negative", c.Warmup)
	case c.Warmup > mostSteps/c.Steps || c.Iters > mostSteps/c.Steps:
		return fmt.Errorf("--iters %d and --warmup %d: of %d steps each, more than %d steps in all",
			c.Iters, c.Warmup, c.Steps, mostSteps)
	}
	c.overwrite = fs.Lookup("overwrite").Value.String() == "true"
	sized := *c
	if len(c.Size) == 0 { // the device is not known yet: the larger default
		sized.Size = gpuSize
	}
	return sized.checkSize(ranks)
}

// mostSteps keeps rounding errors, which add up, far below the values.
const mostSteps = 100_000

// checkSize refuses grids that the ranks cannot divide.
func (c *config) checkSize(ranks int) error {
	axes, err := c.axes(ranks)
	if err != nil {
		return fmt.Errorf("--mesh %v: %w", &c.Mesh, err)
	}
	cells := 1
	for i, n := range c.Size {
		if n > mostElements/cells {
			return fmt.Errorf("--size %v: more bytes than can be addressed", &c.Size)
		}
		cells *= n
		if n < axes[i].Size {
			return fmt.Errorf("--size %v: %d cells along %s are fewer than the mesh has ranks there, %d: a grid "+
				"that is too small, or in need of another --mesh", &c.Size, n, axes[i].Name, axes[i].Size)
		}
	}
	if len(c.Size) == 3 && c.Size[1]/axes[1].Size >= 8*mostBlocks {
		return fmt.Errorf("--size %v: at most %d cells along y for each rank", &c.Size, 8*mostBlocks-1)
	}
	return nil
}

// mostElements is more than any memory holds, and leaves room for borders.
const mostElements = math.MaxInt / 1024

// axes returns the axes of the mesh, with their sizes.
func (c *config) axes(ranks int) ([]parallel.Axis, error) {
	dims := len(c.Size)
	if len(c.Mesh) > 0 && len(c.Mesh) != dims {
		return nil, fmt.Errorf("the grid has %d dimensions", dims)
	}
	var axes []parallel.Axis
	for i, axis := range axesOf(dims) {
		a := parallel.Axis{Name: axisNames[axis], Size: parallel.Fit, Periodic: c.Edges == "periodic"}
		if dims == 2 && axis == planes { // a plane is one row
			a.Name = axisNames[rows]
		}
		if len(c.Mesh) > 0 {
			a.Size = c.Mesh[i]
		}
		axes = append(axes, a)
	}
	return parallel.FitAxes(ranks, axes...)
}

// The default sizes.
var hostSize, gpuSize = extent{4096, 4096}, extent{16384, 16384}

// defaults sets the values that depend on the device.
func (c *config) defaults(fs *pflag.FlagSet, w *spmd.World) {
	if len(c.Size) == 0 {
		c.Size = gpuSize
		if w.OnHost() {
			c.Size = hostSize
		}
	}
	if why := w.Comm().Capturable(); why != nil && !fs.Changed("graph") {
		w.Log().Info().Err(why).Msg("without a graph")
		c.Graph = false
	}
}

func main() {
	var c config
	fs := pflag.NewFlagSet("stencil", pflag.ExitOnError)
	c.flags(fs)
	spmd.Main(fs, func(_ context.Context, w *spmd.World) error {
		c := c // ranks may share the process
		c.defaults(fs, w)
		if err := c.checkSize(w.Size()); err != nil {
			return spmd.Usage(err)
		}
		r, err := runAs(w, c)
		if err != nil {
			return err
		}
		return report(w, r)
	}, func(ranks int) error { return c.check(fs, ranks) })
}

// result is one line of --json.
type result struct {
	App         string `json:"app"`
	Ranks       int    `json:"ranks"`
	Nodes       int    `json:"nodes"`
	Device      string `json:"device"`
	Collectives string `json:"collectives"`
	Graph       bool   `json:"graph"`
	Overlap     bool   `json:"overlap"`
	Dtype       string `json:"dtype"`
	Size        string `json:"size"`
	Mesh        string `json:"mesh"`
	Edges       string `json:"edges"`
	Elements    int    `json:"elements"`
	Steps       int    `json:"steps"`
	Bytes       int    `json:"bytes"`
	telemetry.Stats
	GBps      float64 `json:"gbps"`
	MaxRelErr float64 `json:"max_rel_err"`
	OK        bool    `json:"ok"`

	bound float64 // on MaxRelErr
}

// runAs is run for the type that c names.
func runAs(w *spmd.World, c config) (result, error) {
	if c.Dtype == "float64" {
		return run[float64](w, c)
	}
	return run[float32](w, c)
}

// run fills the grid, times the steps, compares the result with the closed form, and draws it.
func run[T number](w *spmd.World, c config) (result, error) {
	r := result{App: "stencil", Ranks: w.Size(), Nodes: w.Nodes(), Device: w.Device(), Collectives: w.Collectives(),
		Graph:   c.Graph,
		Overlap: c.Overlap, Dtype: c.Dtype, Size: c.Size.String(), Edges: c.Edges, Elements: 1, Steps: c.Steps}
	for _, n := range c.Size {
		r.Elements *= n
	}
	r.Bytes = 2 * sizeOf[T]() * r.Elements * c.Steps
	if err := checkImage(w, c); err != nil {
		return r, err
	}
	h, err := newHeat[T](w, c)
	if err != nil {
		return r, err
	}
	var mesh extent
	for _, a := range h.axes {
		mesh = append(mesh, a.Size)
	}
	r.Mesh = mesh.String()
	total := (c.Warmup + c.Iters) * c.Steps
	f := newForm(h.size, h.dims, c.Edges == "periodic", total)
	if err := h.fill(func(z, count int, values []T, at func(k, y int) int) {
		start(f, h.part, z, count, values, at)
	}); err != nil {
		return r, err
	}
	if err := h.begin(); err != nil {
		return r, err
	}
	r.Stats, err = telemetry.MeasureStream(w.Comm(), h.main, c.Graph, c.Warmup, c.Iters,
		func() error { return h.advance(c.Steps) })
	if err != nil {
		return r, err
	}
	r.GBps, r.bound = r.Stats.GBps(r.Bytes), bound[T](total)
	if r.MaxRelErr, err = maxRelErr(h, f); err != nil {
		return r, err
	}
	r.OK = r.MaxRelErr <= r.bound
	return r, draw(h, c)
}

// report prints the table and writes the JSON line, on rank 0. A wrong result is an error on every
// rank, and writes no line, since JSON has no NaN.
func report(w *spmd.World, r result) error {
	if w.Rank() == 0 {
		t := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "ranks\tsize\tmesh\tsteps\tmin us\tmedian us\tp99 us\tmax us\tGB/s\trel. error\t")
		fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t%.1e\t\n",
			r.Ranks, r.Size, r.Mesh, r.Steps, r.MinUS, r.MedianUS, r.P99US, r.MaxUS, r.GBps, r.MaxRelErr)
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if !r.OK {
		return fmt.Errorf("the result is wrong: relative error %g, at most %g is allowed", r.MaxRelErr, r.bound)
	}
	return w.Emit(r)
}
