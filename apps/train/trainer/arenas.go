package trainer

import (
	"fmt"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/spmd/checkpoint"
	"lockstep/spmd/parallel"
)

// replicas returns the arenas that are the same on all ranks.
func (t *Trainer) replicas() []gpt.Arena {
	var same []gpt.Arena
	for _, a := range t.arenas() {
		if !a.Shared {
			same = append(same, a)
		}
	}
	return same
}

const secondMoments = "adam.v."

// arenas returns the numbers that a run keeps for each parameter.
func (t *Trainer) arenas() []gpt.Arena {
	mode, weights := t.State.Cfg.Shard.Mode, t.State.Weights
	if mode == layout.ShardParameters {
		weights = t.State.Sharded.Weights
	}
	return []gpt.Arena{{Prefix: "model.", Shared: mode == layout.ShardParameters, Buffer: weights},
		{Prefix: "adam.m.", Shared: mode != layout.ShardOff, Buffer: t.Optimizer.M},
		{Prefix: secondMoments, Shared: mode != layout.ShardOff, Buffer: t.Optimizer.V}}
}

// ItemsToSave returns the tensors of a checkpoint. With the number of steps and of sequences, they
// are all that the next step depends on. They are the same for every --shard, --tp and --pp.
//
// The parts of ItemsToSave may differ from those of ItemsToLoad.
func (t *Trainer) ItemsToSave() []checkpoint.Item {
	if t.divided() {
		return t.partItems(t.partToSave)
	}
	return t.items()
}

// ItemsToLoad returns the tensors of ItemsToSave, as they are to be loaded.
func (t *Trainer) ItemsToLoad() []checkpoint.Item {
	if t.divided() {
		return t.partItems(t.State.Of)
	}
	return t.items()
}

// items returns the tensors of a checkpoint if each rank has the whole model.
func (t *Trainer) items() []checkpoint.Item {
	var items []checkpoint.Item
	for _, a := range t.arenas() {
		for _, p := range t.State.Params {
			if a.Prefix == secondMoments && !t.Optimizer.HasV(p) {
				continue
			}
			skip, have := t.State.Of(a, p)
			if a.Shared {
				items = append(items, checkpoint.Sharded(a.Prefix+p.Name, have, skip, p.Len))
			} else {
				items = append(items, checkpoint.Replicated(a.Prefix+p.Name, have))
			}
		}
	}
	return items
}

// Audit fails if the weights or moments that all ranks hold differ between ranks after a number of
// steps. It names the first tensor that differs. It blocks. Every rank of c calls it.
func (t *Trainer) Audit(steps int) error {
	if err := t.sums.gather(); err != nil {
		return err
	}
	if err := t.Stream.Synchronize(); err != nil {
		return err
	}
	if t.State.Cfg.Shard.Mode != layout.ShardOff || t.divided() {
		if err := parallel.CheckSame(t.all, fmt.Sprintf("the number of updates after %d steps", steps),
			t.Optimizer.Counts); err != nil {
			return err
		}
	}
	if e := t.State.FP8; e != nil {
		if err := parallel.CheckSame(t.all, fmt.Sprintf("the scales of 8-bit floats after %d steps", steps),
			e.Up); err != nil {
			return err
		}
	}
	if err := t.auditCopies(steps); err != nil {
		return err
	}
	for _, a := range t.replicas() {
		err := parallel.CheckSame(t.c, fmt.Sprintf("%sweights after %d steps", a.Prefix, steps), a.Buffer)
		if err == nil {
			continue
		}
		for _, p := range t.State.Params {
			name := fmt.Sprintf("%s%s after %d steps", a.Prefix, p.Name, steps)
			if err := parallel.CheckSame(t.c, name, a.Slice(p.Off, p.Off+p.Len)); err != nil {
				return err
			}
		}
		return err
	}
	return nil
}
