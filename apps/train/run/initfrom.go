package run

import (
	"fmt"
	"path/filepath"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/text"
)

// takeWeights gives the model the shape and the vocabulary of the weights in
// --init-from, and refuses flags that disagree. It returns the shape, and the name of
// the known model that is trained alike.
func (o *Options) takeWeights() (base layout.Config, alike string, err error) {
	if o.weights, err = layout.OpenFolder(o.initFrom); err != nil {
		return base, "", err
	}
	base = o.weights.Cfg
	if len(o.without) > 0 {
		return base, "", fmt.Errorf("--without: the model in --init-from %s has the parts that it has", o.initFrom)
	}
	if o.Given("model") {
		p := layout.Presets[o.model]
		if p.Parts != base.Parts {
			return base, "", fmt.Errorf("--model %s is made of %v, but --init-from %s of %v: leave --model out",
				o.model, p.Parts, o.initFrom, base.Parts)
		}
		if p.Layers != base.Layers || p.Heads != base.Heads || p.Channels != base.Channels {
			return base, "", fmt.Errorf("--model %s has %d layers, %d heads and %d channels, but --init-from %s %d, "+
				"%d and %d: leave --model out",
				o.model, p.Layers, p.Heads, p.Channels, o.initFrom, base.Layers, base.Heads, base.Channels)
		}
	}
	for _, d := range []struct {
		flag        string
		value, base int
	}{{"layers", o.layers, base.Layers}, {"heads", o.heads, base.Heads}, {"channels", o.channels, base.Channels}} {
		if o.Given(d.flag) && d.value != d.base {
			return base, "", fmt.Errorf("--%s %d, but the model in --init-from %s has %d",
				d.flag, d.value, o.initFrom, d.base)
		}
	}
	if o.Seq > base.SeqMax {
		return base, "", fmt.Errorf("--seq %d, but the model in --init-from %s has %d positions",
			o.Seq, o.initFrom, base.SeqMax)
	}
	if !o.Given("tokens") && base.Vocab == (text.Bytes{}).IDs() {
		o.tokens = "bytes"
	} else if !o.Given("tokens") {
		o.tokens = "gpt2"
	}
	tok, err := text.NewTokenizer(o.tokens)
	if err != nil {
		return base, "", err
	}
	if tok.IDs() != base.Vocab {
		return base, "", fmt.Errorf("--tokens %s are %d different ones, but the model in --init-from %s has %d",
			o.tokens, tok.IDs(), o.initFrom, base.Vocab)
	}
	if o.noTokens, err = text.CheckTokens(o.initFrom, tok); err != nil {
		return base, "", err
	}
	alike = nearest(base)
	if p := layout.Presets[alike]; p.Layers != base.Layers || p.Heads != base.Heads || p.Channels != base.Channels {
		o.model = filepath.Base(o.initFrom)
	} else {
		o.model = alike
	}
	return base, alike, nil
}

// nearest names the widest known model of the form of cfg that is not wider.
func nearest(cfg layout.Config) string {
	name := "tiny"
	if cfg.Parts != 0 {
		name = "modern-tiny"
	}
	for n, p := range layout.Presets {
		if (p.Parts == 0) == (cfg.Parts == 0) && p.Channels <= cfg.Channels &&
			p.Channels > layout.Presets[name].Channels {
			name = n
		}
	}
	return name
}
