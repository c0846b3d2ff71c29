package main

import (
	"bufio"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"

	"lockstep/bench/measure"
)

// group is the rows of one --only name.
type group struct {
	set, name string
	run       func(*bench) error
}

var groups = []group{
	{measure.HostSet, "watch", (*bench).watch},
	{measure.HostSet, "reduce", (*bench).reduce},
	{measure.HostSet, "matvec", (*bench).matvec},
	{measure.HostSet, "train", (*bench).train},
	{measure.GPUSet, "enqueue", (*bench).enqueue},
	{measure.GPUSet, "launch", (*bench).launch},
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
	out, err := measure.Output(append([]string{b.Program("train"), "--device", "host", "--steps",
		strconv.Itoa(measure.TrainSteps), "--val-batches", "0", "--sample", "0", "--json", "-", "--log-level", "warn",
		"--model", "gpt2", "--batch", "4", "--seq", "64"}, flags...)...)
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
