package sweep

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"lockstep/bench/measure"
)

// sweep is one run of bench sweep.
type sweep struct {
	measure.Harness
	measure.Flags
	parts       []string
	opNames     []string
	typeNames   []string
	from, to    measure.ByteSize
	factor      int
	calls       int // at most, in a timed iteration; 0: as many as is usual
	ranks       []int
	costRanks   []int
	device      string
	collectives string
	peers       []string
	ncclTests   string
	python      string
	pythonDir   string
	goal        float64
	within      time.Duration
	app         appFlags

	ops   []measure.Operation
	types []measure.DType
	sizes []int
	all   []measure.Measured
	found []peer // on this machine; nil before the first look
	begun time.Time
}

// These are the parts of a sweep, and the groups of its rows.
const (
	collectivesPart = "collectives"
	scalingPart     = "scaling"
	costPart        = "cost"
)

var sweepParts = []string{collectivesPart, scalingPart, costPart}

const defaultSweepRounds = 3

// hostCalls is the number of calls of a timed iteration on the host, unless they move more than
// hostMoved bytes. One call may take less than a microsecond, and the clock needs more.
const hostCalls, hostMoved = 200, 64 << 20

// gpuCalls is the number of calls on GPUs, by size. The start, the first launch of a graph and the
// wait at the end are then about a hundredth of their time or less. nccl-tests takes one number for
// all sizes of a run, and its start takes as long as the run, so there are only two.
var gpuCalls = []struct{ upTo, calls int }{{8 << 20, 1000}, {measure.MostBytes, 60}}

// callsOf returns the number of calls of a timed iteration at a size.
func (s *sweep) callsOf(bytes int) int {
	most := max(1, min(hostCalls, hostMoved/bytes))
	// A way through MPI or the host waits for each call.
	waits := strings.HasPrefix(s.collectives, "mpi") || s.collectives == "host-staged"
	if !s.onHost() && !waits {
		for _, g := range slices.Backward(gpuCalls) {
			if bytes <= g.upTo {
				most = g.calls
			}
		}
	}
	return min(cmp.Or(s.calls, most), most)
}

// Command is bench sweep.
func Command() error {
	s := sweep{from: 8, to: 64 << 20}
	fs := pflag.NewFlagSet("bench sweep", pflag.ExitOnError)
	s.Flags.Register(fs, "symmetric")
	fs.StringSliceVar(&s.parts, "only", sweepParts, "what to run")
	fs.StringSliceVar(&s.opNames, "ops", measure.OperationNames(), "collectives")
	fs.StringSliceVar(&s.typeNames, "types", []string{"float32"},
		"element types: "+strings.Join(measure.DTypeNames(), ", "))
	fs.Var(&s.from, "from", "smallest size, of the larger of a rank's two buffers: bytes, or such as 64KiB")
	fs.Var(&s.to, "to", "largest size: bytes, or such as 1GiB")
	fs.IntVar(&s.factor, "factor", 2, "how many times as large one size is as the one before")
	fs.IntVar(&s.calls, "calls", 0,
		fmt.Sprintf("calls back to back in a timed iteration, at most (default: from %d, of small ones, to %d on "+
			"GPUs, and from %d to 1 on the host); 1 times what a caller waits",
			gpuCalls[0].calls, gpuCalls[len(gpuCalls)-1].calls, hostCalls))
	fs.IntSliceVar(&s.ranks, "ranks", nil,
		"numbers of ranks (default 1, 2, 4 and so on: up to all GPUs, or 4 on the host)")
	fs.IntSliceVar(&s.costRanks, "cost-ranks", []int{1, 2, 4, 8, 16, 32, 64},
		"numbers of ranks for cost; on GPUs, those of them that there are GPUs for")
	fs.StringVar(&s.device, "device", "auto", "auto, cuda or host")
	fs.StringVar(&s.collectives, "collectives", "auto",
		"what carries collectives: auto, nccl or mpi; of GPU memory also mpi-peer, mpi-aware or host-staged")
	fs.IntVar(&s.Rounds, "rounds", defaultSweepRounds, "turns of each side; the medians count")
	fs.DurationVar(&s.within, "limit", 0,
		"time after which no turn begins, such as 5m; what has been measured then counts (0: none)")
	fs.StringSliceVar(&s.peers, "peers", peerNames(),
		"whom to compare with; those that are not on this machine are left out. none is nobody")
	fs.StringVar(&s.ncclTests, "nccl-tests", "", "`DIR` of the built nccl-tests")
	fs.StringVar(&s.python, "python", "python3", "the Python that has PyTorch or mpi4py")
	fs.StringVar(&s.pythonDir, "python-sources", "bench/peers", "`DIR` of the Python programs")
	fs.Float64Var(&s.goal, "goal", 0,
		fmt.Sprintf("ratio to peers that counts as met (default %v on GPUs, %v on the host)",
			measure.GPUGoal, measure.HostGoal))
	fs.StringVar(&s.Out, "out", "bench/results/sweep", "`DIR` for the results")
	fs.StringVar(&s.Bin, "bin", "bin", "`DIR` of the built programs reduce, matvec, stencil and train")
	fs.StringVar(&s.CSources, "c-sources", "bench/c", "`DIR` of the C programs' sources")
	fs.StringVar(&s.Commit, "commit", "", "what the programs were built from (default what git says here)")
	s.app.flags(fs)
	if err := measure.Parse(fs); err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return err
	}
	defer func() { os.RemoveAll(s.Dir) }()
	if err := s.Prepare(); err != nil {
		return err
	}
	if err := s.place(fs.Changed); err != nil {
		return err
	}
	s.Line = "bin/bench sweep" + measure.Repeatable(fs)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	context.AfterFunc(ctx, stop) // the next signal ends this process
	measure.Interrupted = ctx
	return s.run()
}

// check refuses flags that do not fit.
func (s *sweep) check() error {
	for _, o := range s.opNames {
		op, err := measure.OperationOf(o)
		if err != nil {
			return fmt.Errorf("--ops: %w", err)
		}
		s.ops = append(s.ops, op)
	}
	for _, name := range s.typeNames {
		t, err := measure.DTypeOf(name)
		if err != nil {
			return fmt.Errorf("--types: %w", err)
		}
		s.types = append(s.types, t)
	}
	for _, f := range []struct {
		flag       string
		got, known []string
	}{
		{"only", s.parts, sweepParts}, {"peers", s.peers, append([]string{"none"}, peerNames()...)},
		{"device", []string{s.device}, []string{"auto", "cuda", "host"}},
		{"collectives", []string{s.collectives},
			[]string{"auto", "nccl", "mpi", "mpi-peer", "mpi-aware", "host-staged"}},
	} {
		for _, v := range f.got {
			if !slices.Contains(f.known, v) {
				return fmt.Errorf("--%s %s: want %s", f.flag, v, strings.Join(f.known, ", "))
			}
		}
	}
	for _, f := range []struct {
		flag  string
		ranks []int
	}{{"ranks", s.ranks}, {"cost-ranks", s.costRanks}} {
		for _, n := range f.ranks {
			if n < 1 || n > 1<<16 {
				return fmt.Errorf("--%s %d: must be from 1 to 65536", f.flag, n)
			}
		}
	}
	switch {
	case s.Rounds < 1:
		return fmt.Errorf("--rounds %d: must be at least 1", s.Rounds)
	case s.calls < 0:
		return fmt.Errorf("--calls %d: must not be negative", s.calls)
	case s.within < 0:
		return fmt.Errorf("--limit %v: must not be negative", s.within)
	case !(s.goal >= 0):
		return fmt.Errorf("--goal %v: must not be negative", s.goal)
	}
	var err error
	if s.sizes, err = measure.Sizes(int(s.from), int(s.to), s.factor); err != nil {
		return err
	}
	if err := s.app.check(); err != nil {
		return err
	}
	return s.Flags.Check()
}

// place sets the values that depend on the machine. given says whether a flag was given.
func (s *sweep) place(given func(flag string) bool) error {
	set := measure.HostSet
	switch {
	case s.device == "cuda" && len(s.GPUs) == 0:
		return fmt.Errorf("--device cuda: %s", s.WhyNoGPU)
	case s.device != "host" && len(s.GPUs) > 0:
		set = measure.GPUSet
	}
	s.Set = set
	most := 4
	if set == measure.GPUSet {
		most = len(s.GPUs)
		s.costRanks = slices.DeleteFunc(s.costRanks, func(n int) bool { return n > most })
	}
	if s.ranks == nil {
		for n := 1; n <= most; n *= 2 {
			s.ranks = append(s.ranks, n)
		}
	}
	for _, ranks := range [][]int{s.ranks, s.costRanks} {
		slices.Sort(ranks)
	}
	s.ranks, s.costRanks = slices.Compact(s.ranks), slices.Compact(s.costRanks)
	goal, iters, warmup := measure.HostGoal, measure.HostIters, measure.HostWarmup
	if set == measure.GPUSet {
		goal, iters, warmup = measure.GPUGoal, measure.GPUIters, measure.GPUWarmup
	}
	s.goal = cmp.Or(s.goal, goal)
	if !given("iters") {
		s.Iters = iters
	}
	if !given("warmup") {
		s.Warmup = warmup
	}
	return nil
}

func (s *sweep) onHost() bool { return s.Set == measure.HostSet }

// run measures the parts, and writes the files after each.
func (s *sweep) run() error {
	s.begun = time.Now()
	defer s.Doing.Done()
	var failed []error
	var rows []measure.Row
	for _, part := range sweepParts {
		if !slices.Contains(s.parts, part) || measure.Interrupted.Err() != nil {
			continue
		}
		s.Group, s.Rows = part, nil
		var err error
		switch part {
		case collectivesPart:
			err = s.sweepCollectives()
		case scalingPart:
			err = s.scaling()
		case costPart:
			err = s.cost()
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", part, err))
		}
		rows = append(rows, s.Rows...)
		if err := s.write(rows); err != nil {
			return errors.Join(append(failed, err)...)
		}
	}
	s.Doing.Done()
	measure.Print(rows)
	if measure.Interrupted.Err() != nil {
		failed = append(failed, fmt.Errorf("interrupted: what had been measured before is in %s", s.Out))
	}
	for _, m := range s.all {
		if !m.OK {
			failed = append(failed, fmt.Errorf("%s on %d ranks: %s is wrong", m.What(), m.Ranks, m.Side))
		}
	}
	return errors.Join(failed...)
}

// write writes the measurements, the rows and the plots so far.
func (s *sweep) write(rows []measure.Row) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	for _, m := range s.all {
		m.SamplesUS = nil // the plot has them
		if err := e.Encode(m); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.Out, 0o777); err != nil {
		return err
	}
	if err := os.WriteFile(s.file("measured.jsonl"), b.Bytes(), 0o666); err != nil {
		return err
	}
	if err := measure.WriteRows(s.file("ratios.jsonl"), rows); err != nil {
		return err
	}
	return s.plot()
}

// file returns the name of a file of the results.
func (s *sweep) file(name string) string { return filepath.Join(s.Out, s.Set+"-"+name) }

// sweepCollectives measures the collectives on every number of ranks.
func (s *sweep) sweepCollectives() error {
	var sides []side
	for _, n := range s.ranks {
		sides = append(sides, s.collectiveSides(n, measure.Cases(s.ops, s.types, s.sizes, n, s.callsOf))...)
	}
	all, err := s.turnsOf(sides)
	s.all = append(s.all, all...)
	s.ratios(all)
	return err
}

// side is one program of a comparison.
type side struct {
	name  string
	ranks int
	run   func() ([]measure.Measured, error)
}

// turnsOf runs the sides in turn and returns the medians of their lines. A side that fails is
// not run again, and the error says so. After --limit no turn begins. An interrupt ends the
// present turn.
func (s *sweep) turnsOf(sides []side) ([]measure.Measured, error) {
	measurements := map[measure.Kind][]measure.Measured{}
	var order []measure.Kind
	failed := make([]error, len(sides))
turns:
	for round := range s.Rounds {
		for i, side := range sides {
			if s.within > 0 && time.Since(s.begun) > s.within {
				s.Doing.Done()
				fmt.Fprintf(os.Stderr, "bench: --limit %v: %d of %d turns are left out\n",
					s.within, (s.Rounds-round)*len(sides)-i, s.Rounds*len(sides))
				break turns
			}
			if failed[i] != nil {
				continue
			}
			s.Doing.Say(fmt.Sprintf("%s: %s on %d ranks", s.Group, side.name, side.ranks), round*len(sides)+i+1,
				s.Rounds*len(sides), len(s.all))
			lines, err := side.run()
			if err != nil && measure.Interrupted.Err() != nil {
				break turns // it ended this side, and would end the next ones at once
			}
			if err != nil {
				failed[i] = fmt.Errorf("%s on %d ranks: %w", side.name, side.ranks, err)
				continue
			}
			for _, m := range lines {
				m.Side, m.Ranks = side.name, side.ranks
				if measurements[m.Kind] == nil {
					order = append(order, m.Kind)
				}
				measurements[m.Kind] = append(measurements[m.Kind], m)
			}
		}
	}
	var all []measure.Measured
	for _, k := range order {
		m := middle(measurements[k])
		m.Device, m.Machine = s.Hardware()
		m.Commit, m.Date = s.Commit, time.Now().UTC().Format(time.DateOnly)
		all = append(all, m)
	}
	return all, errors.Join(failed...)
}

// middle returns the line of several rounds: the medians of their measurements, the least and the
// greatest time, the sum of wrong elements, and the rates that follow.
func middle(turns []measure.Measured) measure.Measured {
	m := turns[0]
	m.Rounds, m.SamplesUS, m.Slow, m.Wrong = len(turns), nil, nil, nil
	for _, f := range []func(*measure.Measured) *float64{
		func(t *measure.Measured) *float64 { return &t.MedianUS },
		func(t *measure.Measured) *float64 { return &t.P99US },
		func(t *measure.Measured) *float64 { return &t.TokS },
		func(t *measure.Measured) *float64 { return &t.USPerRank },
		func(t *measure.Measured) *float64 { return &t.StartupMS },
		func(t *measure.Measured) *float64 { return &t.PeakMiB },
	} {
		var x []float64
		for i := range turns {
			x = append(x, *f(&turns[i]))
		}
		*f(&m) = measure.Median(x)
	}
	for _, t := range turns {
		m.MinUS, m.MaxUS, m.OK = min(m.MinUS, t.MinUS), max(m.MaxUS, t.MaxUS), m.OK && t.OK
		m.SamplesUS, m.Slow = append(m.SamplesUS, t.SamplesUS...), append(m.Slow, t.Slow...)
		if t.Wrong != nil {
			sum := *t.Wrong
			if m.Wrong != nil {
				sum += *m.Wrong
			}
			m.Wrong = &sum
		}
	}
	if m.Bytes > 0 {
		m.GBps = m.Stats.GBps(m.Bytes)
	}
	if op, err := measure.OperationOf(m.Op); err == nil {
		m.BusGBps = m.GBps * op.Bus(m.Ranks)
	}
	return m
}
