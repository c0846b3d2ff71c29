package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"lockstep/spmd/timing"
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
	fs.IntVar(&f.cols, "cols", 0, "matvec: columns; with weak scaling, for each rank (default 60,000 on the host, 300,000 on GPUs)")
	fs.IntVar(&f.grid, "grid", 0, "stencil: rows and columns of the grid; with weak scaling, rows for each rank (default 4,096 on the host, 16,384 on GPUs)")
	fs.IntVar(&f.iters, "app-iters", 100, "reduce, matvec and stencil: timed iterations")
	fs.IntVar(&f.globalBatch, "global-batch", 16, "train: sequences of a step; with weak scaling, for each rank")
	fs.IntVar(&f.steps, "steps", trainSteps, fmt.Sprintf("train: steps, of which the first %d do not count", trainDiscard))
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
	}{{"elements", f.elements, 1}, {"rows", f.rows, 0}, {"cols", f.cols, 0}, {"grid", f.grid, 0}, {"app-iters", f.iters, 1}, {"global-batch", f.globalBatch, 1}, {"steps", f.steps, trainDiscard + 1}} {
		if n.value < n.min {
			return fmt.Errorf("--%s %d: must be at least %d", n.flag, n.value, n.min)
		}
	}
	return nil
}

// The kinds of scaling: the whole work is the same on any number of ranks, or the work of each rank is.
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
	if err := os.WriteFile(s.text(), []byte(numbers(100_000)), 0o666); err != nil {
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
	s.ratios(slices.DeleteFunc(slices.Clone(all), func(m measured) bool { return m.Ranks == 1 && m.Scaling == weak }))
	s.appGoals(all)
	printScaling(all)
	return err
}

// text is what train learns from here.
func (s *sweep) text() string { return filepath.Join(s.dir, "numbers.txt") }

// appSides are this framework and the peers, each with an application on n ranks.
func (s *sweep) appSides(app string, n int, kind string) []side {
	each := 1
	if kind == weak {
		each = n
	}
	elements, cols, batch := s.app.elements*each, s.app.cols*each, s.app.globalBatch*each
	size, samples := []string{"--elements", strconv.Itoa(elements)}, []string{"--samples"} // for the plot of reduce's times
	if app == "matvec" {
		samples = nil
		size = []string{"--rows", strconv.Itoa(s.app.rows), "--cols", strconv.Itoa(cols)}
	}
	scaled := func(all []measured, err error) ([]measured, error) {
		for i := range all {
			all[i].Scaling = kind
		}
		return all, err
	}
	program := append(mpirun(n, s.program(app)), "--device", s.deviceName(), "--collectives", s.collectives, "--json", "-", "--log-level", "warn")
	if app == "train" {
		return []side{{ours, n, func() ([]measured, error) {
			m, err := s.trainTurn(append(program, "--global-batch", strconv.Itoa(max(batch, n))))
			return scaled([]measured{m}, err)
		}}}
	}
	if app == "stencil" {
		return s.stencilSides(program, n, each, scaled)
	}
	sides := []side{{ours, n, func() ([]measured, error) {
		var all []measured
		for _, graph := range s.graph {
			lines, err := s.measurements(slices.Concat(program, size, samples, []string{"--graph=" + strconv.FormatBool(graph), "--iters", strconv.Itoa(s.app.iters)}))
			if err != nil {
				return nil, err
			}
			all = append(all, lines...)
		}
		return scaled(all, nil)
	}}}
	if s.has("torch") {
		sides = append(sides, side{"PyTorch", n, func() ([]measured, error) {
			return scaled(s.measurements(s.torchrun(n, app, append(size, "--graph="+s.torchGraph(), "--iters", strconv.Itoa(s.app.iters))...)))
		}})
	}
	return sides
}

// trainTurn runs the training and returns the times of its steps.
func (s *sweep) trainTurn(cmd []string) (measured, error) {
	m := measured{kind: kind{App: "train"}, OK: true}
	out, err := output(append(append(cmd, "--data", s.text(), "--cache", s.dir, "--steps", strconv.Itoa(s.app.steps),
		"--val-batches", "0", "--sample", "0"), s.app.train...)...)
	if err != nil {
		return m, err
	}
	steps, err := lines[step](out)
	if err != nil {
		return m, err
	}
	var us []float64
	for _, st := range steps {
		if !st.Summary {
			us = append(us, st.MS*1e3)
			m.TokS = st.TokS * st.MS // of one step; over the median below
		}
	}
	if len(us) != s.app.steps {
		return m, fmt.Errorf("train printed %q, want %d steps", out, s.app.steps)
	}
	m.Stats = timing.StatsOf(us[trainDiscard:])
	m.TokS /= m.MedianUS / 1e3
	return m, nil
}

// speedUps fills in how much faster the lines are than those on the fewest ranks, and what part of the ranks' speed
// that is. In weak scaling the work grows with the ranks, and so does the speed at equal times.
func speedUps(all []measured) {
	for i := range all {
		m := &all[i]
		base := m
		for j := range all {
			if o := &all[j]; o.series() == m.series() && o.Ranks < base.Ranks {
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

// series is what the lines of one application, side and way of calling share, on any number of ranks.
func (m *measured) series() kind {
	return kind{App: m.App, Side: m.Side, Scaling: m.Scaling, Graph: m.Graph}
}

// The times that are asked for on the default sizes on NVIDIA H200s, in us.
var appGoals = []struct {
	app   string
	ranks int
	us    float64
}{{"reduce", 1, 36}, {"reduce", 4, 18}, {"matvec", 1, 2860}, {"matvec", 4, 722}}

// How far the times of reduce may spread, in medians, and how much faster matvec must be on 4 GPUs than on one.
const (
	p99Goal     = 1.25
	maxGoal     = 10
	speedUpGoal = 3.95
)

// appGoals adds the rows that have no peer, on GPUs.
func (s *sweep) appGoals(all []measured) {
	if s.onHost() {
		return
	}
	for _, m := range all {
		if m.Side != ours || m.Scaling != strong {
			continue
		}
		usual := m.App == "reduce" && m.Elements == 30_000_000 || m.App == "matvec" && m.Rows == 10_000 && m.Cols == 300_000
		for _, g := range appGoals {
			if usual && g.app == m.App && g.ranks == m.Ranks {
				s.limit(row{What: m.what() + ": median", Ranks: m.Ranks, Ours: m.MedianUS, Unit: "us", Goal: g.us})
			}
		}
		if m.App == "reduce" {
			s.limit(row{What: m.what() + ": 99th percentile", Ranks: m.Ranks, Ours: m.P99US / m.MedianUS, Unit: "medians", Goal: p99Goal})
			s.limit(row{What: m.what() + ": maximum", Ranks: m.Ranks, Ours: m.MaxUS / m.MedianUS, Unit: "medians", Goal: maxGoal})
		}
		if m.App == "matvec" && m.Ranks == 4 && slices.ContainsFunc(all, func(o measured) bool { return o.Ranks == 1 && o.series() == m.series() }) {
			s.limit(row{What: m.what() + ": time, as a part of that on 1 rank", Ranks: 4, Ours: 1 / m.SpeedUp, Unit: "times", Goal: 1 / speedUpGoal})
		}
	}
}

// printScaling is the table for people.
func printScaling(all []measured) {
	t := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "app\tside\tscaling\tgraph\tranks\tmedian us\tp99 us\tspeed-up\tefficiency\t")
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b measured) int {
		return cmp.Or(cmp.Compare(slices.Index(appNames, a.App), slices.Index(appNames, b.App)), cmp.Compare(a.Scaling, b.Scaling), cmp.Compare(a.Side, b.Side), cmp.Compare(a.Ranks, b.Ranks))
	})
	for _, m := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%v\t%d\t%.1f\t%.1f\t%.2f\t%.2f\t\n", m.App, m.Side, m.Scaling, m.Graph, m.Ranks, m.MedianUS, m.P99US, m.SpeedUp, m.Efficiency)
	}
	t.Flush()
}

// cost measures what a rank costs: the time of the smallest all-reduce, of the start, and the memory. There may be
// more ranks than cores.
func (s *sweep) cost() error {
	t, err := dtypeOf("float32")
	if err != nil {
		return err
	}
	const calls = 5
	c := []kase{{op: operations[0], dtype: t, elements: 2, calls: calls}}
	var sides []side
	for _, n := range s.costRanks {
		for _, p := range s.collectiveSides(n, c) {
			if p.name != ours && p.name != "MPI from C" {
				continue
			}
			sides = append(sides, side{p.name, n, func() ([]measured, error) {
				all, err := p.run()
				for i := range all {
					all[i].App, all[i].Bytes, all[i].USPerRank = "cost", c[0].bytes(), all[i].MedianUS/float64(n)
				}
				if err != nil || p.name != ours {
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
	printCost(all)
	return err
}

// start starts n ranks that make one collective.
func (s *sweep) start(n int) (started, error) {
	cmd, err := s.rank(n, "startup")
	if err != nil {
		return started{}, err
	}
	out, err := output(cmd...)
	if err != nil {
		return started{}, err
	}
	all, err := lines[started](out)
	if err == nil && len(all) != 1 {
		err = errors.New("startup printed " + out)
	}
	if err != nil {
		return started{}, err
	}
	return all[0], nil
}

func printCost(all []measured) {
	t := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "cost\tranks\tall-reduce of 8 bytes, us\tus a rank\tstart ms\tms a rank\tpeak MiB of a rank\t")
	for _, m := range all {
		fmt.Fprintf(t, "%s\t%d\t%.2f\t%.2f\t", m.Side, m.Ranks, m.MedianUS, m.USPerRank)
		if m.Side == ours {
			fmt.Fprintf(t, "%.0f\t%.1f\t%.1f\t\n", m.StartupMS, m.StartupMS/float64(m.Ranks), m.PeakMiB)
		} else {
			fmt.Fprintln(t, "-\t-\t-\t")
		}
	}
	t.Flush()
}
