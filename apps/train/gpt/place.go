package gpt

import (
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
	"lockstep/spmd/parallel"
)

// Gradient returns where passes leave the gradient of a parameter.
func (m *State) Gradient(p layout.Param) spmd.Buffer[float32] {
	return layout.InGroup(m.Groups, m.grads, p)
}

// Completes reports whether a section, and not one before it, completes the gradient of a
// parameter. If a group is complete later than its sections, the last section completes it.
func (m *State) Completes(section int, p layout.Param) bool {
	if m.Cfg.Shard.Mode == layout.ShardOff {
		return p.Group == section
	}
	if p.Group < layout.VectorGroup(m.Groups) {
		return layout.LayerGroup(section) == p.Group
	}
	return section == m.Cfg.Embeddings()
}

// hooks are functions that passes call at a section's matrices, to enqueue work there. Those that
// are nil are not called.
type hooks struct {
	need  func(section int) error // before the matrices are read: the layers' and, once a pass, the embeddings
	done  func(section int) error // after what reads them: the layers'
	write func(section int) error // before what writes their gradients: the layers'
}

// Need, Done and Write call the hooks.
func (m *State) Need(section int) error  { return call(m.around.need, section) }
func (m *State) Done(section int) error  { return call(m.around.done, section) }
func (m *State) Write(section int) error { return call(m.around.write, section) }

func call(hook func(int) error, section int) error {
	if hook == nil {
		return nil
	}
	return hook(section)
}

// sharded is the state of a rank if the ranks share a part of the training state.
type sharded struct {
	parallel.Partition                      // of the groups
	Weights, Grads     spmd.Buffer[float32] // this rank's shards; empty if State has all

	keptWeights spmd.Buffer[float32] // weights of the groups that are not layers', if operands are rounded copies
	working     slots[float32]       // gradients before they are reduced
}

// slots is memory for all groups. Those of the layers take turns in it.
type slots[T spmd.Elem] struct {
	layers [layout.LayerTurns]spmd.Buffer[T]
	kept   spmd.Buffer[T] // of the other groups
}

// takeAll allocates, or counts, the memory.
func (x *slots[T]) takeAll(sp *layout.Space, groups []layout.Group) {
	layers := groups[:layout.VectorGroup(groups)]
	for i := range x.layers {
		most := 0
		for g := i; g < len(layers); g += layout.LayerTurns {
			most = max(most, layers[g].Len)
		}
		layout.Take(sp, most, &x.layers[i])
	}
	layout.Take(sp, keptLen(groups), &x.kept)
}

// keptLen returns how many elements the groups have that are not layers'.
func keptLen(groups []layout.Group) int {
	return groups[layout.VectorGroup(groups)].Len + groups[layout.EmbeddingGroup(groups)].Len
}

// of returns the memory of each group.
func (x *slots[T]) of(groups []layout.Group) []spmd.Buffer[T] {
	bs := keptOf(groups, x.kept)
	for i := range layout.VectorGroup(groups) {
		bs[i] = x.layers[i%layout.LayerTurns].Slice(0, groups[i].Len)
	}
	return bs
}

// keptOf returns the memory of each group, and none for the layers'.
func keptOf[T spmd.Elem](groups []layout.Group, kept spmd.Buffer[T]) []spmd.Buffer[T] {
	bs := make([]spmd.Buffer[T], len(groups))
	vectors := layout.VectorGroup(groups)
	n := groups[vectors].Len
	bs[vectors], bs[layout.EmbeddingGroup(groups)] = kept.Slice(0, n), kept.Slice(n, kept.Len())
	return bs
}

// Memory is where the groups of a state are, for passes with activations of type A.
type Memory[A ops.Act] struct {
	Places[A]
	operands slots[A] // with --shard parameters: the operands of products
}

// take allocates, or counts, the memory for weights and gradients of a state with its parameters
// and groups, of n elements in all.
func (x *Memory[A]) take(m *State, n int) {
	sp, mode := &m.space, m.Cfg.Shard.Mode
	m.Sharded.Partition = m.Cfg.PartitionOf(m.Groups)
	shard := m.Sharded.ShardLen()
	if m.Rounds = ops.IsHalf[A](); mode < layout.ShardParameters {
		layout.Take(sp, n, &m.Weights)
		if m.Rounds {
			layout.Take(sp, n, &m.Half)
		}
	} else {
		layout.Take(sp, shard, &m.Sharded.Weights)
		x.operands.takeAll(sp, m.Groups)
		if m.Rounds {
			layout.Take(sp, keptLen(m.Groups), &m.Sharded.keptWeights)
		}
	}
	if mode < layout.ShardGradients {
		layout.Take(sp, n, &m.Grads)
	} else {
		layout.Take(sp, shard, &m.Sharded.Grads)
		m.Sharded.working.takeAll(sp, m.Groups)
	}
	layout.Take(sp, 2, &m.Totals)
}

// place settles where each group is in the memory of take.
func (x *Memory[A]) place(m *State) {
	mode := m.Cfg.Shard.Mode
	m.Loss = m.Totals.Slice(0, 1)
	if mode < layout.ShardParameters {
		x.Weights = layout.GroupsOf(m.Groups, m.Weights)
		if mats, same := any(m.Weights).(spmd.Buffer[A]); same {
			x.Mats = layout.GroupsOf(m.Groups, mats)
		} else {
			x.Mats = layout.GroupsOf(m.Groups, any(m.Half).(spmd.Buffer[A]))
		}
	} else {
		x.Mats = x.operands.of(m.Groups)
		if weights, same := any(x.Mats).([]spmd.Buffer[float32]); same {
			x.Weights = weights
		} else {
			x.Weights = keptOf(m.Groups, m.Sharded.keptWeights)
		}
	}
	if mode < layout.ShardGradients {
		m.grads = layout.GroupsOf(m.Groups, m.Grads)
	} else {
		m.grads = m.Sharded.working.of(m.Groups)
	}
	x.Grads = m.grads
}
