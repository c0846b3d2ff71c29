package trainer

import (
	"errors"
	"fmt"

	"lockstep/apps/train/layout"
	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/parallel"
)

// divided says whether ranks have different parts of the model.
func (t *Trainer) divided() bool { return t.all.Size() > t.c.Size() }

// divide gives each rank its part of the model and of the data. Every rank of the run calls it.
//
// Neighbours divide layers, since they exchange the most. Stages are farthest
// apart, since they send the least.
func (t *Trainer) divide() error {
	m := &t.Config.Model
	stages := max(1, m.Stage.Stages)
	m.Stage = layout.Staging{}
	if parts := m.Tensor.Parts(); stages*parts > 1 {
		if t.all.Size() != t.World.Size() {
			return errors.New("the parts of a model are of all ranks")
		}
		mesh, err := t.World.Mesh(spmd.Axis{Name: "pipe", Size: stages}, spmd.Axis{Name: "data", Size: spmd.Fit},
			spmd.Axis{Name: "tensor", Size: parts})
		if err != nil {
			return err
		}
		t.pipe, t.c, t.tensor = mesh.Comm("pipe"), mesh.Comm("data"), mesh.Comm("tensor")
		m.Tensor.Rank = t.tensor.Rank()
		index := t.pipe.Rank()
		color := -1
		if stages > 1 && (index == 0 || index == stages-1) {
			color = t.c.Rank()*parts + t.tensor.Rank()
		}
		if t.tied, err = t.all.Split(color, index); err != nil {
			return err
		}
		if stages > 1 {
			m.Stage = layout.StageOf(*m, index, stages, t.microSteps(t.GlobalBatch), t.Seq)
		}
	}
	m.Shard.Rank, m.Shard.Ranks = t.c.Rank(), t.c.Size()
	return nil
}

// countLoss enqueues that the loss becomes 0 on all but one of the ranks that
// have computed the same loss.
func (t *Trainer) countLoss() error {
	if t.State.Cfg.Tensor.Rank == 0 {
		return nil
	}
	return spmd.Fill(t.Stream, t.State.Loss, 0)
}

// sumRows enqueues the sums of gradients to which each rank that divides layers has added its rows
// of the batch. These gradients are vectors, and go together.
func (t *Trainer) sumRows() error {
	if len(t.byRows) == 0 {
		return nil
	}
	on := t.tensor.On(t.Stream)
	return on.Group(func() error {
		for _, g := range t.byRows {
			if err := spmd.AllReduce(on, g, g, spmd.Sum); err != nil {
				return err
			}
		}
		return nil
	})
}

// counted returns the gradients that this rank, and no other, adds to the norm.
func (t *Trainer) counted() []spmd.Buffer[float32] {
	if t.sharder == nil && t.c.Rank() > 0 {
		return nil
	}
	return t.State.Counted()
}

// partItems returns the tensors of a checkpoint if each rank has a part of the model. They are
// those of an undivided model. A rank without elements of a tensor takes part all the same. Ranks
// that have the same tensor each save a part of it.
func (t *Trainer) partItems(save bool) []checkpoint.Item {
	own := map[string]layout.Param{}
	for _, p := range t.State.Params {
		own[p.Name] = p
	}
	whole, _, _ := layout.Of(t.State.Cfg.Whole())
	var items []checkpoint.Item
	for _, a := range t.arenas() {
		for _, p := range whole {
			if a.Prefix == secondMoments && !t.Optimizer.HasV(p) {
				continue
			}
			skip, have := 0, spmd.Buffer[float32]{}
			q, ok := own[p.Name]
			// the first stage also has it
			twice := ok && q.Group == layout.EmbeddingGroup(t.State.Groups) && !t.State.Cfg.Begins()
			if ok && !(save && twice) {
				skip, have = t.State.Of(a, q)
				if save && !a.Shared {
					skip, have = partOf(skip, have, t.c)
				}
				if save && q.Cut.Run == 0 && t.tensor.Size() > 1 {
					skip, have = partOf(skip, have, t.tensor)
				}
			}
			items = append(items, checkpoint.Strided(a.Prefix+p.Name, have, skip, q.Cut, p.Len))
		}
	}
	return items
}

// partOf returns this rank's part of elements from skip on that all ranks of c have.
func partOf(skip int, have spmd.Buffer[float32], c spmd.Comm) (int, spmd.Buffer[float32]) {
	part := spmd.ShardOf(have.Len(), c.Rank(), c.Size())
	return skip + part.Off, have.Slice(part.Off, part.Off+part.Len)
}

// auditCopies fails if ranks with different parts of the model differ in what they have in common
// after a number of steps. The two stages with the embeddings share these. Ranks that divide layers
// share all that they do not divide.
func (t *Trainer) auditCopies(steps int) error {
	same := func(c spmd.Comm, copied func(p layout.Param) bool) error {
		if c.Size() < 2 {
			return nil
		}
		for _, a := range t.arenas() {
			for _, p := range t.State.Params {
				if !copied(p) {
					continue
				}
				_, have := t.State.Of(a, p)
				if err := parallel.CheckSame(c, fmt.Sprintf("%s%s after %d steps", a.Prefix, p.Name, steps),
					have); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := same(t.tied, func(p layout.Param) bool {
		return p.Group == layout.EmbeddingGroup(t.State.Groups)
	}); err != nil {
		return err
	}
	return same(t.tensor, func(p layout.Param) bool { return p.Cut.Run == 0 })
}
