package layout

import (
	"fmt"

	"lockstep/internal/cli"
)

// Products of 8-bit floats are those forward and those for the gradients of inputs. The gradients
// of weights stay bfloat16. The type is E4M3, but E5M2 for the gradient of the logits.
//
// Each operand is cast if it is computed, by a power of two that brings the largest value of the
// step before below 256. Values that grow by less than 1.75 from step to step fit. Weights are cast
// at the end of a step, by their own largest value. The scales lie in device memory, so that graphs
// replay.

// FP8Level says which products are of 8-bit floats.
type FP8Level int

const (
	FP8Off  FP8Level = iota
	FP8Head          // the head's
	FP8All           // those of the layers, too
)

var fp8Names = [...]string{"off", "head", "all"}

func (l FP8Level) String() string { return fp8Names[l] }

// ParseFP8 returns the level of a name.
func ParseFP8(name string) (FP8Level, error) {
	i, err := cli.OneOf("fp8", name, fp8Names[:]...)
	return FP8Level(i), err
}

// The sites are the tensors that are cast. The first two are the final norm's output and the
// logits' gradient. Each layer then has 8: the inputs and the gradients of the outputs of qkv,
// proj, fc and Proj2.
const (
	HeadSites  = 2
	LayerSites = 8
)

// CheckParts8 refuses parts of layers that do not fit products of 8-bit floats.
func (cfg Config) CheckParts8() error {
	if cfg.FP8 == FP8All && cfg.Tensor.Parts() > 1 && cfg.OwnChannels()%16 != 0 {
		return fmt.Errorf("--tp %d: %d channels a rank, which products of 8-bit floats take in multiples of 16: "+
			"take --fp8 head", cfg.Tensor.Ranks, cfg.OwnChannels())
	}
	return nil
}

// HeadName returns the name of the head's weight.
func (cfg Config) HeadName() string {
	if cfg.Has(RMSNorms) {
		return "head.weight"
	}
	return "wte.weight"
}

// FP8Sites returns how many tensors a step of the whole model casts.
func (cfg Config) FP8Sites() int {
	return [...]int{FP8Off: 0, FP8Head: HeadSites, FP8All: HeadSites + LayerSites*cfg.Layers}[cfg.FP8]
}
