package trainer

import (
	"lockstep/apps/train/gpt"
	"lockstep/spmd"
)

// tensor is for ranks that divide each layer (--tp).
type tensor struct {
	s      *spmd.Stream // of the training
	c      spmd.Comm    // the ranks with the other parts of the same layers
	state  *gpt.State
	byRows []spmd.Buffer[float32] // gradients to which each rank has added its rows of the batch
}

// openTensor returns nil if the layers are whole.
func openTensor(t *Trainer) (*tensor, error) {
	if t.State.Cfg.Tensor.Parts() == 1 {
		return nil, nil
	}
	if err := t.Model.ShareLayers(t.parts); err != nil {
		return nil, err
	}
	return &tensor{s: t.Stream, c: t.parts, state: t.State, byRows: t.State.ByRows()}, nil
}

// finish enqueues what makes gradients and loss, which are sums over the ranks that share batches,
// those of the whole layers.
func (x *tensor) finish() error {
	if err := x.sumRows(); err != nil {
		return err
	}
	return x.countLoss()
}

// sumRows enqueues the sums of the gradients by rows. These are vectors, and go together.
func (x *tensor) sumRows() error {
	if len(x.byRows) == 0 {
		return nil
	}
	on := x.c.On(x.s)
	return on.Group(func() error {
		for _, g := range x.byRows {
			if err := spmd.AllReduce(on, g, g, spmd.Sum); err != nil {
				return err
			}
		}
		return nil
	})
}

// countLoss enqueues that the loss becomes 0 on all but one of the ranks that have computed the
// same loss.
func (x *tensor) countLoss() error {
	if x.state.Cfg.Tensor.Rank == 0 {
		return nil
	}
	return spmd.Fill(x.s, x.state.Loss, 0)
}
