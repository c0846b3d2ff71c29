package layout

import (
	"fmt"
)

// Products of 8-bit floats (E4M3, but the gradient of the logits E5M2): those forward and for the
// gradients of inputs, while the gradients of weights stay bfloat16. Each operand is cast where it
// comes to be, by a power of two that the largest value of the step before brings below 256: what
// grows by less than 1.75 from step to step fits. Weights are cast at the end of a step, by their
// own largest value. The scales lie in device memory, so that graphs replay.

// FP8Level says which products are of 8-bit floats.
type FP8Level int

const (
	FP8Off  FP8Level = iota
	FP8Head          // the head's
	FP8All           // those of the layers, too
)

var fp8Names = [...]string{"off", "head", "all"}

func (l FP8Level) String() string { return fp8Names[l] }

// ParseFP8 is the level of a name.
func ParseFP8(name string) (FP8Level, error) {
	for l, n := range fp8Names {
		if n == name {
			return FP8Level(l), nil
		}
	}
	return 0, fmt.Errorf("--fp8 %s: unknown, want off, head or all", name)
}

// The sites are the tensors that are cast: the final LayerNorm's output and the logits'
// gradient, then 8 of each layer: the inputs and the gradients of the outputs of qkv,
// proj, fc and Proj2.
const (
	HeadSites  = 2
	LayerSites = 8
)

// CheckParts8 refuses parts of layers that products of 8-bit floats do not take.
func (cfg Config) CheckParts8() error {
	if cfg.FP8 == FP8All && cfg.Tensor.Parts() > 1 && cfg.OwnChannels()%16 != 0 {
		return fmt.Errorf("--tp %d: %d channels a rank, which products of 8-bit floats take in multiples of 16: "+
			"take --fp8 head", cfg.Tensor.Ranks, cfg.OwnChannels())
	}
	return nil
}

// HeadName is the parameter that the head multiplies by.
func (cfg Config) HeadName() string {
	if cfg.Parts != 0 {
		return "head.weight"
	}
	return "wte.weight"
}

// FP8Sites is how many tensors a step of the whole model casts.
func (cfg Config) FP8Sites() int {
	return [...]int{FP8Off: 0, FP8Head: HeadSites, FP8All: HeadSites + LayerSites*cfg.Layers}[cfg.FP8]
}
