package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/bench/measure"
)

// group is the rows of one --only name.
type group struct {
	set, name string
	run       func(*bench) error
}

var groups = []group{
	{measure.HostSet, "allreduce", (*bench).allReduce},
	{measure.HostSet, "pingpong", (*bench).pingPong},
	{measure.HostSet, "ranks", (*bench).ranks},
	{measure.HostSet, "watch", (*bench).watch},
	{measure.HostSet, "reduce", (*bench).reduce},
	{measure.HostSet, "matvec", (*bench).matvec},
	{measure.HostSet, "stencil", (*bench).stencil},
	{measure.HostSet, "gradients", (*bench).gradients},
	{measure.HostSet, "learn", (*bench).learn},
	{measure.HostSet, "division", (*bench).division},
	{measure.HostSet, "restart", (*bench).restart},
	{measure.HostSet, "train", (*bench).train},
	{measure.HostSet, "seeing", (*bench).seeing},
	{measure.GPUSet, "enqueue", (*bench).enqueue},
	{measure.GPUSet, "launch", (*bench).launch},
	{measure.GPUSet, "startup", (*bench).startup},
	{measure.GPUSet, "replay", (*bench).replay},
	{measure.GPUSet, "losses", (*bench).losses},
	{measure.GPUSet, "errors", (*bench).errors},
	{measure.GPUSet, "memcheck", (*bench).memcheck},
}

func names() []string {
	var n []string
	for _, g := range groups {
		n = append(n, g.name)
	}
	return n
}

// turns runs the two sides in turn. It returns their times, and our point with the most
// allocations. Each run prints one point.
func (b *bench) turns(theirs, ours []string) (theirUS, ourUS []float64, worst measure.Point, err error) {
	for range b.Rounds {
		p, err := onePoint(theirs)
		if err != nil {
			return nil, nil, worst, err
		}
		theirUS = append(theirUS, p.MedianUS)
		if p, err = onePoint(ours); err != nil {
			return nil, nil, worst, err
		}
		ourUS = append(ourUS, p.MedianUS)
		if p.Allocs >= worst.Allocs {
			worst = p
		}
	}
	return theirUS, ourUS, worst, nil
}

func onePoint(cmd []string) (measure.Point, error) {
	out, err := measure.Output(cmd...)
	if err != nil {
		return measure.Point{}, err
	}
	points, err := measure.Exactly[measure.Point](out, 1)
	if err != nil {
		return measure.Point{}, fmt.Errorf("%v: %w", cmd, err)
	}
	return points[0], nil
}

// watch compares a step of 100 us with and without the watch over the ranks.
func (b *bench) watch() error {
	with, err := b.Rank(2, "step")
	if err != nil {
		return err
	}
	without := slices.Clone(with)
	without[slices.Index(without, "--what")] = measure.Unwatched
	theirUS, ourUS, _, err := b.turns(without, with)
	if err != nil {
		return err
	}
	b.CompareTimes(measure.Row{What: "a step of 100 us and an all-reduce of 8 bytes, with the watch over the ranks",
		Ranks: 2, Ours: measure.Median(ourUS), Unit: "us", Goal: 1.01}, "the same without it", measure.Median(theirUS))
	return nil
}

// allReduce compares spmd.AllReduce with MPI_Allreduce called from C.
func (b *bench) allReduce() error {
	program, err := b.C("allreduce", "mpicc")
	if err != nil {
		return err
	}
	for _, bytes := range []int{8, 16 << 10, 1 << 20, 64 << 20} {
		size := strconv.Itoa(bytes)
		rank, err := b.Rank(2, "allreduce", "--bytes", size)
		if err != nil {
			return err
		}
		theirUS, ourUS, _, err := b.turns(measure.MPIRun(2, program, size), rank)
		if err != nil {
			return err
		}
		theirs, ours := measure.Median(theirUS), measure.Median(ourUS)
		goal := 1.05
		if bytes == 8 {
			goal = (theirs + 0.15) / theirs // at most 0.15 us more
		}
		b.CompareTimes(measure.Row{What: fmt.Sprintf("all-reduce of %d bytes, float32", bytes), Ranks: 2,
			Ours: ours, Unit: "us", Goal: goal}, "MPI_Allreduce from C", theirs)
	}
	return nil
}

// pingPong compares point to point with gompi's own calls in the same process.
func (b *bench) pingPong() error {
	var ours, theirs []float64
	for range b.Rounds {
		cmd, err := b.Rank(2, "pingpong", "--bytes", "8")
		if err != nil {
			return err
		}
		out, err := measure.Output(cmd...)
		if err != nil {
			return err
		}
		points, err := measure.Exactly[measure.Point](out, 2)
		if err != nil {
			return err
		}
		ours, theirs = append(ours, points[0].MedianUS), append(theirs, points[1].MedianUS)
	}
	b.CompareTimes(measure.Row{What: "half a round trip of 8 bytes", Ranks: 2, Ours: measure.Median(ours), Unit: "us",
		Goal: 1},
		"gompi SendFloat64s and RecvPreallocFloat64s", measure.Median(theirs))
	return nil
}

func (b *bench) reduce() error { return b.bandwidth("reduce", 4*30_000_000) }

func (b *bench) matvec() error { return b.bandwidth("matvec", 4*2_000*60_000) }

// bandwidth compares an app on one rank with a C loop that reads as many bytes with all cores.
func (b *bench) bandwidth(app string, bytes int) error {
	readloop, err := b.C("readloop", measure.CC(), "-march=native", "-pthread")
	if err != nil {
		return err
	}
	var ours, theirs []float64
	for range b.Rounds {
		out, err := measure.Output(readloop, strconv.Itoa(bytes))
		if err != nil {
			return err
		}
		loop, err := measure.Exactly[struct{ GBps float64 }](out, 1)
		if err != nil {
			return fmt.Errorf("readloop: %w", err)
		}
		out, err = measure.Output(b.Program(app), "--device", "host", "--json", "-", "--log-level", "warn")
		if err != nil {
			return err
		}
		r, err := measure.Exactly[struct {
			GBps float64
			OK   bool
		}](out, 1)
		if err == nil && !r[0].OK {
			err = fmt.Errorf("its result is wrong: %q", out)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", app, err)
		}
		ours, theirs = append(ours, r[0].GBps), append(theirs, loop[0].GBps)
	}
	b.CompareRates(measure.Row{What: fmt.Sprintf("bandwidth of %s, %d bytes, %d cores", app, bytes, runtime.NumCPU()),
		Ranks: 1, Ours: measure.Median(ours), Unit: "GB/s", Goal: 1 / 0.9}, "C read loop", measure.Median(theirs))
	return nil
}

// errorGoal is the bound of an error.
type errorGoal struct {
	what  string
	ranks int
	goal  float64
}

// errorGoals are the bounds of numbers that tests of apps/train measure, by the tests' words.
var errorGoals = []errorGoal{
	{"largest relative error of a float64 gradient against central differences", 1, 1e-6},
	{"difference of the float32 loss from the float64 model", 1, 1e-5},
	{"largest relative difference of a float32 gradient tensor from the float64 model", 1, 1e-5},
	{"largest difference of a loss on 1, 2, 3 and 4 ranks over 20 steps", 4, 1e-5},
}

// gradients reports the largest errors that the tests of apps/train find.
func (b *bench) gradients() error {
	file := filepath.Join(b.Dir, "measured")
	_, _, err := measure.Outputs([]string{"LOCKSTEP_MEASURED=" + file}, "go", "test", "-buildvcs=false", "-count=1",
		"-run", "^(TestReferenceGradients|TestModelAgainstReference|TestLossDoesNotDependOnRanks)$",
		"./apps/train/traintest", "./apps/train/gpt", "./apps/train/trainer")
	if err != nil {
		return err
	}
	return b.judge(file, errorGoals)
}

// judge adds rows for the measurements that tests have written to a file.
func (b *bench) judge(file string, goals []errorGoal) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	worst, err := worstMeasured(string(text))
	if err != nil {
		return err
	}
	for _, g := range goals {
		v, ok := worst[g.what]
		if !ok {
			return fmt.Errorf("no test measured %q", g.what)
		}
		b.Limit(measure.Row{What: g.what, Ranks: g.ranks, Ours: v, Unit: "error", Goal: g.goal})
	}
	return nil
}

// worstMeasured returns the largest value of each kind in lines "VALUE\tWHAT", as
// traintest.Measured of apps/train writes them.
func worstMeasured(text string) (map[string]float64, error) {
	worst := map[string]float64{}
	for line := range strings.Lines(text) {
		value, what, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		v, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil || math.IsNaN(v) {
			return nil, fmt.Errorf("measured %q: want a number, a tab and what it is", line)
		}
		worst[what] = max(worst[what], v)
	}
	return worst, nil
}

// learn runs the default training on 4 ranks, and the training of make run.
func (b *bench) learn() error {
	start := time.Now()
	s, err := b.summary("--model", "modern-tiny", "--steps", "300")
	if err != nil {
		return err
	}
	took := time.Since(start).Seconds()
	b.Limit(measure.Row{What: "validation loss after make run", Ranks: 4, Ours: s.ValLoss, Unit: "nats", Goal: 1.91})
	b.Limit(measure.Row{What: "make run, when all is built", Ranks: 4, Ours: took, Unit: "s", Goal: 30})
	if s, err = b.summary("--sample", "0"); err != nil {
		return err
	}
	b.Limit(measure.Row{What: "first loss of the default training, distance from ln 256", Ranks: 4,
		Ours: math.Abs(s.LossFirst - 5.545177), Unit: "nats", Goal: 0.1})
	b.Limit(measure.Row{What: "last loss of the default training", Ranks: 4, Ours: s.LossLast, Unit: "nats", Goal: 2.3})
	return nil
}

// summary runs train on 4 ranks of the host, and returns the last line that it prints.
func (b *bench) summary(flags ...string) (s measure.TrainStep, err error) {
	out, err := measure.Output(measure.MPIRun(4, append([]string{b.Program("train"), "--device", "host", "--json", "-",
		"--log-level", "warn"}, flags...)...)...)
	if err != nil {
		return s, err
	}
	steps, err := measure.Lines[measure.TrainStep](out)
	if err == nil && (len(steps) == 0 || !steps[len(steps)-1].Summary) {
		err = fmt.Errorf("train printed no summary: %q", out)
	}
	if err != nil {
		return s, err
	}
	return steps[len(steps)-1], nil
}

// llmcStep matches llm.c's report of a step.
var llmcStep = regexp.MustCompile(`step \d+: train loss \S+ \(took (\S+) ms`)

// train measures a step of GPT-2 with 4 sequences of 64 tokens. One model has 124M parameters, as
// llm.c's C program has built in, and is compared with that. Another has bytes for tokens.
func (b *bench) train() error {
	ours, err := b.trainStep("--tokens", "gpt2", "--data", ".")
	if err != nil {
		return err
	}
	const limit = 1100 // ms
	r := measure.Row{What: "step of GPT-2 124M, B=4, T=64, float32", Ranks: 1, Ours: ours, Unit: "ms", Goal: limit}
	if b.LLMC == "" {
		b.Limit(r)
	} else {
		theirs, err := llmcSteps(b.LLMC, measure.TrainSteps)
		if err != nil {
			return err
		}
		r.Goal = 0.2
		b.CompareTimes(r, "llm.c train_gpt2.c, -Ofast -march=native -fopenmp",
			measure.Median(theirs[measure.TrainDiscard:]))
	}
	if ours, err = b.trainStep(); err != nil {
		return err
	}
	b.Limit(measure.Row{What: "step of train --model gpt2 --batch 4 --seq 64 (bytes, 86M)", Ranks: 1, Ours: ours,
		Unit: "ms", Goal: limit})
	return nil
}

// trainStep returns the median time of a step, in ms.
func (b *bench) trainStep(flags ...string) (float64, error) {
	out, err := measure.Output(append([]string{b.Program("train"), "--device", "host", "--model", "gpt2", "--batch",
		"4", "--seq", "64", "--steps", strconv.Itoa(measure.TrainSteps), "--val-batches", "0", "--sample", "0",
		"--json", "-", "--log-level", "warn"}, flags...)...)
	if err != nil {
		return 0, err
	}
	steps, err := measure.Steps(out, measure.TrainSteps)
	if err != nil {
		return 0, err
	}
	var ms []float64
	for _, s := range steps[measure.TrainDiscard:] {
		ms = append(ms, s.MS)
	}
	return measure.Median(ms), nil
}

// llmcSteps returns the times of the first n steps of llm.c's program, in ms. It then ends the
// program, which has no flag for their number.
func llmcSteps(program string, n int) ([]float64, error) {
	program, err := filepath.Abs(program) // its folder becomes the working folder
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("stdbuf", "-oL", program)
	cmd.Dir = filepath.Dir(program)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var ms []float64
	text := bufio.NewScanner(out)
	for len(ms) < n && text.Scan() {
		if m := llmcStep.FindStringSubmatch(text.Text()); m != nil {
			t, err := strconv.ParseFloat(m[1], 64)
			if err != nil {
				return nil, err
			}
			ms = append(ms, t)
		}
	}
	_ = cmd.Process.Kill() // it is not wanted any more, or has ended
	_ = cmd.Wait()
	if len(ms) < n {
		return nil, fmt.Errorf("%s ended after %d steps, want %d", program, len(ms), n)
	}
	return ms, nil
}
