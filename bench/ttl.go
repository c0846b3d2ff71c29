package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"lockstep/bench/measure"
)

// ttlBench compares the seconds to a loss, and the tokens a second, with PyTorch's. Both train a
// modern decoder by Muon on the same sequences.
type ttlBench struct {
	besidePyTorch
	text, model, mode string
	batch, checks     int // sequences of a step; validations of a run
	seed              uint64
	steps             []int     // of each run
	losses            []float64 // to be reached
	more              []string  // flags of bin/train
}

const (
	ttlSeq        = 1024
	ttlGoal       = 0.75 // of PyTorch's seconds
	ttlValidation = 1024 // sequences
)

// ttlRates are the known models, and their goals in multiples of PyTorch's tokens a second.
var ttlRates = map[string]float64{"modern": 1.3, "modern-medium": 1.25}

// reached is a validation: the loss after so many seconds of learning.
type reached struct {
	Seconds float64
	Loss    float64 `json:"val_loss"`
	Tokens  int
}

// ttlCommand is bench ttl.
func ttlCommand() error {
	t := ttlBench{}
	fs := pflag.NewFlagSet("bench ttl", pflag.ExitOnError)
	fs.StringVar(&t.text, "text", "",
		"`FILE` to learn from, in GPT-2's tokens; one of llm.c's .bin files holds tokens, as `train tokens` writes it")
	fs.StringVar(&t.model, "model", "modern", "modern or modern-medium")
	fs.IntVar(&t.checks, "checks", 10, "how many times a run validates, at least 2")
	fs.IntVar(&t.batch, "batch", 16, "sequences of a step")
	fs.IntSliceVar(&t.steps, "steps", []int{200, 400, 640},
		"steps of each run; a loss counts as reached by the fastest")
	fs.Float64SliceVar(&t.losses, "loss", []float64{4, 3.5, 3, 2.75}, "validation losses to be reached")
	fs.Uint64Var(&t.seed, "seed", 42, "seed of the order of sequences")
	fs.StringArrayVar(&t.more, "train", nil, "flag of bin/train, such as --train=--lr=0.02; repeatable")
	t.flags(fs, "PyTorch")
	fs.StringVar(&t.mode, "mode", "default", "of PyTorch's torch.compile, such as reduce-overhead")
	if err := measure.Parse(fs); err != nil {
		return err
	}
	if t.text == "" {
		return errors.New("--text is missing: the file to learn from")
	}
	if ttlRates[t.model] == 0 {
		return fmt.Errorf("--model %s: must be modern or modern-medium", t.model)
	}
	if t.checks < 2 {
		return fmt.Errorf("--checks %d: must be at least 2", t.checks)
	}
	for _, n := range t.steps {
		if n < t.checks {
			return fmt.Errorf("--steps %d: must be at least --checks, %d", n, t.checks)
		}
	}
	return t.onGPUs(fs, "ttl", t.run)
}

func (t *ttlBench) run() error {
	tokens, err := tokenFile(t.text, t.Dir, math.MaxInt)
	if err != nil {
		return err
	}
	var ours, theirs [][]reached // of each run
	for _, steps := range t.steps {
		all, err := t.ours(tokens, steps)
		if err != nil {
			return err
		}
		ours = append(ours, all)
		if all, err = t.theirs(tokens, steps); err != nil {
			return err
		}
		theirs = append(theirs, all)
		a, b := ours[len(ours)-1], theirs[len(theirs)-1]
		last, peer := a[len(a)-1], b[len(b)-1]
		fmt.Fprintf(os.Stderr, "%d steps: %.2f s to %.4f, %.0f tokens/s; PyTorch %.2f s to %.4f, %.0f tokens/s\n",
			steps, last.Seconds, last.Loss,
			float64(last.Tokens)/last.Seconds, peer.Seconds, peer.Loss, float64(peer.Tokens)/peer.Seconds)
	}
	t.rows(ours, theirs)
	return measure.WriteRows(filepath.Join(t.Out, "ttl.jsonl"), t.Rows)
}

// rows adds the results of the runs.
func (t *ttlBench) rows(ours, theirs [][]reached) {
	const peer = "PyTorch, compiled, of the same form and optimizer"
	of := fmt.Sprintf("%s by Muon, %d sequences of %d tokens", t.model, t.batch, ttlSeq)
	if len(t.more) > 0 {
		of += ", " + strings.Join(t.more, " ")
	}
	a, b := pace(ours[len(ours)-1]), pace(theirs[len(theirs)-1])
	fmt.Fprintf(os.Stderr, "%.0f tokens/s, PyTorch %.0f: %.3f\n", a, b, a/b)
	t.CompareRates(measure.Row{What: "tokens a second, " + of, Ranks: 1, Ours: a, Unit: "tok/s",
		Goal: 1 / ttlRates[t.model]}, peer, b)
	for _, loss := range t.losses {
		a, b := secondsTo(loss, ours), secondsTo(loss, theirs)
		fmt.Fprintf(os.Stderr, "to %g: %.2f s, PyTorch %.2f s\n", loss, a, b)
		if math.IsInf(a, 1) || math.IsInf(b, 1) {
			continue // no run has come so far
		}
		t.CompareTimes(measure.Row{What: fmt.Sprintf("seconds to a validation loss of %g, %s", loss, of), Ranks: 1,
			Ours: a, Unit: "s", Goal: ttlGoal}, peer, b)
	}
}

// pace returns how many tokens a second a run learns from, from its first validation to its last.
func pace(run []reached) float64 {
	first, last := run[0], run[len(run)-1]
	return float64(last.Tokens-first.Tokens) / (last.Seconds - first.Seconds)
}

// ours runs bin/train once. The seconds do not contain validation.
func (t *ttlBench) ours(tokens string, steps int) (all []reached, err error) {
	cmd := append(measure.MPIRun(1, t.Program("train"), "--model", t.model, "--tokens", "gpt2", "--data", tokens,
		"--cache", t.Dir, "--dtype", "bfloat16", "--seq", strconv.Itoa(ttlSeq), "--batch", strconv.Itoa(t.batch),
		"--global-batch", strconv.Itoa(t.batch), "--steps", strconv.Itoa(steps), "--val-every",
		strconv.Itoa(steps/t.checks), "--val-batches", strconv.Itoa(max(ttlValidation/t.batch, 1)), "--seed",
		strconv.FormatUint(t.seed, 10), "--sample", "0", "--json", "-", "--log-level", "warn", "--device", "cuda"),
		t.more...)
	lines, err := stepsOf(cmd, steps)
	if err != nil {
		return nil, err
	}
	seconds := 0.0
	for _, s := range lines {
		seconds += s.MS / 1e3
		if s.ValLoss != 0 {
			all = append(all, reached{seconds, s.ValLoss, s.Tokens})
		}
	}
	if len(all) < 2 {
		return nil, fmt.Errorf("train told %d val_loss", len(all))
	}
	return all, nil
}

func (t *ttlBench) theirs(tokens string, steps int) ([]reached, error) {
	out, err := measure.Output(t.python, filepath.Join(t.pythonDir, "torch_ttl.py"), "--model", t.model, "--tokens",
		tokens, "--steps", strconv.Itoa(steps), "--batch", strconv.Itoa(t.batch), "--seed",
		strconv.FormatUint(t.seed, 10), "--val-every", strconv.Itoa(steps/t.checks),
		"--val-sequences", strconv.Itoa(ttlValidation), "--mode", t.mode)
	if err != nil {
		return nil, err
	}
	all, err := measure.Lines[reached](out)
	if err == nil && len(all) < 2 {
		err = fmt.Errorf("torch_ttl.py told %d validations", len(all))
	}
	return all, err
}

// secondsTo returns after how many seconds the fastest run had a loss, in a line between two
// validations, or +Inf if none had it.
func secondsTo(loss float64, runs [][]reached) float64 {
	least := math.Inf(1)
	for _, run := range runs {
		for i, now := range run {
			if now.Loss > loss {
				continue
			}
			at := now.Seconds
			if i > 0 {
				before := run[i-1]
				at = before.Seconds + (now.Seconds-before.Seconds)*(before.Loss-loss)/(before.Loss-now.Loss)
			}
			least = min(least, at)
			break
		}
	}
	return least
}
