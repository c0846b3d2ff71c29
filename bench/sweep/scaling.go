package sweep

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"lockstep/bench/measure"
	"lockstep/spmd/telemetry"
)

// appFlags are the sizes of the applications.
type appFlags struct {
	apps                 []string
	elements, rows, cols int
	grid                 int
	iters                int
	globalBatch          int
	steps                int
	train                []string
}

var appNames = []string{"reduce", "matvec", "stencil", "train"}

func (f *appFlags) flags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.apps, "apps", appNames, "applications for scaling")
	fs.IntVar(&f.elements, "elements", 30_000_000, "reduce: numbers to sum; with weak scaling, for each rank")
	fs.IntVar(&f.rows, "rows", 0, "matvec: rows (default 2,000 on the host, 10,000 on GPUs)")
	fs.IntVar(&f.cols, "cols", 0, "matvec: columns; with weak scaling, for each rank (default 60,000 on the host, "+
		"300,000 on GPUs)")
	fs.IntVar(&f.grid, "grid", 0, "stencil: rows and columns of the grid; with weak scaling, rows for each rank "+
		"(default 4,096 on the host, 16,384 on GPUs)")
	fs.IntVar(&f.iters, "app-iters", 100, "reduce, matvec and stencil: timed iterations")
	fs.IntVar(&f.globalBatch, "global-batch", 16, "train: sequences of a step; with weak scaling, for each rank")
	fs.IntVar(&f.steps, "steps", measure.TrainSteps,
		fmt.Sprintf("train: steps, of which the first %d do not count", measure.TrainDiscard))
	fs.StringSliceVar(&f.train, "train", nil, "train: more of its flags, such as --train=--model=gpt2,--dtype=bfloat16")
}

func (f *appFlags) check() error {
	for _, a := range f.apps {
		if !slices.Contains(appNames, a) {
			return fmt.Errorf("--apps %s: want %s", a, strings.Join(appNames, ", "))
		}
	}
	for _, n := range []struct {
		flag       string
		value, min int
	}{
		{"elements", f.elements, 1}, {"rows", f.rows, 0}, {"cols", f.cols, 0}, {"grid", f.grid, 0},
		{"app-iters", f.iters, 1}, {"global-batch", f.globalBatch, 1}, {"steps", f.steps, measure.TrainDiscard + 1},
	} {
		if n.value < n.min {
			return fmt.Errorf("--%s %d: must be at least %d", n.flag, n.value, n.min)
		}
	}
	return nil
}

// These are the kinds of scaling: either the whole work is the same on any number of ranks, or the
// work of each rank is.
const (
	strong = "strong"
	weak   = "weak"
)

// scaling measures the applications on every number of ranks.
func (s *sweep) scaling() error {
	if s.app.rows == 0 {
		s.app.rows = map[bool]int{true: 2_000, false: 10_000}[s.onHost()]
	}
	if s.app.cols == 0 {
		s.app.cols = map[bool]int{true: 60_000, false: 300_000}[s.onHost()]
	}
	if s.app.grid == 0 {
		s.app.grid = map[bool]int{true: 4096, false: 16384}[s.onHost()]
	}
	if err := os.WriteFile(s.text(), []byte(measure.Numbers(100_000)), 0o666); err != nil {
		return err
	}
	var sides []side
	for _, app := range s.app.apps {
		for _, n := range s.ranks {
			for _, kind := range []string{strong, weak} {
				if n > 1 || kind == strong { // one rank alone is both
					sides = append(sides, s.appSides(app, n, kind)...)
				}
			}
		}
	}
	all, err := s.turnsOf(sides)
	for _, m := range slices.Clone(all) {
		if m.Ranks == 1 {
			m.Scaling = weak
			all = append(all, m)
		}
	}
	speedUps(all)
	s.all = append(s.all, all...)
	s.ratios(slices.DeleteFunc(slices.Clone(all),
		func(m measure.Measured) bool { return m.Ranks == 1 && m.Scaling == weak }))
	s.appGoals(all)
	printScaling(all)
	return err
}

// stencilPeer is the name of c/stencil.c's sides. It begins with that of the peer.
const stencilPeer = "MPI from C, and OpenMP"

// text returns the file that train learns from.
func (s *sweep) text() string { return filepath.Join(s.Dir, "numbers.txt") }

// appSides returns this framework and the peers, each with an application on n ranks.
func (s *sweep) appSides(app string, n int, kind string) []side {
	each := 1
	if kind == weak {
		each = n
	}
	elements, cols, batch := s.app.elements*each, s.app.cols*each, s.app.globalBatch*each
	size := []string{"--elements", strconv.Itoa(elements)}
	samples := []string{"--samples"} // for the plot of reduce's times
	switch app {
	case "matvec":
		samples = nil
		size = []string{"--rows", strconv.Itoa(s.app.rows), "--cols", strconv.Itoa(cols)}
	case "stencil":
		samples = nil
		size = []string{"--size", fmt.Sprintf("%dx%d", s.app.grid*each, s.app.grid)}
	}
	scaled := func(all []measure.Measured, err error) ([]measure.Measured, error) {
		for i := range all {
			all[i].Scaling = kind
		}
		return all, err
	}
	program := append(measure.MPIRun(n, s.Program(app)), "--device", s.DeviceName(), "--collectives", s.collectives,
		"--json", "-", "--log-level", "warn")
	if app == "train" {
		return []side{{measure.Ours, n, func() ([]measure.Measured, error) {
			m, err := s.trainTurn(append(program, "--global-batch", strconv.Itoa(max(batch, n))))
			return scaled([]measure.Measured{m}, err)
		}}}
	}
	sides := []side{{measure.Ours, n, func() ([]measure.Measured, error) {
		var all []measure.Measured
		for _, graph := range s.Graph {
			lines, err := s.measurements(slices.Concat(program, size, samples,
				[]string{"--graph=" + strconv.FormatBool(graph), "--iters", strconv.Itoa(s.app.iters)}))
			if err != nil {
				return nil, err
			}
			all = append(all, lines...)
		}
		return scaled(all, nil)
	}}}
	if app == "stencil" && s.has("c") {
		sides = append(sides, side{stencilPeer, n, func() ([]measure.Measured, error) {
			const steps, warmup = 10, 3 // the application's own
			program, err := s.C("stencil", "mpicc", "-march=native", "-fopenmp", "-lm")
			if err != nil {
				return nil, err
			}
			// ranks divide the cores; bound, a single one would have only one
			cmd := append(measure.MPIRun(n), "--bind-to", "none", "env",
				fmt.Sprintf("OMP_NUM_THREADS=%d", max(1, runtime.NumCPU()/n)), program)
			for _, v := range []int{s.app.grid * each, s.app.grid, steps, s.app.iters, warmup} {
				cmd = append(cmd, strconv.Itoa(v))
			}
			return scaled(s.measurements(cmd))
		}})
	}
	if app != "stencil" && s.has("torch") {
		sides = append(sides, side{"PyTorch", n, func() ([]measure.Measured, error) {
			return scaled(s.measurements(s.torchrun(n, app,
				append(size, "--graph="+s.torchGraph(), "--iters", strconv.Itoa(s.app.iters))...)))
		}})
	}
	return sides
}

// trainTurn runs the training and returns the times of its steps.
func (s *sweep) trainTurn(cmd []string) (measure.Measured, error) {
	m := measure.Measured{Kind: measure.Kind{App: "train"}, OK: true}
	out, err := measure.Output(append(append(cmd, "--data", s.text(), "--cache", s.Dir, "--steps",
		strconv.Itoa(s.app.steps), "--val-batches", "0", "--sample", "0"), s.app.train...)...)
	if err != nil {
		return m, err
	}
	steps, err := measure.Steps(out, s.app.steps)
	if err != nil {
		return m, err
	}
	var us []float64
	for _, st := range steps {
		us = append(us, st.MS*1e3)
		m.TokS = st.TokS * st.MS // of one step; over the median below
	}
	m.Stats = telemetry.StatsOf(us[measure.TrainDiscard:])
	m.TokS /= m.MedianUS / 1e3
	return m, nil
}

// speedUps computes how much faster the lines are than those on the fewest ranks, and which part of
// the ranks' speed that is. In weak scaling the work grows with the ranks, and at equal times so
// does the speed.
func speedUps(all []measure.Measured) {
	for i := range all {
		m := &all[i]
		base := m
		for j := range all {
			if o := &all[j]; o.Series() == m.Series() && o.Ranks < base.Ranks {
				base = o
			}
		}
		ranks := float64(m.Ranks) / float64(base.Ranks)
		m.SpeedUp = base.MedianUS / m.MedianUS
		if m.Scaling == weak {
			m.SpeedUp *= ranks
		}
		m.Efficiency = m.SpeedUp / ranks
	}
}

// appGoals are the wanted times of the default sizes on NVIDIA H200s, in us.
var appGoals = []struct {
	app   string
	ranks int
	us    float64
}{{"reduce", 1, 36}, {"reduce", 4, 18}, {"matvec", 1, 2860}, {"matvec", 4, 722}}

// These are the wanted spread of reduce's times, in medians, and the wanted speed-up of
// matvec on 4 GPUs.
const (
	p99Goal     = 1.25
	maxGoal     = 10
	speedUpGoal = 3.95
)

// appGoals adds the rows without a peer, on GPUs.
func (s *sweep) appGoals(all []measure.Measured) {
	if s.onHost() {
		return
	}
	for _, m := range all {
		if m.Side != measure.Ours || m.Scaling != strong {
			continue
		}
		usual := m.App == "reduce" && m.Elements == 30_000_000 ||
			m.App == "matvec" && m.Rows == 10_000 && m.Cols == 300_000
		for _, g := range appGoals {
			if usual && g.app == m.App && g.ranks == m.Ranks {
				s.Limit(measure.Row{What: m.What() + ": median", Ranks: m.Ranks, Ours: m.MedianUS, Unit: "us",
					Goal: g.us})
			}
		}
		if m.App == "reduce" {
			s.Limit(measure.Row{What: m.What() + ": 99th percentile", Ranks: m.Ranks, Ours: m.P99US / m.MedianUS,
				Unit: "medians", Goal: p99Goal})
			s.Limit(measure.Row{What: m.What() + ": maximum", Ranks: m.Ranks, Ours: m.MaxUS / m.MedianUS,
				Unit: "medians", Goal: maxGoal})
		}
		if m.App == "matvec" && m.Ranks == 4 && slices.ContainsFunc(all, func(o measure.Measured) bool {
			return o.Ranks == 1 && o.Series() == m.Series()
		}) {
			s.Limit(measure.Row{What: m.What() + ": time, as a part of that on 1 rank", Ranks: 4, Ours: 1 / m.SpeedUp,
				Unit: "times", Goal: 1 / speedUpGoal})
		}
	}
}

// printScaling prints the table for people.
func printScaling(all []measure.Measured) {
	t := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "app\tside\tscaling\tgraph\tranks\tmedian us\tp99 us\tspeed-up\tefficiency\t")
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b measure.Measured) int {
		return cmp.Or(cmp.Compare(slices.Index(appNames, a.App), slices.Index(appNames, b.App)),
			cmp.Compare(a.Scaling, b.Scaling), cmp.Compare(a.Side, b.Side), cmp.Compare(a.Ranks, b.Ranks))
	})
	for _, m := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%v\t%d\t%.1f\t%.1f\t%.2f\t%.2f\t\n",
			m.App, m.Side, m.Scaling, m.Graph, m.Ranks, m.MedianUS, m.P99US, m.SpeedUp, m.Efficiency)
	}
	t.Flush()
}

const startGoal = 3 // s, on GPUs

// cost measures what a rank costs: the time of the smallest all-reduce, of the start, and the
// memory. There may be more ranks than cores.
func (s *sweep) cost() error {
	t, err := measure.DTypeOf("float32")
	if err != nil {
		return err
	}
	const calls = 5
	c := []measure.Case{{Op: measure.Operations[0], DType: t, Elements: 2, Calls: calls}}
	var sides []side
	for _, n := range s.costRanks {
		for _, p := range s.collectiveSides(n, c) {
			if p.name != measure.Ours && p.name != "MPI from C" {
				continue
			}
			sides = append(sides, side{p.name, n, func() ([]measure.Measured, error) {
				all, err := p.run()
				for i := range all {
					all[i].App, all[i].Bytes, all[i].USPerRank = "cost", c[0].Bytes(), all[i].MedianUS/float64(n)
				}
				if err != nil || p.name != measure.Ours {
					return all, err
				}
				begun, err := s.start(n)
				for i := range all {
					all[i].StartupMS, all[i].PeakMiB = begun.MS, begun.PeakMiB
				}
				return all, err
			}})
		}
	}
	all, err := s.turnsOf(sides)
	s.all = append(s.all, all...)
	s.ratios(all)
	for _, m := range all {
		if m.Side == measure.Ours && !s.onHost() {
			s.Limit(measure.Row{What: "process start to the end of the first collective, warm", Ranks: m.Ranks,
				Ours: m.StartupMS / 1e3, Unit: "s", Goal: startGoal})
		}
	}
	printCost(all)
	return err
}

// start starts n ranks that make one collective.
func (s *sweep) start(n int) (measure.Started, error) {
	cmd, err := s.Rank(n, "startup")
	if err != nil {
		return measure.Started{}, err
	}
	out, err := measure.Output(cmd...)
	if err != nil {
		return measure.Started{}, err
	}
	all, err := measure.Exactly[measure.Started](out, 1)
	if err != nil {
		return measure.Started{}, fmt.Errorf("startup: %w", err)
	}
	return all[0], nil
}

func printCost(all []measure.Measured) {
	t := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "cost\tranks\tall-reduce of 8 bytes, us\tus a rank\tstart ms\tms a rank\tpeak MiB of a rank\t")
	for _, m := range all {
		fmt.Fprintf(t, "%s\t%d\t%.2f\t%.2f\t", m.Side, m.Ranks, m.MedianUS, m.USPerRank)
		if m.Side == measure.Ours {
			fmt.Fprintf(t, "%.0f\t%.1f\t%.1f\t\n", m.StartupMS, m.StartupMS/float64(m.Ranks), m.PeakMiB)
		} else {
			fmt.Fprintln(t, "-\t-\t-\t")
		}
	}
	t.Flush()
}
