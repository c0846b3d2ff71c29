package layout

import "lockstep/internal/cli"

// Recomputation says which activations the backward pass recomputes instead of keeping them in each
// layer. The bits are the same.
type Recomputation int

const (
	RecomputeOff   Recomputation = iota
	RecomputeGELU                // between the two products of an MLP, (N,4C) before and after the GELU
	RecomputeBlock               // all but the residual stream that leaves the layer
)

var recomputeNames = [...]string{"off", "gelu", "block"}

func (r Recomputation) String() string { return recomputeNames[r] }

// ParseRecompute returns the recomputation of a name.
func ParseRecompute(name string) (Recomputation, error) {
	i, err := cli.OneOf("recompute", name, recomputeNames[:]...)
	return Recomputation(i), err
}

// Recomputes reports whether backward recomputes activations of layer l of this stage.
func (cfg Config) Recomputes(l int) bool { return cfg.Recompute != RecomputeOff && cfg.Again(l) }

// GroupsThere lists the groups of layers, with --shard, in the order in which forward uses them.
// Groups of a model are in backward order, so it begins with the last.
func (cfg Config) GroupsThere() []int {
	var order []int
	for i := 2*cfg.OwnLayers() - 1; i >= 0; i-- {
		order = append(order, i)
	}
	return order
}

// GroupsOfStep lists the groups in the order in which both passes use them.
func (cfg Config) GroupsOfStep() []int { return append(cfg.GroupsThere(), cfg.GroupsBack()...) }

// GroupsBack lists the groups of layers, with --shard, in the order in which backward uses them.
func (cfg Config) GroupsBack() []int {
	var order []int
	for l := cfg.OwnLayers() - 1; l >= 0; l-- {
		mlp, attn := cfg.Sections(l)
		mlp, attn = LayerGroup(mlp), LayerGroup(attn)
		if cfg.Recomputes(l) {
			if cfg.Recompute == RecomputeBlock {
				order = append(order, attn)
			}
			order = append(order, mlp)
		}
		order = append(order, mlp, attn)
	}
	return order
}
