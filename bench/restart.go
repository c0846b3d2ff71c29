package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"lockstep/bench/measure"
	"lockstep/internal/launcher"
)

const (
	restartRanks = 3
	restartSteps = 100
)

// restart kills a rank of launch run --restarts in mid-run, another one in each round. It measures
// when training makes its next step, and compares the losses with those of an undisturbed run.
func (b *bench) restart() error {
	text := filepath.Join(b.Dir, "restart.txt")
	if err := os.WriteFile(text, []byte(measure.Numbers(100_000)), 0o666); err != nil {
		return err
	}
	train := []string{b.Program("train"), "--device", "host", "--data", text, "--steps", strconv.Itoa(restartSteps),
		"--val-batches", "0", "--sample", "0", "--json", "-"}
	out, err := measure.Output(measure.MPIRun(restartRanks, append(train, "--log-level", "warn")...)...)
	if err != nil {
		return err
	}
	plain, err := measure.Steps(out, restartSteps)
	if err != nil {
		return err
	}
	var rounds []*killing
	differ := 0.0
	for round := range b.Rounds {
		folder := filepath.Join(b.Dir, fmt.Sprint("restart-", round))
		run := slices.Concat([]string{b.Program("launch"), "run", "--oversubscribe", "--restarts", "3", "-np",
			strconv.Itoa(restartRanks), "--"},
			train, []string{"--checkpoint", folder, "--save-every", "10"})
		k := &killing{now: time.Now, kill: func() error {
			return killRank(b.Program("train"), folder, round%restartRanks)
		}}
		if err := measure.Follow(k.hear, run...); err != nil {
			return err
		}
		worst, err := k.difference(plain)
		if err != nil {
			return err
		}
		differ, rounds = max(differ, worst), append(rounds, k)
	}
	slices.SortFunc(rounds, func(x, y *killing) int { return cmp.Compare(x.took(), y.took()) })
	slowest := rounds[len(rounds)-1]
	b.Limit(measure.Row{What: "from kill -9 of a rank to the next step of training, launch run --restarts 3, " +
		"slowest round", Ranks: restartRanks,
		Ours: slowest.took().Seconds(), Unit: "s", Goal: 10, Parts: map[string]float64{
			"until the job has ended": slowest.ended.Sub(slowest.killed).Seconds(),
			"from then on":            slowest.stepped.Sub(slowest.ended).Seconds(),
			"median of the rounds":    rounds[len(rounds)/2].took().Seconds()}})
	b.Limit(measure.Row{What: "largest difference of a loss from the undisturbed run, a rank killed and the job " +
		"started again", Ranks: restartRanks,
		Ours: differ, Unit: "nats", Goal: 0})
	return nil
}

// killing is one run in which a rank is killed, as its lines tell.
type killing struct {
	now  func() time.Time
	kill func() error

	saved                  bool // there is a checkpoint to go on from
	from                   int  // the step of the one that it went on from
	killed, ended, stepped time.Time
	steps                  []measure.TrainStep // of both starts
}

// restarted matches launch run's line after a job has ended and before it starts again.
var restarted = regexp.MustCompile(`^launch: .*; restart 1 of 3 in .*, from step (\d+), `)

// hear takes the run's next line.
func (k *killing) hear(errs bool, line string) error {
	if errs {
		k.saved = k.saved || strings.Contains(line, " INF checkpoint saved ")
		if m := restarted.FindStringSubmatch(line); m != nil {
			k.ended = k.now()
			k.from, _ = strconv.Atoi(m[1]) // digits
		}
		return nil
	}
	all, err := measure.Lines[measure.TrainStep](line)
	if err != nil || len(all) == 0 || all[0].Summary {
		return err
	}
	k.steps = append(k.steps, all[0])
	switch {
	case k.saved && k.killed.IsZero():
		k.killed = k.now()
		return k.kill()
	case !k.ended.IsZero() && k.stepped.IsZero() && all[0].Step == k.from+1:
		k.stepped = k.now()
	}
	return nil
}

// took returns the time without training.
func (k *killing) took() time.Duration { return k.stepped.Sub(k.killed) }

// difference returns the largest difference of a loss from that of the same step of plain. Both
// losses of a repeated step count.
func (k *killing) difference(plain []measure.TrainStep) (float64, error) {
	if k.stepped.IsZero() {
		return 0, errors.New("the job was not killed and started again: it has ended too soon")
	}
	worst, made := 0.0, make([]bool, len(plain))
	for _, s := range k.steps {
		if s.Step < 1 || s.Step > len(plain) {
			return 0, fmt.Errorf("there is no step %d", s.Step)
		}
		made[s.Step-1] = true
		worst = max(worst, math.Abs(s.Loss-plain[s.Step-1].Loss))
	}
	if i := slices.Index(made, false); i >= 0 {
		return 0, fmt.Errorf("step %d was not made", i+1)
	}
	return worst, nil
}

// killRank kills the process of a rank: the one that runs program with word among its arguments.
func killRank(program, word string, rank int) error {
	lists, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, list := range lists {
		words, err := os.ReadFile(list)
		args := strings.Split(string(words), "\x00")
		if err != nil || args[0] != program || !slices.Contains(args, word) {
			continue // it has ended, or is another
		}
		environ, err := os.ReadFile(filepath.Join(filepath.Dir(list), "environ"))
		if err != nil {
			return err
		}
		job := launcher.Detect(func(name string) string {
			for variable := range strings.SplitSeq(string(environ), "\x00") {
				if value, is := strings.CutPrefix(variable, name+"="); is {
					return value
				}
			}
			return ""
		})
		if job.Size > 1 && job.Rank == rank {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(list)))
			if err != nil {
				return err
			}
			return syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return fmt.Errorf("rank %d is not there", rank)
}
