package main

import (
	"fmt"
	"path/filepath"
)

// takeWeights makes the shape of the model that of the weights in --init-from, and the
// tokens those with such a vocabulary, and refuses flags that say otherwise. It returns
// the shape, and the name of the model known by name that is trained alike.
func (o *options) takeWeights() (base Config, alike string, err error) {
	if o.weights, err = openWeights(o.initFrom); err != nil {
		return base, "", err
	}
	base = o.weights.cfg
	if o.given("model") {
		p := presets[o.model]
		if p.Layers != base.Layers || p.Heads != base.Heads || p.Channels != base.Channels {
			return base, "", fmt.Errorf("--model %s has %d layers, %d heads and %d channels, but --init-from %s %d, %d and %d: leave --model out",
				o.model, p.Layers, p.Heads, p.Channels, o.initFrom, base.Layers, base.Heads, base.Channels)
		}
	}
	for _, d := range []struct {
		flag        string
		value, base int
	}{{"layers", o.layers, base.Layers}, {"heads", o.heads, base.Heads}, {"channels", o.channels, base.Channels}} {
		if o.given(d.flag) && d.value != d.base {
			return base, "", fmt.Errorf("--%s %d, but the model in --init-from %s has %d", d.flag, d.value, o.initFrom, d.base)
		}
	}
	if o.seq > base.SeqMax {
		return base, "", fmt.Errorf("--seq %d, but the model in --init-from %s has %d positions", o.seq, o.initFrom, base.SeqMax)
	}
	if !o.given("tokens") && base.Vocab == (byteTokens{}).ids() {
		o.tokens = "bytes"
	} else if !o.given("tokens") {
		o.tokens = "gpt2"
	}
	tok, err := newTokenizer(o.tokens)
	if err != nil {
		return base, "", err
	}
	if tok.ids() != base.Vocab {
		return base, "", fmt.Errorf("--tokens %s are %d different ones, but the model in --init-from %s has %d", o.tokens, tok.ids(), o.initFrom, base.Vocab)
	}
	alike = nearest(base)
	if p := presets[alike]; p.Layers != base.Layers || p.Heads != base.Heads || p.Channels != base.Channels {
		o.model = filepath.Base(o.initFrom)
	} else {
		o.model = alike
	}
	return base, alike, nil
}

// nearest names the widest known model that is not wider than cfg.
func nearest(cfg Config) string {
	name := "tiny"
	for n, p := range presets {
		if p.Channels <= cfg.Channels && p.Channels > presets[name].Channels {
			name = n
		}
	}
	return name
}
