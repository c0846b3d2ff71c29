package main

import (
	"errors"
	"fmt"
	"slices"

	"lockstep/spmd"
	"lockstep/spmd/ddp"
)

// shardMode says which part of the training state the ranks share, instead of each having
// all of it. Each mode shares what the one before does, and more.
type shardMode int

const (
	shardOff        shardMode = iota
	shardOptimizer            // the moments: ZeRO, stage 1
	shardGradients            // the gradients: stage 2
	shardParameters           // the weights: stage 3
)

var shardNames = [...]string{"off", "optimizer", "gradients", "parameters"}

func (m shardMode) String() string { return shardNames[m] }

// parseShard is the mode of a name.
func parseShard(name string) (shardMode, error) {
	if i := slices.Index(shardNames[:], name); i >= 0 {
		return shardMode(i), nil
	}
	return 0, fmt.Errorf("--shard %s: unknown, want off, optimizer, gradients or parameters", name)
}

// checkShard refuses a mode that does not go with 8-bit floats; asked is where these were
// asked for.
func (o *options) checkShard(asked string) error {
	if o.cfg.Shard.Mode == shardParameters && o.cfg.FP8 != fp8Off {
		return fmt.Errorf("%s casts all weights after each update, which no rank has with --shard parameters: take --shard gradients", asked)
	}
	return nil
}

// sharding says who shares it.
type sharding struct {
	Mode        shardMode
	Rank, Ranks int // used where Mode is not off
}

// scattersGrads says whether gradients are reduced to their ranks in every micro-step.
func (s sharding) scattersGrads() bool { return s.Mode >= shardGradients }

// partition divides groups of so many elements between those who share them.
func (cfg Config) partition(lens []int) ddp.Partition {
	rank, ranks := 0, 1
	if cfg.Shard.Mode != shardOff {
		rank, ranks = cfg.Shard.Rank, cfg.Shard.Ranks
	}
	return ddp.NewPartition(rank, ranks, arenaAlign, lens...)
}

// partitionOf is the partition of groups that layout has made.
func (cfg Config) partitionOf(groups []Group) ddp.Partition {
	lens := make([]int, len(groups))
	for i, g := range groups {
		lens[i] = g.Len
	}
	return cfg.partition(lens)
}

// The sections of a pass, in the order in which their gradients get complete: the final
// LayerNorm, then of each layer, the last one first, the MLP and attention, at last the
// embeddings. Without --shard they are the groups.

// sections returns the numbers of those of a layer.
func (cfg Config) sections(layer int) (mlp, attn int) {
	mlp = 1 + 2*(cfg.Layers-1-layer)
	return mlp, mlp + 1
}

// embeddings is the number of the last section.
func (cfg Config) embeddings() int { return 2*cfg.Layers + 1 }

// Where ranks share a part of the training state, the first 2·Layers groups are the matrices
// of an MLP or of an attention each. Two groups follow, which every rank has as a whole as
// long as there are passes: the vectors of all layers, which are small and whose gradients
// belong to several sections, and the embeddings, which both ends of a pass use.

// layerGroup is the group of a section that is a layer's.
func layerGroup(section int) int { return section - 1 }

// regroup changes the groups of parameters from sections to those.
func regroup(params []Param, sections []Group) []Group {
	last := len(sections) - 1
	groups := append(slices.Clone(sections[1:last]), Group{Name: "vectors"}, sections[last])
	for i := range params {
		switch p := &params[i]; {
		case !p.Decay:
			p.Group = len(groups) - 2
		case p.Group == last:
			p.Group = len(groups) - 1
		default:
			p.Group = layerGroup(p.Group)
		}
	}
	return groups
}

// gradient returns where passes leave that of a parameter.
func (m *State) gradient(p Param) spmd.Buffer[float32] { return inGroup(m.Groups, m.grads, p) }

// completes says whether the gradient of a parameter is complete with a section, and was not
// with one before; where a group is complete later than its sections, with the last one.
func (m *State) completes(section int, p Param) bool {
	if m.Cfg.Shard.Mode == shardOff {
		return p.Group == section
	}
	if layers := len(m.Groups) - 2; p.Group < layers {
		return layerGroup(section) == p.Group
	}
	return section == m.Cfg.embeddings()
}

// hooks are what passes call when they get to a section's matrices, to enqueue what is to come
// at that point. Those that are nil are not called.
type hooks struct {
	need  func(section int) error // before what reads them: the layers' and, once a pass, the embeddings
	done  func(section int) error // after what reads them: the layers'
	write func(section int) error // before what writes their gradients: the layers'
}

// call calls a hook.
func (e *enqueue[A]) call(hook func(int) error, section int) {
	if e.err == nil && hook != nil {
		e.err = hook(section)
	}
}

// sharded is what a rank has where the ranks share a part of the training state.
type sharded struct {
	ddp.Partition                       // of the groups
	weights, grads spmd.Buffer[float32] // this rank's shards; empty where State has all

	keptWeights spmd.Buffer[float32] // of the groups that are not layers', where operands are rounded copies
	working     slots[float32]       // gradients before they are reduced
}

// layerSlots is how many groups of layers have memory at a time: two layers'. While one
// computes, the other's weights arrive, or its gradients leave.
const layerSlots = 4

// slots is memory for all groups in which those of the layers take turns.
type slots[T spmd.Elem] struct {
	layers [layerSlots]spmd.Buffer[T]
	kept   spmd.Buffer[T] // of the other groups
}

// takeAll takes, or counts, the memory.
func (x *slots[T]) takeAll(sp *space, groups []Group) {
	layers := groups[:len(groups)-2]
	for i := range x.layers {
		most := 0
		for g := i; g < len(layers); g += layerSlots {
			most = max(most, layers[g].Len)
		}
		take(sp, most, &x.layers[i])
	}
	take(sp, keptLen(groups), &x.kept)
}

// keptLen is how many elements the groups have that are not layers'.
func keptLen(groups []Group) int {
	n := len(groups)
	return groups[n-2].Len + groups[n-1].Len
}

// largestGroup is how many elements the largest group has.
func largestGroup(cfg Config) int {
	_, groups, _ := layout(cfg)
	most := 0
	for _, g := range groups {
		most = max(most, g.Len)
	}
	return most
}

// of returns the memory of each group.
func (x *slots[T]) of(groups []Group) []spmd.Buffer[T] {
	bs := keptOf(groups, x.kept)
	for i := range bs[:len(bs)-2] {
		bs[i] = x.layers[i%layerSlots].Slice(0, groups[i].Len)
	}
	return bs
}

// keptOf returns the memory of each group; the layers' have none.
func keptOf[T spmd.Elem](groups []Group, kept spmd.Buffer[T]) []spmd.Buffer[T] {
	bs := make([]spmd.Buffer[T], len(groups))
	n, vectors := len(groups), groups[len(groups)-2].Len
	bs[n-2], bs[n-1] = kept.Slice(0, vectors), kept.Slice(vectors, kept.Len())
	return bs
}

// clear sets all of it to 0.
func (x *slots[T]) clear() error {
	err := x.kept.SetAll(*new(T))
	for _, b := range x.layers {
		err = errors.Join(err, b.SetAll(*new(T)))
	}
	return err
}

// takeWeights takes, or counts, the memory for weights and gradients, of n elements in all.
func (m *Model[A]) takeWeights(n int) {
	sp, mode := &m.space, m.Cfg.Shard.Mode
	m.sharded.Partition = m.Cfg.partitionOf(m.Groups)
	shard := m.sharded.ShardLen()
	if mode < shardParameters {
		take(sp, n, &m.Weights)
		if isHalf[A]() {
			take(sp, n, &m.half)
		}
	} else {
		take(sp, shard, &m.sharded.weights)
		m.operands.takeAll(sp, m.Groups)
		if isHalf[A]() {
			take(sp, keptLen(m.Groups), &m.sharded.keptWeights)
		}
	}
	if mode < shardGradients {
		take(sp, n, &m.Grads)
	} else {
		take(sp, shard, &m.sharded.grads)
		m.sharded.working.takeAll(sp, m.Groups)
	}
}

// place settles where each group is, in memory that takeWeights has taken. What lies between
// tensors gets 0 in all of it.
func (m *Model[A]) place() error {
	x, mode := &m.sharded, m.Cfg.Shard.Mode
	if mode < shardParameters {
		m.at.weights = groupsOf(m.Groups, m.Weights)
		if mats, same := any(m.Weights).(spmd.Buffer[A]); same {
			m.at.mats = groupsOf(m.Groups, mats)
		} else {
			m.at.mats = groupsOf(m.Groups, any(m.half).(spmd.Buffer[A]))
		}
	} else {
		m.at.mats = m.operands.of(m.Groups)
		if weights, same := any(m.at.mats).([]spmd.Buffer[float32]); same {
			m.at.weights = weights
		} else {
			m.at.weights = keptOf(m.Groups, x.keptWeights)
		}
	}
	if mode < shardGradients {
		m.grads = groupsOf(m.Groups, m.Grads)
		m.at.grads = m.grads
		return nil
	}
	m.grads = x.working.of(m.Groups)
	m.at.grads = m.grads
	err := errors.Join(x.grads.SetAll(0), x.working.clear())
	if mode == shardParameters {
		err = errors.Join(err, x.weights.SetAll(0), x.keptWeights.SetAll(0), m.operands.clear())
	}
	return err
}
