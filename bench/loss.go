package main

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	"github.com/tiktoken-go/tokenizer/codec"

	"lockstep/bench/measure"
)

// lossBench compares a model's learning with PyTorch's, from the same weights, sequences and rates.
type lossBench struct {
	besidePyTorch
	model, text              string
	batch, seq, steps, seeds int
	seed                     uint64
	lr                       float64
	variants                 []string // flags of bin/train, of one more run each
}

const (
	lastLosses  = 100 // steps at the end whose difference counts
	lossGoal    = 0.01
	lossGoalFP8 = 0.02
)

// lossCommand is bench loss.
func lossCommand() error {
	l := lossBench{}
	fs := pflag.NewFlagSet("bench loss", pflag.ExitOnError)
	fs.StringVar(&l.model, "model", "gpt2", "shape of the model: gpt2, gpt2-medium, gpt2-large or gpt2-xl")
	fs.StringVar(&l.text, "text", "", "`FILE` to learn from, in GPT-2's tokens; one of llm.c's .bin files holds tokens")
	fs.IntVar(&l.batch, "batch", 8, "sequences of a step")
	fs.IntVar(&l.seq, "seq", 1024, "tokens of a sequence")
	fs.IntVar(&l.steps, "steps", 1000, fmt.Sprintf("steps, of which the last %d count", lastLosses))
	fs.Float64Var(&l.lr, "lr", 6e-4, "rate at its peak")
	fs.Uint64Var(&l.seed, "seed", 42, "seed of the order of sequences")
	fs.IntVar(&l.seeds, "seeds", 1,
		"`N` runs of each side, of --seed and the seeds after it; the mean of their differences counts")
	fs.StringArrayVar(&l.variants, "train", nil,
		"flags of one more run of bin/train, such as --train=--fp8=all; repeatable")
	l.flags(fs, "PyTorch and transformers")
	if err := measure.Parse(fs); err != nil {
		return err
	}
	switch {
	case l.text == "":
		return errors.New("--text is missing: the file to learn from")
	case l.steps < lastLosses:
		return fmt.Errorf("--steps %d: must be at least %d", l.steps, lastLosses)
	case l.seeds < 1:
		return fmt.Errorf("--seeds %d: must be at least 1", l.seeds)
	}
	return l.onGPUs(fs, "loss", l.run)
}

func (l *lossBench) run() error {
	// A twentieth would be for validation, but there is none.
	tokens, err := tokenFile(l.text, l.Dir, (l.steps+1)*l.batch*l.seq*20/19+l.seq)
	if err != nil {
		return err
	}
	weights, rates := filepath.Join(l.Dir, "start"), filepath.Join(l.Dir, "rates")
	program := filepath.Join(l.pythonDir, "torch_loss.py")
	if _, err := measure.Output(l.python, program, "start", "--model", l.model, "--seq", strconv.Itoa(l.seq), "--to",
		weights); err != nil {
		return err
	}
	runs := append([]string{""}, l.variants...)
	differences := make([][]learned, len(runs)) // of each run, of each seed
	for seed := l.seed; seed < l.seed+uint64(l.seeds); seed++ {
		ours := make([][]timedStep, len(runs))
		for i, flags := range runs {
			if ours[i], err = l.train(tokens, weights, seed, strings.Fields(flags)); err != nil {
				return err
			}
		}
		theirs, err := l.follow(program, tokens, weights, rates, seed, ours[0])
		if err != nil {
			return err
		}
		for i, flags := range runs {
			d, err := compareLosses(ours[i], theirs)
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "seed %d %s: %+.5f of %.4f; the mean of their sizes %.5f; at the first step %+.5f\n",
				seed, flags, d.difference, d.theirs, d.sizes, d.first)
			differences[i] = append(differences[i], d)
		}
	}
	for i, flags := range runs {
		l.rowOf(flags, differences[i])
	}
	return measure.WriteRows(filepath.Join(l.Out, "loss.jsonl"), l.Rows)
}

// tokenFile returns the file of tokens that both sides read: text itself if it is one. Otherwise it
// makes one in dir with at least most tokens, or all of the text.
func tokenFile(text, dir string, most int) (string, error) {
	if filepath.Ext(text) == ".bin" {
		return filepath.Abs(text)
	}
	content, err := os.ReadFile(text)
	if err != nil {
		return "", err
	}
	ids, err := encode(content, most)
	if err != nil {
		return "", fmt.Errorf("%s: %w", text, err)
	}
	return writeTokens(filepath.Join(dir, "text.bin"), len(ids), func(i int) uint16 { return uint16(ids[i]) })
}

// encode returns at least most of GPT-2's tokens of a text, or all of them. The text is cut behind
// lines, and all cores encode its parts.
func encode(text []byte, most int) ([]uint, error) {
	const part = 1 << 20
	var ids []uint
	for len(text) > 0 && len(ids) < most {
		parts := make([][]uint, runtime.GOMAXPROCS(0))
		errs := make([]error, len(parts))
		var wait sync.WaitGroup
		for i := range parts {
			n := min(part, len(text))
			if end := bytes.IndexByte(text[n:], '\n'); end >= 0 {
				n += end + 1
			} else {
				n = len(text)
			}
			piece := string(text[:n])
			text = text[n:]
			wait.Go(func() { parts[i], _, errs[i] = codec.NewR50kBase().Encode(piece) })
		}
		wait.Wait()
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		ids = slices.Concat(append([][]uint{ids}, parts...)...)
	}
	return ids, nil
}

// train is one run of bin/train.
func (l *lossBench) train(tokens, weights string, seed uint64, flags []string) ([]timedStep, error) {
	cmd := append(measure.MPIRun(1, l.Program("train"), "--init-from", weights, "--data", tokens, "--cache", l.Dir,
		"--dtype", "bfloat16", "--seq", strconv.Itoa(l.seq), "--batch", strconv.Itoa(l.batch), "--global-batch",
		strconv.Itoa(l.batch), "--steps", strconv.Itoa(l.steps), "--lr", strconv.FormatFloat(l.lr, 'g', -1, 64),
		"--beta2", "0.95", "--seed", strconv.FormatUint(seed, 10), "--val-batches", "0", "--sample", "0", "--json", "-",
		"--log-level", "warn", "--device", "cuda"), flags...)
	return stepsOf(cmd, l.steps)
}

// follow runs PyTorch with our weights, sequences and rates.
func (l *lossBench) follow(program, tokens, weights, rates string, seed uint64,
	ours []timedStep) ([]measure.TrainStep, error) {
	var list strings.Builder
	for _, s := range ours {
		fmt.Fprintln(&list, s.LR)
	}
	if err := os.WriteFile(rates, []byte(list.String()), 0o666); err != nil {
		return nil, err
	}
	out, err := measure.Output(l.python, program, "follow", "--from", weights, "--tokens", tokens, "--rates", rates,
		"--batch", strconv.Itoa(l.batch), "--seq", strconv.Itoa(l.seq), "--seed", strconv.FormatUint(seed, 10))
	if err != nil {
		return nil, err
	}
	return measure.Lines[measure.TrainStep](out)
}

// learned is the difference of two runs in the mean of the last losses: ours less theirs.
type learned struct {
	difference, sizes float64 // the mean of the differences, and of their sizes
	first             float64 // at the first step
	theirs            float64 // PyTorch's mean loss
}

func compareLosses(ours []timedStep, theirs []measure.TrainStep) (d learned, err error) {
	if len(theirs) != len(ours) {
		return d, fmt.Errorf("torch_loss.py printed %d losses, want %d", len(theirs), len(ours))
	}
	d.first = ours[0].Loss - theirs[0].Loss
	for i := len(ours) - lastLosses; i < len(ours); i++ {
		d.difference += (ours[i].Loss - theirs[i].Loss) / lastLosses
		d.sizes += math.Abs(ours[i].Loss-theirs[i].Loss) / lastLosses
		d.theirs += theirs[i].Loss / lastLosses
	}
	return d, nil
}

// rowOf adds the row of one variant: the mean over the seeds.
func (l *lossBench) rowOf(flags string, seeds []learned) {
	var mean learned
	n := float64(len(seeds))
	for _, d := range seeds {
		mean.difference += d.difference / n
		mean.sizes += d.sizes / n
		mean.first += math.Abs(d.first) / n
		mean.theirs += d.theirs / n
	}
	what, goal := fmt.Sprintf("%s, %d sequences of %d tokens, rate %g, bfloat16: mean difference of the last %d of "+
		"%d losses from PyTorch's",
		l.model, l.batch, l.seq, l.lr, lastLosses, l.steps), lossGoal
	if len(seeds) > 1 {
		what += fmt.Sprintf(", %d seeds", len(seeds))
	}
	if flags != "" {
		what += ", " + flags
	}
	if strings.Contains(flags, "--fp8") {
		goal = lossGoalFP8
	}
	l.Limit(measure.Row{What: what, Ranks: 1, Ours: math.Abs(mean.difference), Unit: "nat", Goal: goal,
		Parts: map[string]float64{"mean_of_sizes": mean.sizes, "first": mean.first, "pytorch": mean.theirs,
			"signed": mean.difference}})
	fmt.Fprintf(os.Stderr, "%s: %+.5f of %.4f\n", what, mean.difference, mean.theirs)
}
