package trainer

import (
	"errors"
	"math"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
	"lockstep/spmd/parallel"
)

// Schedule is a learning rate. It rises in a line for Warmup steps to Peak, falls along a cosine to
// Final at step Steps, and stays there. With Stable it stays at Peak for the first half of Steps,
// and falls in a line in the second.
type Schedule struct {
	Peak, Final   float64
	Warmup, Steps int
	Stable        bool
}

// At returns the rate of step, counted from 0.
func (s Schedule) At(step int) float64 {
	switch {
	case step < s.Warmup:
		return s.Peak * float64(step+1) / float64(s.Warmup)
	case step >= s.Steps:
		return s.Final
	case s.Stable:
		return s.Final + (s.Peak-s.Final)*min(1, 2*(1-float64(step)/float64(s.Steps)))
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

	Muon *MuonConfig // for the matrices of layers; nil if AdamW updates them, too
}

// DefaultAdam is the usual setting for models of GPT-2's sizes.
var DefaultAdam = AdamConfig{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Clip: 1}

// AdamW updates the weights of a model from its gradients:
//
//	g ← g · min(1, Clip/‖g‖)
//	m ← β₁m + (1-β₁)g        v ← β₂v + (1-β₂)g²
//	p ← p - lr·(m/(1-β₁ᵗ) / (√(v/(1-β₂ᵗ)) + ε) + λp)
//
// Source: Loshchilov, Hutter: Decoupled Weight Decay Regularization, algorithm 2. As in PyTorch,
// the decay is multiplied by the rate.
type AdamW struct {
	Cfg   AdamConfig
	M, V  spmd.Buffer[float32] // moments, laid out as the model's Weights, or this rank's shard with --shard
	Norm  spmd.Buffer[float32] // (1): norm of the gradient before clipping
	Steps int                  // steps enqueued so far, those that changed nothing too

	// A step whose Loss or norm of the gradient is not finite changes nothing, and does not count
	// in t. With SkipBad the steps after it go on. Without, they change nothing either. Set it
	// before the first step.
	SkipBad bool

	state  *gpt.State
	Counts spmd.Buffer[int32]   // (2): t, the steps that changed the weights; steps that did not
	Gate   spmd.Buffer[float32] // (1): Norm, or NaN where the weights are not to change
	hyper  spmd.Buffer[float32] // (3): rate, 1/(1-β₁ᵗ), 1/(1-β₂ᵗ)
	decay  spmd.Buffer[uint8]   // whether each ArenaAlign elements of the moments decay
	ranges []ops.AdamRange      // what Apply updates
	rates  []familyRate         // with Muon: of the families that AdamW updates
	muon   *muon                // nil without
	c      spmd.Comm            // the ranks that share Muon's work
	beside *spmd.Stream         // of AdamW beside Muon; nil without
	space  layout.Space

	// MeasureNorm enqueues norm[0] = the norm of all ranks' gradients. It is nil if this rank
	// has them all.
	MeasureNorm func(s *spmd.Stream, norm spmd.Buffer[float32]) error
}

// familyRate is the hyper of a family of parameters.
type familyRate struct {
	family layout.Family
	hyper  spmd.Buffer[float32]
}

// NewAdamW allocates the moments of s's parameters, zero. The ranks of c have the same weights
// and gradients.
func NewAdamW(s *gpt.State, c spmd.Comm, cfg AdamConfig) (*AdamW, error) {
	o := &AdamW{Cfg: cfg, state: s, c: c, space: layout.Space{W: s.World}}
	if err := o.alloc(); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

// takeAll allocates, or counts, all memory for moments of n elements.
func (o *AdamW) takeAll(n int, cfg layout.Config, params []layout.Param, half bool) {
	layout.Take(&o.space, n, &o.M, &o.V)
	layout.Take(&o.space, 1, &o.Norm, &o.Gate)
	layout.Take(&o.space, 2, &o.Counts)
	layout.Take(&o.space, 3, &o.hyper)
	layout.Take(&o.space, n/layout.ArenaAlign, &o.decay)
	if o.Cfg.Muon == nil {
		return
	}
	o.muon = &muon{cfg: o.Cfg, state: o.state, shapes: shapesOf(cfg, params)}
	o.muon.at.M = o.M
	o.muon.takeAll(&o.space, half)
	for f := layout.Embeddings; f <= layout.Vectors; f++ {
		r := familyRate{family: f}
		layout.Take(&o.space, 3, &r.hyper)
		o.rates = append(o.rates, r)
	}
}

// MomentsNeeded returns how many bytes of the device a model's optimizer takes. half says that its
// activations are bfloat16.
func MomentsNeeded(cfg layout.Config, adam AdamConfig, half bool) int {
	params, groups, _ := layout.Of(cfg)
	o := &AdamW{Cfg: adam}
	o.takeAll(cfg.PartitionOf(groups).ShardLen(), cfg, params, half)
	return o.space.Bytes
}

func (o *AdamW) alloc() error {
	part := o.state.Sharded.Partition
	n := part.ShardLen()
	if o.takeAll(n, o.state.Cfg, o.state.Params, o.state.Rounds); o.space.Err != nil {
		return o.space.Err
	}
	if o.muon != nil {
		if err := o.muon.open(o.c); err != nil {
			return err
		}
		var err error
		if o.beside, err = o.state.World.NewStream("adamw", spmd.Low); err != nil {
			return err
		}
	}
	mask := make([]uint8, n/layout.ArenaAlign)
	for _, p := range o.state.Params {
		_, at, own := part.Own(p.Group, p.Off, p.Off+p.Len)
		for i := at; p.Decay && i < at+own; i += layout.ArenaAlign {
			mask[i/layout.ArenaAlign] = 1
		}
	}
	o.ranges = o.cut()
	return o.decay.CopyFrom(mask)
}

// HasV reports whether the optimizer keeps a second moment of a parameter: Muon does not.
func (o *AdamW) HasV(p layout.Param) bool {
	return o.muon == nil || o.state.Cfg.Family(p) != layout.Matrices
}

// Close frees the buffers.
func (o *AdamW) Close() error {
	var err error
	if o.beside != nil {
		err = o.beside.Close()
	}
	if o.muon != nil {
		err = errors.Join(err, o.muon.close())
	}
	return errors.Join(err, o.space.Free())
}

// Start sets how many steps have been before the next one, and how many of them changed nothing. It
// blocks. No step may be on its way.
func (o *AdamW) Start(steps, skipped int) error {
	o.Steps = steps
	return o.Counts.CopyFrom([]int32{int32(steps - skipped), 0})
}

// Prepare enqueues on s the rate, which changes from step to step.
func (o *AdamW) Prepare(s *spmd.Stream, lr float64) error {
	o.Steps++
	if o.muon == nil {
		return spmd.Fill(s, o.hyper.Slice(0, 1), float32(lr))
	}
	for _, r := range o.rates {
		if err := spmd.Fill(s, r.hyper.Slice(0, 1), float32(o.Cfg.Muon.rate(r.family, lr))); err != nil {
			return err
		}
	}
	return o.muon.prepare(s, o.Steps-1, lr)
}

// Apply enqueues on s the update that Prepare has set. The gradients and Loss must be the whole
// batch's, on every rank, and are unchanged. If Loss or the norm of the gradients is not finite,
// nothing changes: look at Norm, and see SkipBad.
//
// It is the same work at every step, so that a graph can hold it.
func (o *AdamW) Apply(s *spmd.Stream) error {
	// The update multiplies by the clipping factor itself: to scale the gradients
	// first would read and write all of them once more.
	if o.MeasureNorm != nil {
		if err := o.MeasureNorm(s, o.Norm); err != nil {
			return err
		}
	} else if err := parallel.ClipNorm(s, o.state.Grads, 0, o.Norm); err != nil {
		return err
	}
	judged := ops.Step{Norm: o.Norm, Loss: o.state.Loss, Gate: o.Gate, Counts: o.Counts, Hyper: o.hyper,
		Beta1: o.Cfg.Beta1, Beta2: o.Cfg.Beta2, SkipBad: o.SkipBad}
	if err := judged.Judge(s); err != nil {
		return err
	}
	for _, r := range o.rates { // the corrections of the moments are all families'
		if err := spmd.Copy(s, r.hyper.Slice(1, 3), o.hyper.Slice(1, 3)); err != nil {
			return err
		}
	}
	if err := o.update(s); err != nil {
		return err
	}
	if o.state.FP8 == nil || o.state.Cfg.Shard.Mode != layout.ShardOff {
		return nil
	}
	return o.state.FP8.CastWeights(s, o.state.Half)
}

// update enqueues Apply's work once the norm is known. AdamW waits for memory, so it goes beside
// Muon's products.
func (o *AdamW) update(s *spmd.Stream) error {
	on := s
	if o.muon != nil {
		on = o.beside
		if err := on.After(s); err != nil {
			return err
		}
	}
	c := ops.AdamNumbers{Beta1: o.Cfg.Beta1, Beta2: o.Cfg.Beta2, Eps: o.Cfg.Eps, WeightDecay: o.Cfg.WeightDecay,
		Clip: o.Cfg.Clip}
	for _, r := range o.ranges {
		if err := r.Update(on, o.Gate, c); err != nil {
			return err
		}
	}
	if o.muon == nil {
		return nil
	}
	if err := o.muon.apply(s, o.Gate, o.c); err != nil {
		return err
	}
	return s.After(on)
}

// Bad reports whether a step with this loss and norm changes nothing.
func Bad(loss, norm float64) bool { return !ops.Finite(loss) || !ops.Finite(norm) }
