package sweep

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"lockstep/bench/measure"
	"lockstep/internal/cli"
	"lockstep/launch/inspect"
)

// network joins the nodes. Each rank has its own bandwidth, also while all of them send.
type network struct {
	perNode int
	gbps    float64
	stepUS  float64
}

// between returns the time of an all-reduce over the nodes, of the part of the operand that one
// rank of each has. It is a ring or a tree, whichever is faster.
func (w network) between(bytes, nodes float64) float64 {
	if nodes <= 1 {
		return 0
	}
	of := func(a algorithm) float64 {
		return fittedTerm{algorithm: a, stepUS: w.stepUS, gbps: w.gbps}.us(bytes, nodes)
	}
	return min(of(ring), of(tree))
}

// expect returns the time on ranks that may be on several nodes. The operand is reduced within each
// node, then its parts over the nodes, and the result is gathered within each node. best hides one
// phase behind the longer one; worst adds them up.
func (w network) expect(m model, bytes, ranks int) (best, worst float64) {
	local := min(ranks, w.perNode)
	within, _ := m.us(float64(bytes), float64(local))
	over := w.between(float64(bytes)/float64(local), math.Ceil(float64(ranks)/float64(local)))
	return max(within, over), within + over
}

// series has the properties that the points of one model share.
type series struct {
	measure.Kind
	Device string
}

func (k series) what() string { return k.calls() + " on " + k.Device }

// calls names the side, the collective and how it is called.
func (k series) calls() string {
	m := measure.Measured{Kind: k.Kind}
	return fmt.Sprintf("%s: %s, %s", k.Side, k.Op, strings.TrimPrefix(m.What(), fmt.Sprintf("%s of 0B, ", k.Op)))
}

// pointsOf returns the all-reduces on two ranks or more by their series, and the series in the
// order of the lines.
func pointsOf(lines []measure.Measured) ([]series, map[series][]sample) {
	of := map[series][]sample{}
	var order []series
	for _, m := range lines {
		if m.Op != "allreduce" || m.Ranks < 2 || m.Bytes < 1 || !(m.MedianUS > 0) {
			continue
		}
		k := series{m.Kind, m.Device}
		k.App, k.Ranks, k.Elements, k.Bytes = "", 0, 0, 0
		if of[k] == nil {
			order = append(order, k)
		}
		of[k] = append(of[k], sample{float64(m.Bytes), float64(m.Ranks), m.MedianUS})
	}
	return order, of
}

// modelFlags are the settings of bench model.
type modelFlags struct {
	side     string
	ranks    []int
	fitRanks []int
	sizes    []string
	out      string
	network
	bytes []int
}

// Model is bench model. It fits a model of time to measured all-reduces, and predicts times on more
// ranks and nodes.
func Model() error {
	var f modelFlags
	fs := pflag.NewFlagSet("bench model", pflag.ExitOnError)
	fs.StringVar(&f.side, "side", measure.Ours, "whose measurements, such as \"nccl-tests -R 2\"")
	fs.IntSliceVar(&f.ranks, "ranks", []int{64, 1024}, "numbers of ranks to say what to expect on")
	fs.IntSliceVar(&f.fitRanks, "fit-ranks", nil,
		"numbers of ranks to fit to (default all measured), such as only those with, or without, a core for each")
	fs.StringSliceVar(&f.sizes, "sizes", []string{"8B", "16KiB", "1MiB", "64MiB", "1GiB"}, "sizes to say it for")
	fs.IntVar(&f.perNode, "per-node", 0, "ranks of a node (default 8 on GPUs; on the host the most measured)")
	fs.Float64Var(&f.gbps, "network-gbps", 50, "bandwidth between nodes of each rank, in 1e9 bytes a second")
	fs.Float64Var(&f.stepUS, "network-us", 5, "time of a step between nodes, in us")
	fs.StringVar(&f.out, "out", "", "`DIR` for plots (default none)")
	cli.Parse(fs, os.Args[1:])
	if err := f.check(); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return errors.New("model wants files of measurements, such as bench/results/sweep/gpu-measured.jsonl")
	}
	var all []measure.Measured
	for _, name := range fs.Args() {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		more, err := measure.Lines[measure.Measured](string(data))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, more...)
	}
	return f.run(os.Stdout, all)
}

// check refuses settings that no machine has.
func (f *modelFlags) check() error {
	for _, n := range f.ranks {
		if n < 2 || n > 1<<24 {
			return fmt.Errorf("--ranks %d: must be from 2 to %d", n, 1<<24)
		}
	}
	switch {
	case f.perNode < 0 || f.perNode == 1:
		return fmt.Errorf("--per-node %d: must be at least 2", f.perNode)
	case !(f.gbps > 0) || math.IsInf(f.gbps, 1):
		return fmt.Errorf("--network-gbps %v: must be above 0", f.gbps)
	case !(f.stepUS >= 0) || math.IsInf(f.stepUS, 1):
		return fmt.Errorf("--network-us %v: must not be negative", f.stepUS)
	}
	for _, text := range f.sizes {
		var b measure.ByteSize
		if err := b.Set(text); err != nil {
			return fmt.Errorf("--sizes %s: %w", text, err)
		}
		f.bytes = append(f.bytes, int(b))
	}
	return nil
}

// run fits a model to each series and reports its predictions.
func (f *modelFlags) run(out io.Writer, all []measure.Measured) error {
	order, of := pointsOf(slices.DeleteFunc(slices.Clone(all), func(m measure.Measured) bool {
		return m.Side != f.side || len(f.fitRanks) > 0 && !slices.Contains(f.fitRanks, m.Ranks)
	}))
	fits := 0
	for _, k := range order {
		points := of[k]
		if len(points) < fewestPoints {
			fmt.Fprintf(out, "%s: %d points on 2 ranks or more are too few for a model, which wants %d\n\n",
				k.what(), len(points), fewestPoints)
			continue
		}
		m, err := fit(points)
		if err != nil {
			return fmt.Errorf("%s: %w", k.what(), err)
		}
		fits++
		w := f.network
		if w.perNode == 0 {
			w.perNode = 8
			if k.Device == "host" {
				w.perNode = int(slices.MaxFunc(points,
					func(a, b sample) int { return cmp.Compare(a.ranks, b.ranks) }).ranks)
			}
		}
		if err := f.report(out, k, points, m, w); err != nil {
			return err
		}
		if err := f.plot(k, points, m, w); err != nil {
			return err
		}
	}
	if fits == 0 {
		return fmt.Errorf("no all-reduces of %q on 2 ranks or more, at %d points of size and ranks",
			f.side, fewestPoints)
	}
	_, err := fmt.Fprint(out, modelNotes)
	return err
}

// modelNotes are the assumptions and the limits of the predictions.
const modelNotes = `Assumed: within a node p ranks do as the fit says, also beyond the numbers measured.
Each has a link of the same speed. Over several nodes an all-reduce is a reduce-scatter within each node, an all-reduce
of the parts over the nodes, and an all-gather within each node. Between nodes each rank has a network adapter of its
own; the parts go as a ring or a tree. The first number hides the shorter of the two phases behind the longer, the
second adds them up. The network and the ranks of a node are given, not measured.
Left out: other traffic; a network with less bandwidth further up; reduction inside switches (NVLink SHARP and its like);
ranks that come late (the more ranks, the later the last); faults; what a job computes meanwhile. Where ranks outnumber
cores, a step contains the wait for a core.
`

// report writes a model for people.
func (f *modelFlags) report(out io.Writer, k series, points []sample, m model, w network) error {
	ranks := measuredRanks(points)
	bytes := slices.MinFunc(points, func(a, b sample) int { return cmp.Compare(a.bytes, b.bytes) }).bytes
	most := slices.MaxFunc(points, func(a, b sample) int { return cmp.Compare(a.bytes, b.bytes) }).bytes
	fmt.Fprintf(out, "%s\n%d points, %s to %s, on %s ranks\n", k.what(), len(points), measure.SizeText(int(bytes)),
		measure.SizeText(int(most)), strings.Trim(fmt.Sprint(ranks), "[]"))
	fmt.Fprintln(out, "  T(n, p) = the least of")
	for _, t := range m.terms {
		perByte := ""
		if !math.IsInf(t.gbps, 1) {
			perByte = fmt.Sprintf(" + n %s / %.4g GB/s", t.formula[1], t.gbps)
		}
		fmt.Fprintf(out, "    %.3g us + %.3g us %s%s   (%s; decides %d points)\n",
			t.startUS, t.stepUS, t.formula[0], perByte, t.name, t.points)
	}
	fmt.Fprintf(out, "  error: %.1f %% typical (root mean square), %.1f %% at most, at %s on %.0f ranks\n",
		100*math.Expm1(m.rms), 100*math.Expm1(m.worst), measure.SizeText(int(m.at.bytes)), m.at.ranks)
	if m.rms > poorFit {
		_, err := fmt.Fprint(out, "  The points do not follow the model: no word on what was not measured.\n\n")
		return err
	}
	if len(ranks) == 1 {
		_, err := fmt.Fprint(out, "  Measured on one number of ranks, which does not tell the start from the steps, "+
			"nor one algorithm from another: no word on others.\n\n")
		return err
	}
	fmt.Fprintf(out, "  expected, in us; nodes of %d ranks, a network of %g GB/s for each and %g us a step:\n",
		w.perNode, w.gbps, w.stepUS)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "ranks\t")
	sizes := f.bytes
	if bytes == most { // one size says nothing of others
		sizes = []int{int(most)}
	}
	for _, b := range sizes {
		fmt.Fprintf(t, "%s\t", measure.SizeText(b))
	}
	fmt.Fprintln(t)
	for _, n := range f.ranks {
		fmt.Fprintf(t, "%d\t", n)
		for _, b := range sizes {
			lo, hi := w.expect(m, b, n)
			if lo == hi {
				fmt.Fprintf(t, "%.4g\t", lo)
			} else {
				fmt.Fprintf(t, "%.4g to %.4g\t", lo, hi)
			}
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out)
	return err
}

// measuredRanks returns the numbers of ranks of the points, ascending.
func measuredRanks(points []sample) []int {
	var n []int
	for _, p := range points {
		n = append(n, int(p.ranks))
	}
	slices.Sort(n)
	return slices.Compact(n)
}

// plot draws the points, the model as a dashed line beside them, and the expected times by ranks.
func (f *modelFlags) plot(k series, points []sample, m model, w network) error {
	if f.out == "" {
		return nil
	}
	ranks := measuredRanks(points)
	if err := os.MkdirAll(f.out, 0o777); err != nil {
		return err
	}
	points = slices.SortedStableFunc(slices.Values(points),
		func(a, b sample) int { return cmp.Compare(a.bytes, b.bytes) })
	bySize := inspect.Panel{Title: k.calls(), X: "bytes", Y: "us (dashed: model)",
		XTicks: plot.TickerFunc(sizeTicks)}
	for _, n := range ranks {
		var line inspect.Curve
		for _, p := range points {
			if int(p.ranks) == n {
				us, _ := m.us(p.bytes, p.ranks)
				bySize.Add(fmt.Sprintf("measured, %d ranks", n), p.bytes, p.us)
				line.Points = append(line.Points, plotter.XY{X: p.bytes, Y: us})
			}
		}
		bySize.Reference = append(bySize.Reference, line)
	}
	most, sizes := max(slices.Max(f.ranks), w.perNode), f.bytes
	if len(ranks) == 1 || m.rms > poorFit || points[0].bytes == points[len(points)-1].bytes {
		sizes = nil
	}
	byRanks := inspect.Panel{Title: fmt.Sprintf("%s, %d a node; between nodes %g GB/s, %g us", k.Device, w.perNode,
		w.gbps, w.stepUS), X: "ranks", Y: "expected at worst, us", XTicks: plot.TickerFunc(inspect.LogTicks)}
	for _, b := range sizes {
		for n := 2; n <= most; n *= 2 {
			_, us := w.expect(m, b, n)
			byRanks.Add("expected of "+measure.SizeText(b), float64(n), us)
		}
	}
	name := strings.Join(strings.FieldsFunc(k.what(), func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", r)
	}), "-")
	return inspect.WriteFigure(filepath.Join(f.out, "model-"+name+".svg"), overwrite, bySize, byRanks)
}
