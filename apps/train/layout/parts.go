package layout

import (
	"fmt"
	"strings"
)

// Parts is the set of parts that make a decoder another one than GPT-2, whose set is empty.
// Tensors, passes, memory, names in files and what ranks may divide all follow from it.
type Parts uint

const (
	// RMSNorms are norms without weights, also of the embeddings. Linears have no biases then, and
	// the head is a matrix of its own.
	RMSNorms Parts = 1 << iota
	Rotary         // positions turn queries and keys, instead of a table of positions
	Scaled         // scores of attention are multiplied by 0.12 for queries of HS channels, not by 1/√HS
	ReLU2          // squared ReLU, not GELU
	NormQK         // queries and keys have RMS norms, head by head
	Values         // tables of embeddings are mixed into the values of the first and last layers
	// the outputs of the first half of the layers are added to the inputs of the second,
	// last ones first
	Skips
	Windows // the attention of three layers of four sees WindowTokens
	Beside  // attention and MLP read the same residual stream, and both are added to it

	Modern   = RMSNorms | Rotary | Scaled | ReLU2 // what every modern model has
	full     = Modern | NormQK | Values | Skips | Windows
	allParts = 2*Beside - 1
	ByHead   = Rotary | Scaled | NormQK | Values // those between the product of queries, keys and values and attention
)

// partNames are the parts, first those that a modern model may leave out.
var partNames = []struct {
	part Parts
	name string
}{{NormQK, "qk-norm"}, {Values, "values"}, {Skips, "skips"}, {Windows, "windows"}, {Beside, "beside"},
	{RMSNorms, "rms-norms"}, {Rotary, "rotary"}, {Scaled, "scaled"}, {ReLU2, "relu2"}}

const mayBeLeftOut = 4 // of partNames

// Has reports whether a model has one of some parts.
func (c Config) Has(p Parts) bool { return c.Parts&p != 0 }

// String lists the parts, as ParseParts reads them.
func (p Parts) String() string {
	names := []string{"gpt2"}
	if p&Modern == Modern {
		names, p = []string{"modern"}, p&^Modern
	}
	for _, x := range partNames {
		if p&x.part != 0 {
			names = append(names, x.name)
		}
	}
	return strings.Join(names, ",")
}

// ParseParts reverses String.
func ParseParts(s string) (p Parts, err error) {
	names := strings.Split(s, ",")
	switch names[0] {
	case "gpt2":
	case "modern":
		p = Modern
	default:
		return 0, fmt.Errorf("parts of a model: %q are none", s)
	}
	for _, name := range names[1:] {
		part, err := partOf(name, len(partNames))
		if err != nil {
			return 0, fmt.Errorf("parts of a model: %q are none", s)
		}
		p |= part
	}
	return p, nil
}

// Without returns p without the parts of the given names.
func (p Parts) Without(names []string) (Parts, error) {
	for _, name := range names {
		part, err := partOf(name, mayBeLeftOut)
		if err != nil {
			return 0, err
		}
		p &^= part
	}
	return p, nil
}

// PartNames returns the names of the parts that may be left out.
func PartNames() (names []string) {
	for _, x := range partNames[:mayBeLeftOut] {
		names = append(names, x.name)
	}
	return names
}

// partOf returns the part of a name, of the first n.
func partOf(name string, n int) (Parts, error) {
	for _, x := range partNames[:n] {
		if x.name == name {
			return x.part, nil
		}
	}
	return 0, fmt.Errorf("no part %q: there are %s", name, strings.Join(PartNames(), ", "))
}

// MostModernChannels is the width of the widest modern model: kernels hold a row in the
// registers of a warp.
const MostModernChannels = 2048

// checkParts refuses sets of parts that do not go together, and shapes that some do not have.
func (c Config) checkParts() error {
	head := c.Channels / c.Heads
	switch {
	case c.Parts&^allParts != 0, c.Has(ByHead|RMSNorms) && !c.Has(Rotary), c.Has(Values|Skips) && !c.Has(RMSNorms):
		return fmt.Errorf("model: parts %#x", uint(c.Parts))
	case c.Has(ByHead) && (head%8 != 0 || head > 256):
		return fmt.Errorf("model: a modern one has heads of a multiple of 8 channels up to 256, these have %d", head)
	case c.Has(RMSNorms) && c.Channels > MostModernChannels:
		return fmt.Errorf("model: a modern one has up to %d channels, this has %d", MostModernChannels, c.Channels)
	case c.FP8 != FP8Off && (c.Has(Beside) || c.Has(ByHead|ReLU2) && !c.Has(RMSNorms)):
		return fmt.Errorf("model: no copies in 8-bit floats fit parts %v", c.Parts)
	}
	return nil
}

// Tables returns how many tables of embeddings are mixed into values. ValueTable returns which of
// them a layer has, or -1. The first layers have them in order, and so have the last.
func (c Config) Tables() int {
	if !c.Has(Values) {
		return 0
	}
	return min(3, c.Layers/2)
}

func (c Config) ValueTable(layer int) int {
	n := c.Tables()
	switch last := layer - (c.Layers - n); {
	case layer < n:
		return layer
	case last >= 0:
		return last
	}
	return -1
}

// SkipFrom returns the layer whose output is added to the input of a layer, or -1.
func (c Config) SkipFrom(layer int) int {
	if !c.Has(Skips) || layer < (c.Layers+1)/2 {
		return -1
	}
	return c.Layers - 1 - layer
}

// WindowTokens is how far back the attention of a layer with a window sees, in the sense of
// attention.Shape.
const WindowTokens = 256

// Window returns the window of a layer, or 0 if it sees all tokens before. The last layer does, and
// every fourth before it.
func (c Config) Window(layer int) int {
	if !c.Has(Windows) || (c.Layers-1-layer)%4 == 0 {
		return 0
	}
	return WindowTokens
}

// Family is the set of parameters that an optimizer treats alike.
type Family int

const (
	Matrices   Family = iota // of layers
	Embeddings               // tables that are looked up only
	Heads                    // what makes logits
	Vectors                  // and numbers
)

// Family returns the family of a model's parameter.
func (c Config) Family(p Param) Family {
	switch {
	case !p.Decay:
		return Vectors
	case strings.HasPrefix(p.Name, "h."):
		return Matrices
	// GPT-2's token embedding is its head, and positions are added to it
	case p.Name == "head.weight", !c.Has(RMSNorms):
		return Heads
	}
	return Embeddings
}
