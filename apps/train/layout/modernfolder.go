package layout

import (
	"errors"
	"fmt"
)

// A folder of a modern model has the same files as one of GPT-2. Its config.json says
// everything that the model computes, beside the names and shapes of the tensors. Matrices
// are stored (outputs, inputs).

// modernType is model_type in config.json.
const modernType = "lockstep_modern"

// modernConfig has the fields of config.json beside the sizes. Parts lists the model's parts.
type modernConfig struct {
	Parts          string  `json:"parts"`
	NormEpsilon    float64 `json:"rms_norm_epsilon"`
	AttentionScale float64 `json:"attention_scale"`
	RotaryPairs    float64 `json:"rotary_pairs"` // part of a head's pairs of numbers that turn; the others stay
	RotarySlowest  float64 `json:"rotary_slowest"`
	Activation     string  `json:"activation_function"`
	ValueTables    []int   `json:"value_tables,omitempty"` // of each layer, -1 is none
	SkipsFrom      []int   `json:"skips_from,omitempty"`   // of each layer, -1 is none
	// for each layer, how many tokens are seen before the own 128; 0 is no window
	Windows []int `json:"windows,omitempty"`
}

// modernOf returns the modernConfig of a model.
func modernOf(cfg Config) modernConfig {
	c := modernConfig{Parts: cfg.Parts.String(), NormEpsilon: 1.1920929e-7, AttentionScale: 0.12, RotaryPairs: 0.5,
		RotarySlowest: 1. / 1024, Activation: "relu2"}
	for l := range cfg.Layers {
		if cfg.Has(Values) {
			c.ValueTables = append(c.ValueTables, cfg.ValueTable(l))
		}
		if cfg.Has(Skips) {
			c.SkipsFrom = append(c.SkipsFrom, cfg.SkipFrom(l))
		}
		if cfg.Has(Windows) {
			c.Windows = append(c.Windows, cfg.Window(l))
		}
	}
	return c
}

// modernShape returns the shape of a modern model, or why this program cannot compute it.
func (c *hfConfig) modernShape() (Config, error) {
	parts, err := ParseParts(c.Parts)
	if err != nil {
		return Config{}, err
	}
	if parts == 0 {
		return Config{}, errors.New("parts are gpt2's")
	}
	cfg := Config{Layers: c.Layers, Heads: c.Heads, Channels: c.Channels, SeqMax: c.Positions, Vocab: c.Vocab,
		Parts: parts}
	if err := cfg.Validate(); err != nil {
		return cfg, err
	}
	if cfg.Layers > 1<<16 {
		return cfg, fmt.Errorf("n_layer is %d", cfg.Layers)
	}
	if has, want := fmt.Sprint(c.modernConfig), fmt.Sprint(modernOf(cfg)); has != want {
		return cfg, fmt.Errorf("the model is another one: %s, want %s", has, want)
	}
	return cfg, nil
}
