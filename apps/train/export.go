package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/run"
	"lockstep/spmd"
	"lockstep/spmd/telemetry"
)

// exporter is the command export.
type exporter struct {
	checkpoint, to string
	overwrite      func() bool
}

func openExport(fs *pflag.FlagSet) (func(context.Context, *spmd.World) error, func(int) error) {
	e := &exporter{}
	fs.StringVar(&e.checkpoint, "checkpoint", "", "`DIR` that the run has saved to; the newest checkpoint counts")
	fs.StringVar(&e.to, "to", "", "`FOLDER` to write: Hugging Face's GPT-2, config.json and model.safetensors, and "+
		"the files of the tokenizer where the tokens are GPT-2's")
	e.overwrite = func() bool { return fs.Lookup("overwrite").Value.String() == "true" }
	return e.run, func(ranks int) error {
		if err := onHost(fs); err != nil {
			return err
		}
		return e.check(ranks)
	}
}

func (e *exporter) check(ranks int) error {
	if ranks != 1 {
		return fmt.Errorf("export runs on one rank, not on %d: leave mpirun out", ranks)
	}
	if err := run.CheckFolder(e.checkpoint); err != nil {
		return err
	}
	if e.to == "" {
		return errors.New("--to is missing: the folder to write")
	}
	return e.about(e.checkTarget())
}

func (e *exporter) about(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("--to %s: %w", e.to, err)
}

// checkTarget refuses a folder that is not empty, unless --overwrite is given.
func (e *exporter) checkTarget() error {
	entries, err := os.ReadDir(e.to)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return errors.Unwrap(err)
	}
	for _, f := range entries {
		if !e.overwrite() && !strings.HasPrefix(f.Name(), layout.Leftover) {
			return fmt.Errorf("the folder holds %s, and may hold more: name another one, or replace files with "+
				"--overwrite", f.Name())
		}
	}
	return nil
}

func (e *exporter) run(_ context.Context, w *spmd.World) (err error) {
	p, err := run.OpenPast(w, e.checkpoint)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	_, _, n := layout.Of(p.Cfg)
	arena, err := spmd.AllocPinned[float32](w, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, arena.Free()) }()
	if err := p.LoadWeights(arena); err != nil {
		return err
	}
	told := telemetry.StartWork(w, "exporting", 4*int64(p.Cfg.ParamCount()), "bytes")
	defer told.Done()
	bytes, err := layout.WriteFolder(e.to, p.Cfg, p.Tok, arena.Host(), told, e.checkTarget)
	if err != nil {
		return e.about(err)
	}
	w.Log().Info().Int("steps", p.Step).Int("params", p.Cfg.ParamCount()).Int64("bytes", bytes).Str("to", e.to).
		Msg("exported")
	return nil
}
