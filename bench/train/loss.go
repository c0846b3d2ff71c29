package train

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

	"lockstep/bench/harness"
)

// lossBench compares what a model learns with what it learns in PyTorch, from the same
// weights, sequences and rates.
type lossBench struct {
	harness.Harness
	model, text, python, pythonDir string
	batch, seq, steps              int
	seed                           uint64
	variants                       []string // flags of bin/train, of one more run each
}

const (
	lastLosses  = 100 // steps at the end whose difference counts
	lossGoal    = 0.01
	lossGoalFP8 = 0.02
)

// Loss is bench loss.
func Loss() error {
	l := lossBench{}
	fs := pflag.NewFlagSet("bench loss", pflag.ExitOnError)
	fs.StringVar(&l.model, "model", "gpt2", "shape of the model: gpt2, gpt2-medium, gpt2-large or gpt2-xl")
	fs.StringVar(&l.text, "text", "", "`FILE` to learn from, in GPT-2's tokens")
	fs.IntVar(&l.batch, "batch", 8, "sequences of a step")
	fs.IntVar(&l.seq, "seq", 1024, "tokens of a sequence")
	fs.IntVar(&l.steps, "steps", 1000, fmt.Sprintf("steps, of which the last %d count", lastLosses))
	fs.Uint64Var(&l.seed, "seed", 42, "seed of the order of sequences")
	fs.StringArrayVar(&l.variants, "train", nil, "flags of one more run of bin/train, such as --train=--fp8=all; repeatable")
	fs.StringVar(&l.python, "python", "python3", "the Python that has PyTorch and transformers")
	fs.StringVar(&l.pythonDir, "python-sources", "bench/peers", "`DIR` of the Python programs")
	fs.StringVar(&l.Out, "out", "bench/results/train", "`DIR` for the results")
	fs.StringVar(&l.Bin, "bin", "bin", "`DIR` of the built program train")
	fs.StringVar(&l.Commit, "commit", "", "what the program was built from (default what git says here)")
	if err := harness.Parse(fs); err != nil {
		return err
	}
	switch {
	case l.text == "":
		return errors.New("--text is missing: the file to learn from")
	case l.steps < lastLosses:
		return fmt.Errorf("--steps %d: must be at least %d", l.steps, lastLosses)
	}
	defer func() { os.RemoveAll(l.Dir) }()
	if err := l.Prepare(); err != nil {
		return err
	}
	if len(l.GPUs) == 0 {
		return fmt.Errorf("bench loss measures GPUs: %s", l.WhyNoGPU)
	}
	l.Set, l.Group = harness.GPUSet, "loss"
	l.Line = "bin/bench loss" + harness.Repeatable(fs)
	return l.run()
}

func (l *lossBench) run() error {
	text, err := os.ReadFile(l.text)
	if err != nil {
		return err
	}
	// A twentieth is for validation, which there is none of.
	ids, err := encode(text, (l.steps+1)*l.batch*l.seq*20/19+l.seq)
	if err != nil {
		return fmt.Errorf("%s: %w", l.text, err)
	}
	tokens, err := writeTokens(filepath.Join(l.Dir, "text.bin"), len(ids), func(i int) uint16 { return uint16(ids[i]) })
	if err != nil {
		return err
	}
	weights, rates := filepath.Join(l.Dir, "start"), filepath.Join(l.Dir, "rates")
	program := filepath.Join(l.pythonDir, "torch_loss.py")
	if _, err := harness.Output(l.python, program, "start", "--model", l.model, "--seq", strconv.Itoa(l.seq), "--to", weights); err != nil {
		return err
	}
	runs := append([]string{""}, l.variants...)
	ours := make([][]timedStep, len(runs))
	for i, flags := range runs {
		if ours[i], err = l.train(tokens, weights, strings.Fields(flags)); err != nil {
			return err
		}
	}
	var list strings.Builder
	for _, s := range ours[0] {
		fmt.Fprintln(&list, s.LR)
	}
	if err := os.WriteFile(rates, []byte(list.String()), 0o666); err != nil {
		return err
	}
	out, err := harness.Output(l.python, program, "follow", "--from", weights, "--tokens", tokens, "--rates", rates,
		"--batch", strconv.Itoa(l.batch), "--seq", strconv.Itoa(l.seq), "--seed", strconv.FormatUint(l.seed, 10))
	if err != nil {
		return err
	}
	theirs, err := harness.Lines[harness.TrainStep](out)
	if err != nil {
		return err
	}
	for i, flags := range runs {
		if err := l.rowOf(flags, ours[i], theirs); err != nil {
			return err
		}
	}
	return harness.WriteRows(filepath.Join(l.Out, "loss.jsonl"), l.Rows)
}

// encode returns at least most of GPT-2's tokens of a text, or all that there are. The text is
// cut behind lines, and its parts are encoded on all cores.
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
func (l *lossBench) train(tokens, weights string, flags []string) ([]timedStep, error) {
	cmd := append(harness.MPIRun(1, l.Program("train"), "--init-from", weights, "--data", tokens, "--cache", l.Dir, "--dtype", "bfloat16",
		"--seq", strconv.Itoa(l.seq), "--batch", strconv.Itoa(l.batch), "--global-batch", strconv.Itoa(l.batch), "--steps", strconv.Itoa(l.steps),
		"--lr", "6e-4", "--beta2", "0.95", "--seed", strconv.FormatUint(l.seed, 10),
		"--val-batches", "0", "--sample", "0", "--json", "-", "--log-level", "warn", "--device", "cuda"), flags...)
	return stepsOf(cmd, l.steps)
}

// rowOf adds the row of one variant, and tells of it.
func (l *lossBench) rowOf(flags string, ours []timedStep, theirs []harness.TrainStep) error {
	if len(theirs) != len(ours) {
		return fmt.Errorf("torch_loss.py printed %d losses, want %d", len(theirs), len(ours))
	}
	d := make([]float64, len(ours))
	for i := range d {
		d[i] = ours[i].Loss - theirs[i].Loss
	}
	last := d[len(d)-lastLosses:]
	difference, size, theirLast := 0.0, 0.0, 0.0
	for i, x := range last {
		difference += x / lastLosses
		size += math.Abs(x) / lastLosses
		theirLast += theirs[len(d)-lastLosses+i].Loss / lastLosses
	}
	what, goal := fmt.Sprintf("%s, %d sequences of %d tokens, bfloat16: mean difference of the last %d of %d losses from PyTorch's",
		l.model, l.batch, l.seq, lastLosses, l.steps), lossGoal
	if flags != "" {
		what += ", " + flags
	}
	if strings.Contains(flags, "--fp8") {
		goal = lossGoalFP8
	}
	l.Limit(harness.Row{What: what, Ranks: 1, Ours: math.Abs(difference), Unit: "nat", Goal: goal,
		Parts: map[string]float64{"mean_of_sizes": size, "first": math.Abs(d[0]), "pytorch": theirLast}})
	fmt.Fprintf(os.Stderr, "%s: %+.5f of %.4f; the mean of their sizes %.5f; at the first step %+.5f\n", what, difference, theirLast, size, d[0])
	return nil
}
