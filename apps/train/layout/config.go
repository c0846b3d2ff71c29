package layout

import (
	"fmt"
	"strings"
)

// Config is the shape of a decoder.
type Config struct {
	Layers   int // transformer blocks
	Heads    int // attention heads of a block; divides Channels
	Channels int // width of the residual stream
	SeqMax   int // longest sequence, in tokens
	Vocab    int // number of different tokens

	Parts Parts // what makes it another decoder than GPT-2

	// Nothing that lasts depends on these.
	FP8   FP8Level // which products of bfloat16 activations are of 8-bit floats
	Shard Sharding // which part of the training state the ranks share

	Recompute Recomputation // which activations are not kept
	Stage     Staging       // which layers this rank has
	Tensor    Tensor        // which part of each
	Times     Times         // by which stages are balanced
}

// Presets are the shapes with a name. Vocab comes with the tokens.
var Presets = map[string]Config{
	"tiny":        {Layers: 4, Heads: 4, Channels: 128, SeqMax: 128},
	"gpt2":        {Layers: 12, Heads: 12, Channels: 768, SeqMax: 1024},
	"gpt2-medium": {Layers: 24, Heads: 16, Channels: 1024, SeqMax: 1024},
	"gpt2-large":  {Layers: 36, Heads: 20, Channels: 1280, SeqMax: 1024},
	"gpt2-xl":     {Layers: 48, Heads: 25, Channels: 1600, SeqMax: 1024},

	"modern-tiny":   {Layers: 4, Heads: 4, Channels: 128, SeqMax: 128, Parts: full},
	"modern":        {Layers: 12, Heads: 12, Channels: 768, SeqMax: 1024, Parts: full},
	"modern-medium": {Layers: 24, Heads: 16, Channels: 1024, SeqMax: 1024, Parts: full},
}

// ModelNames are the names of Presets, in the order of size.
var ModelNames = []string{"tiny", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "modern-tiny", "modern",
	"modern-medium"}

// Preset returns the shape with the given name, without a vocabulary.
func Preset(name string) (Config, error) {
	if c, ok := Presets[name]; ok {
		return c, nil
	}
	return Config{}, fmt.Errorf("model %q: known are %s", name, strings.Join(ModelNames, ", "))
}

// Validate says what is wrong with c, or returns nil.
func (c Config) Validate() error {
	for _, d := range []struct {
		name string
		n    int
	}{
		{"layers", c.Layers}, {"heads", c.Heads}, {"channels", c.Channels}, {"sequence length", c.SeqMax},
		{"vocabulary", c.Vocab},
	} {
		if d.n <= 0 {
			return fmt.Errorf("model: %s is %d, must be above 0", d.name, d.n)
		}
		if d.n > 1<<24 {
			return fmt.Errorf("model: %s is %d, must be at most %d", d.name, d.n, 1<<24)
		}
	}
	if c.Channels%c.Heads != 0 {
		return fmt.Errorf("model: %d channels do not divide into %d heads", c.Channels, c.Heads)
	}
	if err := c.CheckTensor(); err != nil {
		return err
	}
	if err := c.checkParts(); err != nil {
		return err
	}
	if c.FP8 != FP8Off && c.Channels%16 != 0 {
		return fmt.Errorf("model: %d channels, which products of 8-bit floats take in multiples of 16", c.Channels)
	}
	return c.CheckParts8()
}

// PaddedVocab returns Vocab rounded up to a multiple of 128: the rows of the token embedding. The
// largest products then have even sizes. The rows beyond Vocab stay zero.
func (c Config) PaddedVocab() int { return (c.Vocab + 127) / 128 * 128 }

// ParamCount returns the number of trained parameters, without padding.
func (c Config) ParamCount() (n int) {
	params, _ := c.Whole().tensors()
	for _, p := range params {
		if n += p.Len; p.InVocab() {
			n -= (c.PaddedVocab() - c.Vocab) * c.Channels
		}
	}
	return n
}

// FlopsPerToken returns the operations of training on one token of a sequence of t: 6 for
// each weight of a product, and causal attention counted in full, as PaLM's and nanoGPT's MFU
// do (12·L·t·C).
func (c Config) FlopsPerToken(t int) float64 {
	C, L := float64(c.Channels), float64(c.Layers)
	return 6*(12*L*C*C+float64(c.PaddedVocab())*C) + 12*L*float64(t)*C
}

// HeadRows is how many rows the head works on at a time, so that the logits of all rows never exist
// together. Products of so many rows are as fast as products of more.
const HeadRows = 8192

// NormEpsilon is the number that kernels add to a variance.
const NormEpsilon = 1e-5
