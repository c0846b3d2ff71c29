package run

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/text"
	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
)

// CheckFolder refuses an impossible --checkpoint, before anything makes a folder of that name.
func CheckFolder(dir string) error {
	if dir == "" {
		return errors.New("--checkpoint is missing: the folder that a run has saved to")
	}
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("--checkpoint %s: no such folder: a run of train with this flag makes it", dir)
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

// Past is a run that has left a checkpoint.
type Past struct {
	saved
	*checkpoint.Manager
	dir  string
	Step int
	Cfg  layout.Config
	Tok  text.Tokenizer
}

// OpenPast opens a folder of checkpoints to read the newest. Every rank calls it.
func OpenPast(w *spmd.World, dir string) (*Past, error) {
	c, err := checkpoint.Open(w, dir, checkpoint.Config{ReadOnly: true})
	if err != nil {
		return nil, spmd.Usage(fmt.Errorf("--checkpoint: %w", err))
	}
	p := &Past{Manager: c, dir: dir}
	if err := p.describe(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return p, nil
}

// describe reads the model's shape and tokens.
func (p *Past) describe() (err error) {
	p.Step, err = p.Load(&p.saved)
	if errors.Is(err, checkpoint.ErrNotFound) {
		return spmd.Usage(fmt.Errorf("--checkpoint %s: there is no checkpoint in it", p.dir))
	}
	if err != nil {
		return err
	}
	if p.Cfg, p.Tok, err = p.model(); err != nil {
		return spmd.Usage(fmt.Errorf("--checkpoint %s: not a checkpoint of train: %w", p.dir, err))
	}
	return nil
}

// model returns the shape and the tokens that the settings name.
func (s *saved) model() (cfg layout.Config, tok text.Tokenizer, err error) {
	for _, n := range []struct {
		setting string
		to      *int
	}{{"--layers", &cfg.Layers}, {"--heads", &cfg.Heads}, {"--channels", &cfg.Channels}, {"positions", &cfg.SeqMax}} {
		if *n.to, err = s.Number(n.setting); err != nil {
			return cfg, nil, err
		}
	}
	for _, kind := range []string{"bytes", "gpt2"} {
		if t, err := text.NewTokenizer(kind); err == nil && t.Name() == s.Settings["--tokens"] {
			tok = t
		}
	}
	if tok == nil {
		return cfg, nil, fmt.Errorf("its tokens are %q", s.Settings["--tokens"])
	}
	cfg.Vocab = tok.IDs()
	if cfg.Parts, err = layout.ParseParts(s.setting("parts")); err != nil {
		return cfg, nil, err
	}
	return cfg, tok, cfg.Validate()
}

// Number returns a setting that is a number above 0.
func (s *saved) Number(setting string) (int, error) {
	n, err := strconv.Atoi(s.Settings[setting])
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%s is %q", setting, s.Settings[setting])
	}
	return n, nil
}

// LoadWeights loads the weights into an arena. If a run has saved a newer checkpoint meanwhile, it
// loads that one, and Step is then its step. It blocks. Every rank calls it.
func (p *Past) LoadWeights(arena spmd.Buffer[float32]) error {
	params, _, _ := layout.Of(p.Cfg)
	var items []checkpoint.Item
	for _, q := range params {
		items = append(items, checkpoint.Replicated("model."+q.Name, arena.Slice(q.Off, q.Off+q.Len)))
	}
	if err := arena.SetAll(0); err != nil { // between the tensors
		return err
	}
	step, err := p.Load(nil, items...)
	if err == nil {
		p.Step = step
	}
	return err
}

// weightsOnDevice is everything that a checkpoint's model needs for its forward pass.
type weightsOnDevice struct {
	Arena spmd.Buffer[float32]
	Half  spmd.Buffer[spmd.BF16] // empty without bfloat16
}

// ToDevice loads the weights. It blocks. Every rank calls it.
func (p *Past) ToDevice(w *spmd.World, s *spmd.Stream, half bool) (d weightsOnDevice, err error) {
	_, _, n := layout.Of(p.Cfg)
	if d.Arena, err = spmd.Alloc[float32](w, n); err != nil {
		return d, err
	}
	if err = p.LoadWeights(d.Arena); err == nil && half {
		if d.Half, err = spmd.Alloc[spmd.BF16](w, n); err == nil {
			err = ops.RoundWeights(s, d.Half, d.Arena)
		}
	}
	if err != nil {
		return d, errors.Join(err, d.Free())
	}
	return d, nil
}

// Free frees the buffers.
func (d *weightsOnDevice) Free() error { return errors.Join(d.Arena.Free(), d.Half.Free()) }
