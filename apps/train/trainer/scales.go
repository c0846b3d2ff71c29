package trainer

import (
	"lockstep/apps/train/ops"
	"lockstep/spmd"
)

// scales keeps the scales of 8-bit floats (--fp8).
type scales struct {
	t     *Trainer
	state *ops.FP8
}

// start sets the scales for a step: a checkpoint's, or new ones. Every rank of the run calls it.
func (x *scales) start(step int) error {
	if x.t.Scales != nil {
		return x.state.SetScales(x.t.Scales)
	}
	return x.calibrate(step)
}

// calibrate finds the scales for a step from its first micro-steps on all ranks, with products of
// bfloat16.
func (x *scales) calibrate(step int) error {
	t := x.t
	if step >= t.Steps {
		return nil
	}
	if err := t.order.calibrate(step); err != nil {
		return err
	}
	// A batch without good numbers leaves the scales as they are, and the first step fails.
	gate := t.Optimizer.Gate
	if err := spmd.Fill(t.Stream, gate, 0); err != nil {
		return err
	}
	return x.next(gate)
}

// next enqueues the scales for the next step. They come from all ranks: ranks with parts of a layer
// then have the same scales, and each has those of all layers for the checkpoint.
func (x *scales) next(gate spmd.Buffer[float32]) error {
	if err := spmd.AllReduce(x.t.all.On(x.t.Stream), x.state.Peak, x.state.Peak, spmd.Max); err != nil {
		return err
	}
	return x.state.NextScales(x.t.Stream, gate)
}

// forget enqueues that the passes so far do not count.
func (x *scales) forget() error { return spmd.Fill(x.t.Stream, x.state.Peak, 0) }
