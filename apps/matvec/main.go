// Command matvec computes y = W x with W divided over the ranks. W and x are float32 or bfloat16;
// sums and y are float32. See README.md.
//
// By columns, each rank multiplies its columns by its part of x, and the partial products are
// all-reduced. By rows, x is gathered first, and each rank has its part of y. A grid does both.
package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"lockstep/host"
	"lockstep/internal/cli"
	"lockstep/spmd"
	"lockstep/spmd/hostdata"
	"lockstep/spmd/telemetry"
)

// config is every setting of a run.
type config struct {
	Rows, Cols int // 0: the default for the device
	Iters      int
	Warmup     int
	Graph      bool
	Split      string
	Layout     string
	Dtype      string
	Kernel     string
	Overlap    int // 0: what is fastest
}

// These are the choices of --layout, --dtype and --kernel. The first is the default.
var (
	layouts    = []string{"row", "column"}
	dtypes     = []string{"float32", "bfloat16"}
	kernelFrom = []string{"auto", "own", "cublas"}
)

func (c *config) flags(fs *pflag.FlagSet) {
	fs.IntVar(&c.Rows, "rows", 0, "rows of W (default 2,000 on the host, 10,000 on a GPU)")
	fs.IntVar(&c.Cols, "cols", 0, "columns of W (default 60,000 on the host, 300,000 on a GPU)")
	fs.IntVar(&c.Iters, "iters", 20, "timed iterations")
	fs.IntVar(&c.Warmup, "warmup", 3, "iterations before timing")
	fs.BoolVar(&c.Graph, "graph", false, "capture the step once and replay it")
	fs.StringVar(&c.Split, "split", splits[0],
		"how the ranks share W: columns (y is all-reduced), rows (x is gathered), or grid, which is both")
	fs.StringVar(&c.Layout, "layout", layouts[0], "how W lies in memory: row by row, or column by column")
	fs.StringVar(&c.Dtype, "dtype", dtypes[0], "of W and x: float32, bfloat16; sums and y are float32")
	fs.StringVar(&c.Kernel, "kernel", kernelFrom[0],
		"what multiplies: own, cublas (on the host its BLAS), or auto: the faster of both")
	fs.IntVar(&c.Overlap, "overlap", 0,
		"`N` parts of the rows: one is all-reduced while the next is multiplied; 0: as many as are fastest")
	cli.Choices(fs, "split", splits...)
	cli.Choices(fs, "layout", layouts...)
	cli.Choices(fs, "dtype", dtypes...)
	cli.Choices(fs, "kernel", kernelFrom...)
	cli.About(fs, "matvec multiplies a matrix, which the ranks share, by a vector, and measures how long it takes.",
		"mpirun -np 4 bin/matvec",
		"mpirun -np 4 bin/matvec --rows 4096 --cols 65536 --split rows --dtype bfloat16",
		"bin/launch run -np 4 -- bin/matvec --json - | jq .gbps")
}

func (c *config) check(fs *pflag.FlagSet, ranks int) error {
	for _, f := range []struct {
		name  string
		value int
	}{{"rows", c.Rows}, {"cols", c.Cols}, {"iters", c.Iters}} {
		if f.value < 1 && fs.Changed(f.name) {
			return fmt.Errorf("--%s %d: must be at least 1", f.name, f.value)
		}
	}
	if c.Warmup < 0 {
		return fmt.Errorf("--warmup %d: must not be negative", c.Warmup)
	}
	for _, f := range []struct {
		name, value string
		choices     []string
	}{
		{"split", c.Split, splits}, {"layout", c.Layout, layouts}, {"dtype", c.Dtype, dtypes},
		{"kernel", c.Kernel, kernelFrom},
	} {
		if !slices.Contains(f.choices, f.value) {
			return fmt.Errorf("--%s %s: want %s", f.name, f.value, strings.Join(f.choices, ", "))
		}
	}
	if c.Overlap < 0 {
		return fmt.Errorf("--overlap %d: must not be negative", c.Overlap)
	}
	if c.Cols > 0 && c.Cols < ranks {
		return fmt.Errorf("--cols %d: fewer than the %d ranks", c.Cols, ranks)
	}
	rows := cmp.Or(c.Rows, gpuRows)
	cols := cmp.Or(c.Cols, gpuCols) // the larger defaults, as the device is not known yet
	if rows > mostElements/cols {
		return fmt.Errorf("--rows and --cols: %d x %d %s are more bytes than can be addressed", rows, cols, c.Dtype)
	}
	return c.checkSplit(ranks)
}

// mostElements is more than any memory holds, and leaves room to round up.
const mostElements = math.MaxInt / 256

// The default sizes.
const (
	hostRows, hostCols = 2_000, 60_000
	gpuRows, gpuCols   = 10_000, 300_000
)

// defaults sets the sizes that depend on the device.
func (c *config) defaults(w *spmd.World) {
	rows, cols := gpuRows, gpuCols
	if w.OnHost() {
		rows, cols = hostRows, hostCols
	}
	c.Rows, c.Cols = cmp.Or(c.Rows, rows), cmp.Or(c.Cols, cols)
}

func main() {
	var c config
	fs := pflag.NewFlagSet("matvec", pflag.ExitOnError)
	c.flags(fs)
	spmd.Main(fs, func(_ context.Context, w *spmd.World) error {
		c := c // ranks may share the process
		c.defaults(w)
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
	Dtype       string `json:"dtype"`
	Split       string `json:"split"`
	Mesh        string `json:"mesh"`
	Layout      string `json:"layout"`
	Kernel      string `json:"kernel"`
	Overlap     int    `json:"overlap"`
	Rows        int    `json:"rows"`
	Cols        int    `json:"cols"`
	Bytes       int    `json:"bytes"`
	telemetry.Stats
	GBps      float64 `json:"gbps"`
	MaxRelErr float64 `json:"max_rel_err"`
	OK        bool    `json:"ok"`
}

// runAs is run for the type that c names.
func runAs(w *spmd.World, c config) (result, error) {
	if c.Dtype == "bfloat16" {
		return run[spmd.BF16](w, c)
	}
	return run[float32](w, c)
}

// run fills W and x, times the product, and checks it.
func run[T number](w *spmd.World, c config) (result, error) {
	r := result{App: "matvec", Ranks: w.Size(), Nodes: w.Nodes(), Device: w.Device(), Collectives: w.Collectives(),
		Graph: c.Graph, Split: c.Split, Layout: c.Layout, Dtype: c.Dtype, Rows: c.Rows, Cols: c.Cols,
		Bytes: 16 / vecOf[T]() * c.Rows * c.Cols}
	sp, err := newSplit(w, c)
	if err != nil {
		return r, err
	}
	r.Mesh = sp.mesh
	p, err := newProduct[T](w, sp, c.Layout == "column")
	if err != nil {
		return r, err
	}
	if err := p.m.fill(p.s, w.Seed(), sp.rows.Off*c.Cols+sp.cols.Off, c.Cols); err != nil {
		return r, err
	}
	if share := p.x.Slice(sp.x.Off, sp.x.Off+sp.x.Len); share.Len() > 0 {
		if err := fill(p.s, share, filling{lines: 1, length: share.Len(), stride: share.Len(), seed: w.Seed() + 1,
			start: sp.cols.Off + sp.x.Off, elementStep: 1}); err != nil {
			return r, err
		}
	}
	m, err := p.choose(c)
	if err != nil {
		return r, err
	}
	r.Kernel, r.Overlap = m.kernel, m.overlap
	r.Stats, err = telemetry.MeasureStream(w.Comm(), p.s, c.Graph, c.Warmup, c.Iters,
		func() error { return p.enqueue(m) })
	if err != nil {
		return r, err
	}
	r.GBps = r.Stats.GBps(r.Bytes)
	r.MaxRelErr, err = maxRelErr[T](w, c, sp, p.y)
	r.OK = r.MaxRelErr <= bound(c.Cols)
	return r, err
}

// bound returns the bound of the relative error of a sum of n products of numbers from 0 to 1 in
// float32. Each of several partial sums runs over at most n terms, and their rounding errors add up
// like a random walk. Eight standard deviations of it never happen.
func bound(n int) float64 { return 8 * math.Sqrt(float64(n)) * math.Ldexp(1, -24) }

// checkedRows returns how many rows are compared with the reference, evenly spread. The reference
// of all rows of 12 GB would take longer than the rest.
func checkedRows(rows, cols int) int { return min(rows, max(64, 1<<28/cols)) }

// maxRelErr returns the largest relative error of y, the same on all ranks. The reference is a
// product in float64 of the same numbers, made again. Every rank computes its block's part.
func maxRelErr[T number](w *spmd.World, c config, sp split, y spmd.Buffer[float32]) (float64, error) {
	n := checkedRows(c.Rows, c.Cols)
	row := func(i int) int { return i * c.Rows / n }
	mine := sp.cols
	has := func(i int) bool { return row(i) >= sp.rows.Off && row(i) < sp.rows.Off+sp.rows.Len }
	number := func(seed uint64, i int) float64 {
		f := float32(spmd.UniformBits(seed, uint64(i))) / (1 << 24)
		if vecOf[T]() == 8 {
			f = spmd.ToBF16(f).Float32()
		}
		return float64(f)
	}
	x := make([]float64, mine.Len)
	for j := range x {
		x[j] = number(w.Seed()+1, mine.Off+j)
	}
	products := make([]float64, n)
	host.Parallel(n, 1, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			if !has(i) {
				continue
			}
			for j, xj := range x {
				products[i] += number(w.Seed(), row(i)*c.Cols+mine.Off+j) * xj
			}
		}
	})
	if err := hostdata.AllReduceSlice(w.Comm(), products, products, spmd.Sum); err != nil {
		return 0, err
	}
	got := make([]float32, sp.rows.Len)
	if err := y.Slice(0, len(got)).CopyTo(got); err != nil {
		return 0, err
	}
	worst := 0.0
	for i, p := range products {
		if !has(i) {
			continue
		}
		if err := math.Abs(float64(got[row(i)-sp.rows.Off])-p) / p; !(err <= worst) {
			worst = err
		}
	}
	if math.IsNaN(worst) { // the worst of all
		worst = math.Inf(1)
	}
	return hostdata.AllReduce(w.Comm(), worst, spmd.Max)
}

// report prints the table and writes the JSON line, on rank 0. A wrong product is an error on every
// rank, and writes no line, since JSON has no NaN.
func report(w *spmd.World, r result) error {
	if w.Rank() == 0 {
		t := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "ranks\tmesh\trows\tcols\tkernel\toverlap\tmin us\tmedian us\tp99 us\tmax us\tGB/s\trel. "+
			"error\t")
		fmt.Fprintf(t, "%d\t%s\t%d\t%d\t%s\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t%.1e\t\n",
			r.Ranks, r.Mesh, r.Rows, r.Cols, r.Kernel, r.Overlap, r.MinUS, r.MedianUS, r.P99US, r.MaxUS, r.GBps,
			r.MaxRelErr)
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if !r.OK {
		return fmt.Errorf("the product is wrong: relative error %g, at most %g is allowed", r.MaxRelErr, bound(r.Cols))
	}
	return w.Emit(r)
}
