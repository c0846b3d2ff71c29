package main

import (
	"errors"
	"math"

	"lockstep/spmd"
	"lockstep/spmd/ddp"
)

// Schedule is a learning rate that rises in a line for Warmup steps to Peak, then
// falls along a cosine to Final at step Steps, where it stays.
type Schedule struct {
	Peak, Final   float64
	Warmup, Steps int
}

// At returns the rate of step, counted from 0.
func (s Schedule) At(step int) float64 {
	switch {
	case step < s.Warmup:
		return s.Peak * float64(step+1) / float64(s.Warmup)
	case step >= s.Steps:
		return s.Final
	}
	x := float64(step-s.Warmup) / float64(s.Steps-s.Warmup)
	return s.Final + (s.Peak-s.Final)*0.5*(1+math.Cos(math.Pi*x))
}

// AdamConfig holds the constants of AdamW.
type AdamConfig struct {
	Beta1, Beta2 float64 // decay of the moments' averages
	Eps          float64
	WeightDecay  float64 // of matrices; biases and LayerNorms do not decay
	Clip         float64 // largest norm of the whole gradient; 0 means no limit
}

// DefaultAdam is what GPT-2-sized models are commonly trained with.
var DefaultAdam = AdamConfig{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Clip: 1}

// AdamW updates the weights of a model from its gradients:
//
//	g ← g · min(1, Clip/‖g‖)
//	m ← β₁m + (1-β₁)g        v ← β₂v + (1-β₂)g²
//	p ← p - lr·(m/(1-β₁ᵗ) / (√(v/(1-β₂ᵗ)) + ε) + λp)
//
// (Loshchilov, Hutter: Decoupled Weight Decay Regularization, algorithm 2, with
// the decay multiplied by the rate as PyTorch does.)
type AdamW struct {
	Cfg   AdamConfig
	M, V  spmd.Buffer[float32] // moments, laid out as the model's Weights
	Norm  spmd.Buffer[float32] // (1): norm of the gradient before clipping
	Steps int                  // steps enqueued so far, those that changed nothing too

	// SkipBad says what a step does whose gradient's norm or whose Loss is not finite.
	// It changes nothing, and does not count in t: with SkipBad the steps after it go
	// on, without it they change nothing either. Set it before the first step.
	SkipBad bool

	state  *State
	counts spmd.Buffer[int32]   // (2): steps that changed the weights, which is t; steps that did not
	gate   spmd.Buffer[float32] // (1): Norm, or NaN where the weights are not to change
	hyper  spmd.Buffer[float32] // (3): rate, 1/(1-β₁ᵗ), 1/(1-β₂ᵗ)
	decay  spmd.Buffer[uint8]   // whether each arenaAlign elements decay
	space  space
}

// NewAdamW allocates the moments of s's parameters, zero.
func NewAdamW(s *State, cfg AdamConfig) (*AdamW, error) {
	o := &AdamW{Cfg: cfg, state: s, space: space{w: s.w}}
	if err := o.alloc(); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

// takeAll takes, or counts, all memory for arenas of n elements.
func (o *AdamW) takeAll(n int) {
	take(&o.space, n, &o.M, &o.V)
	take(&o.space, 1, &o.Norm, &o.gate)
	take(&o.space, 2, &o.counts)
	take(&o.space, 3, &o.hyper)
	take(&o.space, n/arenaAlign, &o.decay)
}

func (o *AdamW) alloc() error {
	n := o.state.Weights.Len()
	if o.takeAll(n); o.space.err != nil {
		return o.space.err
	}
	mask := make([]uint8, n/arenaAlign)
	for _, p := range o.state.Params {
		for i := p.Off; p.Decay && i < p.Off+p.Len; i += arenaAlign {
			mask[i/arenaAlign] = 1
		}
	}
	return errors.Join(o.M.SetAll(0), o.V.SetAll(0), o.Norm.SetAll(0), o.counts.SetAll(0), o.decay.CopyFrom(mask))
}

// Close frees the buffers.
func (o *AdamW) Close() error { return o.space.free() }

// Start sets how many steps have been before the next one, and how many of them
// changed nothing. It blocks; no step may be on its way.
func (o *AdamW) Start(steps, skipped int) error {
	o.Steps = steps
	return o.counts.CopyFrom([]int32{int32(steps - skipped), 0})
}

// Step enqueues one update on s with rate lr. The gradients and Loss must be the whole
// batch's, on every rank; they are left as they are. Where Loss or the norm of the
// gradients is not finite, nothing changes: look at Norm, and see SkipBad.
func (o *AdamW) Step(s *spmd.Stream, lr float64) error {
	if err := o.Prepare(s, lr); err != nil {
		return err
	}
	return o.Apply(s)
}

// Prepare enqueues on s what changes from step to step: the rate.
func (o *AdamW) Prepare(s *spmd.Stream, lr float64) error {
	o.Steps++
	return spmd.Fill(s, o.hyper.Slice(0, 1), float32(lr))
}

// Apply enqueues on s the update that Prepare has set; it is the same work at
// every step, so that a graph can hold it.
func (o *AdamW) Apply(s *spmd.Stream) error {
	// The update multiplies by the clipping factor itself: scaling the gradients
	// first would read and write all of them once more.
	if err := ddp.ClipNorm(s, o.state.Grads, 0, o.Norm); err != nil {
		return err
	}
	if err := judgeStep(s, o.gate, o.hyper, o.counts, o.Norm, o.state.Loss, o.Cfg, o.SkipBad); err != nil {
		return err
	}
	if err := adamW(s, o.state.Weights, o.M, o.V, o.state.Grads, o.state.half, o.decay, o.hyper, o.gate, o.Cfg); err != nil || o.state.fp8 == nil {
		return err
	}
	return o.state.fp8.castWeights(s, o.state.half)
}
