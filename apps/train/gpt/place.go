package gpt

import (
	"lockstep/apps/train/kernels"
	"lockstep/apps/train/layout"
	"lockstep/spmd"
	"lockstep/spmd/ddp"
)

// Gradient returns where passes leave that of a parameter.
func (m *State) Gradient(p layout.Param) spmd.Buffer[float32] {
	return layout.InGroup(m.Groups, m.grads, p)
}

// Completes says whether the gradient of a parameter is complete with a section, and was not
// with one before; where a group is complete later than its sections, with the last one.
func (m *State) Completes(section int, p layout.Param) bool {
	if m.Cfg.Shard.Mode == layout.ShardOff {
		return p.Group == section
	}
	if p.Group < layout.VectorGroup(m.Groups) {
		return layout.LayerGroup(section) == p.Group
	}
	return section == m.Cfg.Embeddings()
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
	if e.Err == nil && hook != nil {
		e.Err = hook(section)
	}
}

// sharded is what a rank has where the ranks share a part of the training state.
type sharded struct {
	ddp.Partition                       // of the groups
	Weights, Grads spmd.Buffer[float32] // this rank's shards; empty where State has all

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
func (x *slots[T]) takeAll(sp *layout.Space, groups []layout.Group) {
	layers := groups[:layout.VectorGroup(groups)]
	for i := range x.layers {
		most := 0
		for g := i; g < len(layers); g += layerSlots {
			most = max(most, layers[g].Len)
		}
		layout.Take(sp, most, &x.layers[i])
	}
	layout.Take(sp, keptLen(groups), &x.kept)
}

// keptLen is how many elements the groups have that are not layers'.
func keptLen(groups []layout.Group) int {
	return groups[layout.VectorGroup(groups)].Len + groups[layout.EmbeddingGroup(groups)].Len
}

// of returns the memory of each group.
func (x *slots[T]) of(groups []layout.Group) []spmd.Buffer[T] {
	bs := keptOf(groups, x.kept)
	for i := range layout.VectorGroup(groups) {
		bs[i] = x.layers[i%layerSlots].Slice(0, groups[i].Len)
	}
	return bs
}

// keptOf returns the memory of each group; the layers' have none.
func keptOf[T spmd.Elem](groups []layout.Group, kept spmd.Buffer[T]) []spmd.Buffer[T] {
	bs := make([]spmd.Buffer[T], len(groups))
	vectors := layout.VectorGroup(groups)
	n := groups[vectors].Len
	bs[vectors], bs[layout.EmbeddingGroup(groups)] = kept.Slice(0, n), kept.Slice(n, kept.Len())
	return bs
}

// takeWeights takes, or counts, the memory for weights and gradients, of n elements in all.
func (m *Model[A]) takeWeights(n int) {
	sp, mode := &m.space, m.Cfg.Shard.Mode
	m.Sharded.Partition = m.Cfg.PartitionOf(m.Groups)
	shard := m.Sharded.ShardLen()
	if mode < layout.ShardParameters {
		layout.Take(sp, n, &m.Weights)
		if kernels.IsHalf[A]() {
			layout.Take(sp, n, &m.Half)
		}
	} else {
		layout.Take(sp, shard, &m.Sharded.Weights)
		m.operands.takeAll(sp, m.Groups)
		if kernels.IsHalf[A]() {
			layout.Take(sp, keptLen(m.Groups), &m.Sharded.keptWeights)
		}
	}
	if mode < layout.ShardGradients {
		layout.Take(sp, n, &m.Grads)
	} else {
		layout.Take(sp, shard, &m.Sharded.Grads)
		m.Sharded.working.takeAll(sp, m.Groups)
	}
}

// place settles where each group is, in memory that takeWeights has taken.
func (m *Model[A]) place() {
	x, mode := &m.Sharded, m.Cfg.Shard.Mode
	if mode < layout.ShardParameters {
		m.at.Weights = layout.GroupsOf(m.Groups, m.Weights)
		if mats, same := any(m.Weights).(spmd.Buffer[A]); same {
			m.at.Mats = layout.GroupsOf(m.Groups, mats)
		} else {
			m.at.Mats = layout.GroupsOf(m.Groups, any(m.Half).(spmd.Buffer[A]))
		}
	} else {
		m.at.Mats = m.operands.of(m.Groups)
		if weights, same := any(m.at.Mats).([]spmd.Buffer[float32]); same {
			m.at.Weights = weights
		} else {
			m.at.Weights = keptOf(m.Groups, x.keptWeights)
		}
	}
	if mode < layout.ShardGradients {
		m.grads = layout.GroupsOf(m.Groups, m.Grads)
		m.at.Grads = m.grads
		return
	}
	m.grads = x.working.of(m.Groups)
	m.at.Grads = m.grads
}
