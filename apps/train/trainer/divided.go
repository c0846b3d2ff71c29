package trainer

import (
	"errors"
	"fmt"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/spmd"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/parallel"
)

// division is how the ranks divide the model and the data.
type division struct {
	all    spmd.Comm // the ranks of the run
	c      spmd.Comm // the ranks that share each batch; others have other parts of the model
	stages spmd.Comm // those with the other stages of the model
	parts  spmd.Comm // those with the other parts of the same layers
	tied   spmd.Comm // the two with a copy of the embeddings each; no rank elsewhere
}

// divided reports whether ranks have different parts of the model.
func (d *division) divided() bool { return d.all.Size() > d.c.Size() }

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
		mesh, err := parallel.NewMesh(t.World, parallel.Axis{Name: "pipe", Size: stages},
			parallel.Axis{Name: "data", Size: parallel.Fit}, parallel.Axis{Name: "tensor", Size: parts})
		if err != nil {
			return err
		}
		t.stages, t.c, t.parts = mesh.Comm("pipe"), mesh.Comm("data"), mesh.Comm("tensor")
		m.Tensor.Rank = t.parts.Rank()
		index := t.stages.Rank()
		color := -1
		if stages > 1 && (index == 0 || index == stages-1) {
			color = t.c.Rank()*parts + t.parts.Rank()
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

// openNorm makes the optimizer measure the gradient over all parts of the model.
func (t *Trainer) openNorm() error {
	n, err := parallel.NewNorm(t.all, t.counted()...)
	if err != nil {
		return err
	}
	t.keep(n.Close)
	t.Optimizer.MeasureNorm = func(s *spmd.Stream, norm spmd.Buffer[float32]) error { return n.Clip(0, norm, s) }
	return nil
}

// counted returns the gradients that only this rank adds to the norm.
func (t *Trainer) counted() []spmd.Buffer[float32] {
	if t.State.Cfg.Shard.Mode == layout.ShardOff && t.c.Rank() > 0 { // the first replica counts
		return nil
	}
	return t.State.Counted()
}

// partItems returns the tensors of a checkpoint if each rank has a part of the model. An undivided
// model has the same tensors. A rank without elements of a tensor takes part all the same.
//
// of returns which elements of a tensor this rank saves or loads: those from skip on.
func (t *Trainer) partItems(of func(a gpt.Arena, p layout.Param) (skip int, have spmd.Buffer[float32]),
) []checkpoint.Item {
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
			if ok {
				skip, have = of(a, q)
			}
			items = append(items, checkpoint.Strided(a.Prefix+p.Name, have, skip, q.Cut, p.Len))
		}
	}
	return items
}

// partToSave returns which elements of a tensor this rank saves. Ranks that have the same tensor
// each save a part of it.
func (t *Trainer) partToSave(a gpt.Arena, p layout.Param) (skip int, have spmd.Buffer[float32]) {
	if p.Group == layout.EmbeddingGroup(t.State.Groups) && !t.State.Cfg.Begins() { // the first stage also has it
		return 0, have
	}
	if skip, have = t.State.Of(a, p); !a.Shared {
		skip, have = partOf(skip, have, t.c)
	}
	if p.Cut.Run == 0 && t.parts.Size() > 1 {
		skip, have = partOf(skip, have, t.parts)
	}
	return skip, have
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
	return same(t.parts, func(p layout.Param) bool { return p.Cut.Run == 0 })
}
