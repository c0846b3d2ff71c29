package trainer

import (
	"errors"
	"fmt"

	"lockstep/apps/train/layout"
	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/ddp"
)

// divided says whether ranks have different parts of the model.
func (t *Trainer) divided() bool { return t.all.Size() > t.c.Size() }

// divide gives each rank its part of the model and of the data. Ranks that follow each other
// divide layers, which has them talk the most; stages are farthest apart, as they send the least.
// Every rank of the run calls it.
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

// countLoss enqueues that the loss is 0 on all but one of the ranks that
// have computed the same one.
func (t *Trainer) countLoss() error {
	if t.State.Cfg.Tensor.Rank == 0 {
		return nil
	}
	return spmd.Fill(t.Stream, t.State.Loss, 0)
}

// sumRows enqueues the sums of gradients to which each of the ranks that divide layers has added
// its rows of the batch. They are vectors, which go together.
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

// counted is what this rank adds to the norm of the gradient: what no other does.
func (t *Trainer) counted() []spmd.Buffer[float32] {
	if t.sharder == nil && t.c.Rank() > 0 {
		return nil
	}
	return t.State.Counted()
}

// partItems are the tensors of a checkpoint where each rank has a part of the model: the same as
// without. A rank that has none of a tensor takes part all the same. What several have each saves
// a part of.
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
			// the first stage has it, too
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

// partOf is this rank's part of elements from skip on that all ranks of c have.
func partOf(skip int, have spmd.Buffer[float32], c spmd.Comm) (int, spmd.Buffer[float32]) {
	part := spmd.ShardOf(have.Len(), c.Rank(), c.Size())
	return skip + part.Off, have.Slice(part.Off, part.Off+part.Len)
}

// auditCopies fails where ranks with different parts of the model differ after a number of
// steps in what they both have: the two with the embeddings, and those that divide layers, in
// all that they do not divide.
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
				if err := ddp.CheckSame(c, fmt.Sprintf("%s%s after %d steps", a.Prefix, p.Name, steps),
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
