package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
)

// A command is the first argument: what to do with a run's checkpoint. Without one the
// program trains.
type command struct {
	name, does string // one line, for --help
	open       func(fs *pflag.FlagSet) (run func(context.Context, *spmd.World) error, check func(ranks int) error)
}

var commands = []command{
	{"sample", "writes text with the model of a checkpoint", openSample},
	{"eval", "measures the loss of a checkpoint's model on text", openEval},
	{"export", "writes the weights of a checkpoint for other programs", openExport},
}

// runCommand runs what the command line begins with; false where that is no command.
func runCommand() bool {
	if len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-") {
		return false
	}
	for _, c := range commands {
		if c.name != os.Args[1] {
			continue
		}
		os.Args = append(os.Args[:1], os.Args[2:]...)
		// The folder may stand right behind the command.
		if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
			os.Args = append([]string{os.Args[0], "--checkpoint"}, os.Args[1:]...)
		}
		fs := pflag.NewFlagSet("train "+c.name, pflag.ContinueOnError)
		fs.Usage = func() { fmt.Fprintf(fs.Output(), "train %s [CHECKPOINT_DIR] %s\n", c.name, c.does) }
		run, check := c.open(fs)
		spmd.Main(fs, run, check)
		return true
	}
	return false
}

// showCommands tells of the commands.
func showCommands(fs *pflag.FlagSet) {
	fmt.Fprintln(fs.Output(), "train learns from text. Before the flags there may be a command; each has its own --help:")
	for _, c := range commands {
		fmt.Fprintf(fs.Output(), "  %-8s %s\n", c.name, c.does)
	}
}

// checkFolder refuses a --checkpoint that cannot be one, before a folder of that name is made.
func checkFolder(dir string) error {
	if dir == "" {
		return errors.New("--checkpoint is missing: the folder that a run has saved to")
	}
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("--checkpoint %s: no such folder", dir)
	case err != nil:
		return fmt.Errorf("--checkpoint %s: %w", dir, errors.Unwrap(err))
	case !st.IsDir():
		return fmt.Errorf("--checkpoint %s: not a folder", dir)
	}
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("--checkpoint %s: %w", dir, errors.Unwrap(err))
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("--checkpoint %s: %w", dir, errors.Unwrap(err))
	}
	if !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "step-") }) {
		return fmt.Errorf("--checkpoint %s: there is no checkpoint in it", dir)
	}
	return nil
}

// past is a run that a checkpoint is of.
type past struct {
	saved
	*checkpoint.Manager
	dir  string
	step int
	cfg  Config
	tok  tokenizer
}

// openPast opens a folder of checkpoints to read the newest. Every rank calls it.
func openPast(w *spmd.World, dir string) (*past, error) {
	c, err := checkpoint.Open(w, dir, checkpoint.Config{ReadOnly: true})
	if err != nil {
		return nil, spmd.Usage(fmt.Errorf("--checkpoint: %w", err))
	}
	p := &past{Manager: c, dir: dir}
	if err := p.describe(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return p, nil
}

// describe reads what kind of model it is.
func (p *past) describe() (err error) {
	p.step, err = p.Load(&p.saved)
	if errors.Is(err, checkpoint.ErrNotFound) {
		return spmd.Usage(fmt.Errorf("--checkpoint %s: there is no checkpoint in it", p.dir))
	}
	if err != nil {
		return err
	}
	if p.cfg, p.tok, err = p.model(); err != nil {
		return spmd.Usage(fmt.Errorf("--checkpoint %s: not a checkpoint of train: %w", p.dir, err))
	}
	return nil
}

// model returns the shape that the settings tell of, and the tokens.
func (s *saved) model() (cfg Config, tok tokenizer, err error) {
	for _, n := range []struct {
		setting string
		to      *int
	}{{"--layers", &cfg.Layers}, {"--heads", &cfg.Heads}, {"--channels", &cfg.Channels}, {"positions", &cfg.SeqMax}} {
		if *n.to, err = s.number(n.setting); err != nil {
			return cfg, nil, err
		}
	}
	for _, kind := range []string{"bytes", "gpt2"} {
		if t, err := newTokenizer(kind); err == nil && t.name() == s.Settings["--tokens"] {
			tok = t
		}
	}
	if tok == nil {
		return cfg, nil, fmt.Errorf("its tokens are %q", s.Settings["--tokens"])
	}
	cfg.Vocab = tok.ids()
	return cfg, tok, cfg.Validate()
}

// number returns a setting that is a number above 0.
func (s *saved) number(setting string) (int, error) {
	n, err := strconv.Atoi(s.Settings[setting])
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%s is %q", setting, s.Settings[setting])
	}
	return n, nil
}

// loadWeights loads the weights into an arena. It blocks. Every rank calls it.
func (p *past) loadWeights(arena spmd.Buffer[float32]) error {
	params, _, _ := layout(p.cfg)
	var items []checkpoint.Item
	for _, q := range params {
		items = append(items, checkpoint.Replicated("model."+q.Name, arena.Slice(q.Off, q.Off+q.Len)))
	}
	if err := arena.SetAll(0); err != nil { // between the tensors
		return err
	}
	_, err := p.Load(nil, items...)
	return err
}
