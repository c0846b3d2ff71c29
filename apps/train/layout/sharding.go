package layout

import (
	"lockstep/internal/cli"
	"lockstep/spmd/parallel"
)

// ShardMode says which part of the training state the ranks share, instead of each having all of
// it. Each mode shares what the one before does, and more.
type ShardMode int

const (
	ShardOff        ShardMode = iota
	ShardOptimizer            // the moments: ZeRO, stage 1
	ShardGradients            // the gradients: stage 2
	ShardParameters           // the weights: stage 3
)

var shardNames = [...]string{"off", "optimizer", "gradients", "parameters"}

func (m ShardMode) String() string { return shardNames[m] }

// ParseShard returns the mode of a name.
func ParseShard(name string) (ShardMode, error) {
	i, err := cli.OneOf("shard", name, shardNames[:]...)
	return ShardMode(i), err
}

// Sharding is a mode and the ranks that share.
type Sharding struct {
	Mode        ShardMode
	Rank, Ranks int // of those that learn from a part of each batch
}

// ScattersGrads reports whether gradients are reduced to their ranks in every micro-step.
func (s Sharding) ScattersGrads() bool { return s.Mode >= ShardGradients }

// LayerTurns is how many groups of layers have memory at a time: two layers'. While one computes,
// the other's weights arrive, or its gradients leave.
const LayerTurns = 4

// Turns returns how many groups' weights have memory at a time, or 0 if all have.
func (s Sharding) Turns() int {
	if s.Mode < ShardParameters {
		return 0
	}
	return LayerTurns
}

// partition divides groups of so many elements among the ranks that share them.
func (cfg Config) partition(lens []int) parallel.Partition {
	rank, ranks := 0, 1
	if cfg.Shard.Mode != ShardOff {
		rank, ranks = cfg.Shard.Rank, cfg.Shard.Ranks
	}
	return parallel.NewPartition(rank, ranks, ArenaAlign, lens...)
}

// PartitionOf divides groups from Of among the ranks that share them.
func (cfg Config) PartitionOf(groups []Group) parallel.Partition {
	lens := make([]int, len(groups))
	for i, g := range groups {
		lens[i] = g.Len
	}
	return cfg.partition(lens)
}

// The sections of a pass stand in the order in which their gradients become complete. The first is
// the final LayerNorm, or a head of its own. Each layer then has the MLP and attention, the last
// layer first. The embeddings are last. Without --shard the sections are the groups.

// Sections returns the numbers of a layer's sections, counted from the first of the stage.
func (cfg Config) Sections(layer int) (mlp, attn int) {
	mlp = 1 + 2*(cfg.OwnLayers()-1-layer)
	return mlp, mlp + 1
}

// Embeddings returns the number of the last section.
func (cfg Config) Embeddings() int { return 2*cfg.OwnLayers() + 1 }

// If ranks share a part of the training state, each layer has two groups of matrices, of the MLP
// and of attention. Two groups follow, which every rank has as a whole during passes. One is the
// vectors of all layers: they are small, and their gradients belong to several sections. The other
// is the embeddings, which both ends of a pass use.

// LayerGroup returns the group of a layer's section.
func LayerGroup(section int) int { return section - 1 }

// VectorGroup returns the group of the vectors. The groups before it belong to layers.
func VectorGroup(groups []Group) int { return len(groups) - 2 }

// EmbeddingGroup returns the group of the embeddings, with or without sharing.
func EmbeddingGroup(groups []Group) int { return len(groups) - 1 }

// regroup changes the groups of parameters from sections to the groups that ranks share, which are
// as many.
func regroup(params []Param, groups []Group) {
	for i := range params {
		switch p := &params[i]; {
		case !p.Decay:
			p.Group = VectorGroup(groups)
		case p.Group == EmbeddingGroup(groups) || p.Group == 0: // a head of its own
			p.Group = EmbeddingGroup(groups)
		default:
			p.Group = LayerGroup(p.Group)
		}
	}
}

// LargestGroup returns how many elements the largest group has.
func LargestGroup(cfg Config) int {
	_, groups, _ := Of(cfg)
	most := 0
	for _, g := range groups {
		most = max(most, g.Len)
	}
	return most
}
