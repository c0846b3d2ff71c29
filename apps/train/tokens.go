package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"lockstep/apps/train/run"
	"lockstep/apps/train/text"
	"lockstep/internal/runfiles"
	"lockstep/spmd"
	"lockstep/spmd/telemetry"
)

// tokenizing is the command tokens.
type tokenizing struct {
	run.Options // what is read: --data, --cache
	to          string
	overwrite   func() bool
}

func openTokens(fs *pflag.FlagSet) (func(context.Context, *spmd.World) error, func(int) error) {
	e := &tokenizing{}
	fs.StringArrayVar(&e.Data, "data", nil,
		"text to take: `FILE`, folder or glob; repeatable (default the Go toolchain's source)")
	fs.StringVar(&e.to, "to", "", "`FILE.bin` to write: GPT-2's tokens as llm.c keeps them, with <|endoftext|> "+
		"behind each text")
	fs.StringVar(&e.Cache, "cache", "", "`DIR` for token files (default lockstep/tokens in the user's cache folder)")
	e.overwrite = func() bool { return fs.Lookup("overwrite").Value.String() == "true" }
	return e.run, func(ranks int) error {
		if err := onHost(fs); err != nil {
			return err
		}
		return e.check(ranks)
	}
}

func (e *tokenizing) check(ranks int) (err error) {
	switch {
	case ranks != 1:
		return fmt.Errorf("tokens runs on one rank, not on %d: leave mpirun out", ranks)
	case e.to == "":
		return errors.New("--to is missing: the file to write")
	}
	if err := runfiles.Check(e.to, e.overwrite()); err != nil {
		return runfiles.About("--to", err, "--overwrite")
	}
	e.Tok = text.NewGPT2()
	e.Inputs, _, err = run.InputsOf(e.Data)
	return err
}

func (e *tokenizing) run(_ context.Context, w *spmd.World) (err error) {
	data, err := e.OpenTokens(w)
	if err != nil {
		return run.Usage(err)
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	f, err := runfiles.Create(e.to, e.overwrite())
	if err != nil {
		return runfiles.About("--to", err, "--overwrite")
	}
	told := telemetry.StartWork(w, "writing", 2*int64(data.Len()), "bytes")
	defer told.Done()
	if err := data.Guard(func() error { return text.WriteBin(f, data, told.Add) }); err != nil {
		return fmt.Errorf("--to %s: %w", e.to, errors.Join(err, f.Drop()))
	}
	if err := f.Commit(); err != nil {
		return fmt.Errorf("--to %s: %w", e.to, err)
	}
	w.Log().Info().Int("tokens", data.Len()).Str("to", e.to).Msg("written")
	return nil
}
