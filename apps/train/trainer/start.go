package trainer

import (
	"errors"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/text"
	"lockstep/spmd"
	"lockstep/spmd/blas"
	"lockstep/spmd/parallel"
)

// Begin draws the start weights from seed, or reads them, and gives all ranks the weights of rank
// 0. The first step is then 0. It blocks. Every rank of c calls it.
func (t *Trainer) Begin(seed uint64) error {
	shared := t.State.Cfg.Shard.Mode == layout.ShardParameters
	var err error
	if t.Weights != nil {
		t.World.Log().Info().Str("from", t.Weights.Dir).Msg("reading the start weights")
	}
	switch {
	case t.Weights == nil:
		err = t.State.Init(seed) // the same numbers on every rank
	case shared:
		err = t.dealOut()
	case t.c.Rank() == 0:
		err = t.load()
	}
	if err != nil {
		return err
	}
	if !shared {
		if err := parallel.SyncStart(t.c, t.State.Weights); err != nil {
			return err
		}
	}
	return t.StartAt(0)
}

// load reads the weights of the folder. It blocks. One rank calls it.
func (t *Trainer) load() error {
	for _, p := range t.State.Params {
		x, err := t.fromFolder(p)
		if err != nil {
			return err
		}
		if err := t.State.Set(p, x); err != nil {
			return err
		}
	}
	return nil
}

// fromFolder reads the numbers of a parameter from the folder.
func (t *Trainer) fromFolder(p layout.Param) ([]float32, error) {
	x, err := t.Weights.Tensor(p.Uncut())
	if errors.As(err, new(layout.FolderError)) {
		err = text.AsInput(err)
	}
	return x, err
}

// dealOut reads the weights of the folder on rank 0, and gives each rank its part. It
// blocks. Every rank of c calls it.
func (t *Trainer) dealOut() error {
	const chunk = 1 << 20 // elements that go between ranks at a time
	stage, err := spmd.Alloc[float32](t.World, chunk)
	if err != nil {
		return err
	}
	defer stage.Free()
	for _, p := range t.State.Params {
		var x []float32
		if t.c.Rank() == 0 {
			x, err = t.fromFolder(p)
		}
		if _, err := text.Among(t.World, t.c).Gather(nil, err); err != nil {
			return err
		}
		if t.c.Rank() != 0 {
			x = make([]float32, layout.FolderLen(p.Uncut(), t.State.Cfg))
		}
		for lo := 0; lo < len(x); lo += chunk {
			piece := x[lo:min(lo+chunk, len(x))]
			b := stage.Slice(0, len(piece))
			if err := b.CopyFrom(piece); err != nil {
				return err
			}
			if err := spmd.Broadcast(t.c, b, 0); err != nil {
				return err
			}
			if err := b.CopyTo(piece); err != nil {
				return err
			}
		}
		if err := t.State.Set(p, x); err != nil {
			return err
		}
	}
	return nil
}

// StartAt makes step the next one, with the present weights and moments.
func (t *Trainer) StartAt(step int) error {
	t.First = step
	if err := t.Optimizer.Start(step, t.Skipped); err != nil {
		return err
	}
	if err := t.State.Refresh(t.Stream); err != nil {
		return err
	}
	if t.scales != nil {
		if err := t.scales.start(step); err != nil {
			return err
		}
	}
	t.feeds.steps = t.feeds.training.Feed(t.trainBatches(step))
	return nil
}

// tune finds the fastest algorithms of all products before the first step, so that a resumed run
// has the bits of an uninterrupted one. It runs the passes of a step and ignores the gradients. It
// blocks. Every rank of c calls it.
//
// It runs before the optimizer allocates its memory, since timing needs as much for a while.
func (t *Trainer) tune() error {
	if t.World.OnHost() {
		return nil
	}
	if err := t.State.Refresh(t.Stream); err != nil {
		return err
	}
	if err := t.order.rehearse(); err != nil {
		return err
	}
	if t.scales != nil {
		if err := t.scales.forget(); err != nil {
			return err
		}
	}
	return blas.Tune(t.World)
}
