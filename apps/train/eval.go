package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/spf13/pflag"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/run"
	"lockstep/apps/train/text"
	"lockstep/apps/train/trainer"
	"lockstep/internal/cli"
	"lockstep/spmd"
	"lockstep/spmd/telemetry"
)

// evaluator is the command eval.
type evaluator struct {
	run.Options // what is read, and how: --data, --cache, --batch, --dtype
	part        string
	most        int
}

// evalRecord is a line of --json.
type evalRecord struct {
	Summary     bool    `json:"summary"`
	App         string  `json:"app"`
	DType       string  `json:"dtype"`
	Steps       int     `json:"steps"`
	Part        string  `json:"part"`
	Sequences   int     `json:"sequences"`
	Tokens      int     `json:"tokens"`
	Loss        float64 `json:"loss"`
	Perplexity  float64 `json:"perplexity"`
	Ranks       int     `json:"ranks"`
	Nodes       int     `json:"nodes"`
	Device      string  `json:"device"`
	Collectives string  `json:"collectives"`
}

func openEval(fs *pflag.FlagSet) (func(context.Context, *spmd.World) error, func(int) error) {
	e := &evaluator{Options: run.Options{Batch: 4, Given: fs.Changed}}
	fs.StringVar(&e.Checkpoint, "checkpoint", "", "`DIR` that the run has saved to; the newest checkpoint counts")
	fs.StringArrayVar(&e.Data, "data", nil,
		"text to measure on: `FILE`, folder or glob, or token files of llm.c (.bin); repeatable (default the Go "+
			"toolchain's source)")
	fs.StringVar(&e.part, "part", "all",
		"which of its sequences: all, or those that a run on it learns from (train) or validates on (val)")
	fs.IntVar(&e.most, "sequences", 0, "sequences to take, spread over the part; 0 takes all")
	fs.IntVar(&e.Batch, "batch", e.Batch, "sequences a rank takes at a time")
	fs.StringVar(&e.DType, "dtype", "",
		"type of the activations: float32 or bfloat16 (default bfloat16 on a GPU, float32 on the host)")
	fs.StringVar(&e.Cache, "cache", "", "`DIR` for token files (default lockstep/tokens in the user's cache folder)")
	cli.Choices(fs, "part", "all", "train", "val")
	cli.Choices(fs, "dtype", "float32", "bfloat16")
	return func(ctx context.Context, w *spmd.World) error {
		own := *e // ranks may share the process
		return own.run(ctx, w)
	}, func(ranks int) error { return cmp.Or(cli.Known(fs), e.check(ranks)) }
}

func (e *evaluator) check(ranks int) (err error) {
	switch {
	case e.Batch < 1:
		return fmt.Errorf("--batch %d: must be at least 1", e.Batch)
	case e.most < 0:
		return fmt.Errorf("--sequences %d: must be at least 0", e.most)
	}
	if err := run.CheckFolder(e.Checkpoint); err != nil {
		return err
	}
	e.Inputs, _, err = run.InputsOf(e.Data)
	return err
}

func (e *evaluator) run(ctx context.Context, w *spmd.World) (err error) {
	p, err := run.OpenPast(w, e.Checkpoint)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	e.Tok, e.Cfg, e.DType = p.Tok, p.Cfg, run.DefaultDType(w, e.DType)
	if e.Seq, err = p.Number("--seq"); err == nil {
		e.GlobalBatch, err = p.Number("--global-batch")
	}
	if err != nil {
		return spmd.Usage(fmt.Errorf("--checkpoint %s: not a checkpoint of train: %w", e.Checkpoint, err))
	}
	if text.IsBin(e.Inputs[0]) && p.Tok.Name() != text.GPT2Name {
		return spmd.Usage(fmt.Errorf("--data %s: the tokens of GPT-2, and the model's are %s",
			e.Inputs[0].Path, p.Tok.Name()))
	}
	f, err := e.OpenTokens(w)
	if err != nil {
		return run.Usage(err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	where, err := e.sequences(f)
	if err != nil {
		return run.Usage(err)
	}
	w.Log().Info().Int("steps", p.Step).Int("params", p.Cfg.ParamCount()).Str("dtype", e.DType).Str("part", e.part).
		Int("sequences", where.n).Int("seq", e.Seq).Msg("model")
	loss, err := e.measure(ctx, w, p, where)
	if err != nil {
		return err
	}
	w.Log().Info().Str("loss", fmt.Sprintf("%.4f", loss)).Str("perplexity", fmt.Sprintf("%.4g", math.Exp(loss))).
		Msg("done")
	if trainer.Bad(loss, math.Exp(loss)) { // JSON has no such numbers
		return errors.New("the loss is " + strconv.FormatFloat(loss, 'g', -1, 64))
	}
	return w.Emit(evalRecord{true, "eval", e.DType, p.Step, e.part, where.n, where.n * e.Seq, loss, math.Exp(loss),
		w.Size(), w.Nodes(), w.Device(), w.Collectives()})
}

// chosen is n sequences, spread evenly over a part of the data.
type chosen struct {
	data  *trainer.Dataset
	at    int // where the part begins, in tokens
	of, n int
}

// start returns where sequence i begins.
func (c chosen) start(i int) int { return c.at + i*c.of/c.n*c.data.Seq }

// sequences chooses among the sequences of the data.
func (e *evaluator) sequences(f text.Data) (c chosen, err error) {
	part := trainer.Span{At: 0, Len: f.Len()}
	c.data = &trainer.Dataset{File: f, Seq: e.Seq}
	if e.part != "all" {
		if c.data, err = trainer.NewDataset(f, e.Seq, e.GlobalBatch, 0); err != nil {
			return c, err
		}
		if part = c.data.Train; e.part == "val" {
			part = c.data.Val
		}
	}
	c.at, c.of = part.At, (part.Len-1)/e.Seq
	if c.of == 0 {
		return c, text.BadInput("--data: %d tokens are too few for a sequence of %d and the token after it",
			part.Len, e.Seq)
	}
	if c.n = c.of; e.most > 0 {
		c.n = min(e.most, c.of)
	}
	return c, nil
}

// measure returns the mean loss of the sequences. It blocks. Every rank calls it.
func (e *evaluator) measure(ctx context.Context, w *spmd.World, p *run.Past, c chosen) (loss float64, err error) {
	s, err := w.NewStream("eval")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	part := spmd.ShardOf(c.n, w.Rank(), w.Size())
	batch := min(e.Batch, spmd.ShardOf(c.n, 0, w.Size()).Len)
	state, model, err := gpt.Open(w, e.DType == "bfloat16", e.Cfg, batch, e.Seq)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	if err := p.LoadWeights(state.Weights); err != nil {
		return 0, err
	}
	if err := state.Refresh(s); err != nil {
		return 0, err
	}
	l, err := trainer.NewLoader(w, c.data, batch, e.Cfg.Vocab)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	f := l.Feed(func(yield func([]int) bool) {
		for lo := 0; lo < part.Len; lo += batch {
			var starts []int
			for i := lo; i < min(lo+batch, part.Len); i++ {
				starts = append(starts, c.start(part.Off+i))
			}
			if !yield(starts) {
				return
			}
		}
	})
	defer f.Stop()
	bar := telemetry.StartWork(w, "evaluating", int64(part.Len), "sequences")
	defer bar.Done()
	if err := spmd.Fill(s, state.Loss, 0); err != nil { // a rank may have no part
		return 0, err
	}
	scale := float32(1 / (float64(c.n) * float64(e.Seq)))
	for lo := 0; lo < part.Len; lo += batch {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		b, err := f.Next(s)
		if err != nil {
			return 0, err
		}
		if err := model.Evaluate(s, b, scale); err != nil {
			return 0, err
		}
		bar.Add(int64(b.B))
	}
	if err := spmd.AllReduce(w.Comm().On(s), state.Loss, state.Loss, spmd.Sum); err != nil {
		return 0, err
	}
	if err := s.Synchronize(); err != nil {
		return 0, err
	}
	return state.Loss.At(0), nil
}
