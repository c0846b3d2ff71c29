package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"lockstep/apps/train/text"
	"lockstep/apps/train/trainer"
	"lockstep/internal/cli"
	"lockstep/internal/readable"
	"lockstep/spmd"
	"lockstep/spmd/telemetry"
)

// Run runs the program on a rank. Each rank has its own options, since ranks may share the process.
func (o *Options) Run(ctx context.Context, w *spmd.World) error {
	own := *o
	return own.run(ctx, w)
}

func (o *Options) run(ctx context.Context, w *spmd.World) (err error) {
	var stop <-chan struct{} // without checkpoints a signal ends the job at once
	if o.Checkpoint != "" {
		stop = spmd.Preempted(ctx)
	}
	if err := o.settle(w); err != nil {
		return err
	}
	if o.noTokens != "" {
		w.Log().Warn().Msgf("--init-from %s: there is no %s: nothing says whether the model has learned the tokens "+
			"of --tokens %s", o.initFrom, o.noTokens, o.tokens)
	}
	if err := o.warnApart(w); err != nil {
		return err
	}
	f, err := o.OpenTokens(w)
	if err != nil {
		return Usage(err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	c, err := o.openSaver(w, f.Key())
	if err != nil {
		return err
	}
	if c != nil {
		defer func() { err = errors.Join(err, c.Close()) }()
	}
	learned := f.Len()
	if v, ok := f.(text.WithVal); ok {
		learned = v.Train.Len()
	}
	if err := o.fit(w, learned); err != nil {
		return err
	}
	data, err := trainer.NewDataset(f, o.Seq, o.GlobalBatch, w.Seed())
	if err != nil {
		return Usage(err) // the same on every rank: they have the same data
	}
	data.Growth = trainer.Growth{First: o.growBatch, Last: o.GlobalBatch, Steps: o.steps}
	t, err := trainer.New(w, w.Comm(), o.trainConfig(), data)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	if err := c.start(t); err != nil {
		return Usage(err)
	}
	folder, err := telemetry.OpenFolder(w, o.folder())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	early, err := o.train(ctx, w, t, c, stop)
	if early {
		o.early.Store(true)
	}
	if err != nil || early {
		return err
	}
	if o.sample == 0 {
		return nil
	}
	together, err := t.ToGenerate()
	if err != nil || w.Rank() != 0 && !together {
		return err
	}
	text, err := t.Generate(ctx, o.Tok, o.prompt, o.sample, o.temperature, w.Seed())
	if err != nil || w.Rank() != 0 {
		return err
	}
	out := io.Writer(cli.Stdout)
	if o.json() == "-" { // standard output is for the measurements
		out = os.Stderr
	}
	w.Log().Info().Int("tokens", o.sample).Msg("what the model writes:")
	_, err = fmt.Fprintf(out, "\n%s\n", readable.Text(string(text)))
	return err
}

// Usage marks an error of bad input for spmd.Main.
func Usage(err error) error {
	if errors.As(err, new(text.InputError)) {
		return spmd.Usage(err)
	}
	return err
}

// OpenTokens reads the data. The ranks of a node read it together. It checks that
// all nodes have read the same.
func (o *Options) OpenTokens(w *spmd.World) (text.Data, error) {
	f, err := o.readTokens(w, o.Inputs)
	if err == nil && len(o.valInputs) > 0 {
		v, verr := o.readTokens(w, o.valInputs)
		if verr != nil {
			return nil, errors.Join(text.AboutVal(verr), f.Close())
		}
		f = text.WithVal{Train: f, Val: v}
	}
	all := text.Among(w, w.Comm())
	var key []byte
	if err == nil {
		key = f.Key()
	}
	keys, err := all.Gather(key, err)
	if err != nil {
		return nil, err
	}
	for r, k := range keys {
		if string(k) != string(keys[0]) {
			return nil, errors.Join(text.BadInput(
				"--data: rank 0 and rank %d, on another node, read different contents", r), f.Close())
		}
	}
	return f, nil
}

// readTokens reads inputs that are texts, or token files of llm.c.
func (o *Options) readTokens(w *spmd.World, inputs []text.Place) (text.Data, error) {
	g, d := text.Among(w, w.NodeComm()), text.Options{
		Inputs: inputs, Tokens: o.Tok, Cache: o.Cache, Threads: w.Threads(), Log: *w.Log(),
		Progress: func(what string, total int64) *telemetry.Work {
			return telemetry.StartWork(w, what, total, "bytes")
		},
	}
	if text.IsBin(inputs[0]) {
		return text.OpenBins(g, d)
	}
	f, err := text.Open(g, d)
	if err != nil {
		return nil, err // not a nil file in an interface
	}
	return f, nil
}
