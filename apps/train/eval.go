package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/spf13/pflag"

	"lockstep/spmd"
)

// evaluator is the command eval.
type evaluator struct {
	options // what is read, and how: --data, --cache, --batch, --dtype
	part    string
	most    int
}

// evalRecord is what eval measures.
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
	e := &evaluator{options: options{batch: 4, given: fs.Changed}}
	fs.StringVar(&e.checkpoint, "checkpoint", "", "`DIR` that the run has saved to; the newest checkpoint counts")
	fs.StringArrayVar(&e.data, "data", nil, "text to measure on: `FILE`, folder or glob, or token files of llm.c (.bin); repeatable (default the Go toolchain's source)")
	fs.StringVar(&e.part, "part", "all", "which of its sequences: all, or those that a run on it learns from (train) or validates on (val)")
	fs.IntVar(&e.most, "sequences", 0, "sequences to take, spread over the part; 0 takes all")
	fs.IntVar(&e.batch, "batch", e.batch, "sequences a rank takes at a time")
	fs.StringVar(&e.dtype, "dtype", "", "type of the activations: float32 or bfloat16 (default bfloat16 on a GPU, float32 on the host)")
	fs.StringVar(&e.cache, "cache", "", "`DIR` for token files (default lockstep/tokens in the user's cache folder)")
	return e.run, e.check
}

func (e *evaluator) check(ranks int) (err error) {
	switch {
	case e.batch < 1:
		return fmt.Errorf("--batch %d: must be at least 1", e.batch)
	case e.most < 0:
		return fmt.Errorf("--sequences %d: must be at least 0", e.most)
	case e.part != "all" && e.part != "train" && e.part != "val":
		return fmt.Errorf("--part %s: unknown, want all, train or val", e.part)
	}
	if err := checkDType(e.given, e.dtype); err != nil {
		return err
	}
	if err := checkFolder(e.checkpoint); err != nil {
		return err
	}
	e.inputs, _, err = inputsOf(e.data)
	return err
}

func (e *evaluator) run(ctx context.Context, w *spmd.World) (err error) {
	p, err := openPast(w, e.checkpoint)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	e.tok, e.cfg, e.dtype = p.tok, p.cfg, defaultDType(w, e.dtype)
	if e.seq, err = p.number("--seq"); err == nil {
		e.globalBatch, err = p.number("--global-batch")
	}
	if err != nil {
		return spmd.Usage(fmt.Errorf("--checkpoint %s: not a checkpoint of train: %w", e.checkpoint, err))
	}
	if isBin(e.inputs[0]) && p.tok.name() != gpt2Name {
		return spmd.Usage(fmt.Errorf("--data %s: the tokens of GPT-2, and the model's are %s", e.inputs[0].Path, p.tok.name()))
	}
	f, err := e.openTokens(w)
	if err != nil {
		return usage(err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	where, err := e.sequences(f)
	if err != nil {
		return usage(err)
	}
	w.Log().Info().Int("steps", p.step).Int("params", p.cfg.ParamCount()).Str("dtype", e.dtype).Str("part", e.part).
		Int("sequences", where.n).Int("seq", e.seq).Msg("model")
	loss, err := e.measure(ctx, w, p, where)
	if err != nil {
		return err
	}
	w.Log().Info().Str("loss", fmt.Sprintf("%.4f", loss)).Str("perplexity", fmt.Sprintf("%.4g", math.Exp(loss))).Msg("done")
	if bad(loss, math.Exp(loss)) { // JSON has no such numbers
		return errors.New("the loss is " + strconv.FormatFloat(loss, 'g', -1, 64))
	}
	return w.Emit(evalRecord{true, "eval", e.dtype, p.step, e.part, where.n, where.n * e.seq, loss, math.Exp(loss), w.Size(), w.Nodes(),
		w.Device(), w.Collectives()})
}

// chosen is n sequences, spread over all of a part.
type chosen struct {
	data  *dataset
	at    int // where the part begins, in tokens
	of, n int
}

// start is where sequence i begins.
func (c chosen) start(i int) int { return c.at + i*c.of/c.n*c.data.seq }

// sequences chooses among the sequences of the data.
func (e *evaluator) sequences(f tokenData) (c chosen, err error) {
	part := span{0, f.len()}
	c.data = &dataset{file: f, seq: e.seq}
	if e.part != "all" {
		if c.data, err = newDataset(f, e.seq, e.globalBatch, 0); err != nil {
			return c, err
		}
		if part = c.data.train; e.part == "val" {
			part = c.data.val
		}
	}
	c.at, c.of = part.at, (part.len-1)/e.seq
	if c.of == 0 {
		return c, badInput("--data: %d tokens are too few for a sequence of %d and the token after it", part.len, e.seq)
	}
	if c.n = c.of; e.most > 0 {
		c.n = min(e.most, c.of)
	}
	return c, nil
}

// measure returns the mean loss of the sequences. It blocks. Every rank calls it.
func (e *evaluator) measure(ctx context.Context, w *spmd.World, p *past, c chosen) (loss float64, err error) {
	s, err := w.NewStream("eval")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	part := spmd.ShardOf(c.n, w.Rank(), w.Size())
	batch := min(e.batch, spmd.ShardOf(c.n, 0, w.Size()).Len)
	state, model, err := newModel(w, e.dtype == "bfloat16", e.cfg, batch, e.seq)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	if err := p.loadWeights(state.Weights); err != nil {
		return 0, err
	}
	if err := state.Refresh(s); err != nil {
		return 0, err
	}
	l, err := newLoader(w, c.data, batch, e.cfg.Vocab)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	f := l.feed(func(yield func([]int) bool) {
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
	defer f.stop()
	bar := newMeter(w, "evaluating", int64(part.Len), false)
	defer bar.finish()
	if err := spmd.Fill(s, state.Loss, 0); err != nil { // a rank may have no part
		return 0, err
	}
	scale := float32(1 / (float64(c.n) * float64(e.seq)))
	for lo := 0; lo < part.Len; lo += batch {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		b, err := f.next(s)
		if err != nil {
			return 0, err
		}
		if err := model.Evaluate(s, b, scale, false); err != nil {
			return 0, err
		}
		bar.add(int64(b.B))
	}
	if err := spmd.AllReduce(w.Comm().On(s), state.Loss, state.Loss, spmd.Sum); err != nil {
		return 0, err
	}
	if err := s.Synchronize(); err != nil {
		return 0, err
	}
	return state.Loss.At(0), nil
}
