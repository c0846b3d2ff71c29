package gpt

import (
	"lockstep/apps/train/layout"
	"lockstep/spmd"
	"lockstep/spmd/parallel"
)

// Passes are the passes of a Model, for any type of activations.
type Passes interface {
	ForwardBackward(s *spmd.Stream, batch Batch, scale float32, first bool, ready func(group int) error) error
	Evaluate(s *spmd.Stream, batch Batch, scale float32, first bool) error
	Logits(s *spmd.Stream, tokens spmd.Buffer[int32], before int) (spmd.Buffer[float32], error)
	Attention() (path, why string)
	// NewSharder is for --shard, Calibrate for --fp8.
	NewSharder(c spmd.Comm) (*Sharder, error)
	Calibrate(s *spmd.Stream, batch Batch, scale float32) error
}

// StagePasses are the passes of a Model as a stage of a pipeline (--pp).
type StagePasses interface {
	OpenPipeline(c spmd.Comm) error
	Step(s *spmd.Stream, batches []Batch, h StepHooks) error
	EvaluateAll(s *spmd.Stream, micro int, next func(i int) (Batch, float32, error),
		around func(func() error) error) error
	StageTime(s *spmd.Stream) (parallel.StageTime, error)
	ForgetTime(s *spmd.Stream) error
}

// TensorPasses are the further passes of a Model if ranks divide its layers (--tp).
type TensorPasses interface {
	ShareLayers(c spmd.Comm) error
}

// Open makes a Model with bfloat16 or float32 activations.
func Open(w *spmd.World, half bool, cfg layout.Config, maxBatch, maxSeq int) (*State, Passes, error) {
	if half {
		m, err := NewModel[spmd.BF16](w, cfg, maxBatch, maxSeq)
		if err != nil {
			return nil, nil, err
		}
		return &m.State, m, nil
	}
	m, err := NewModel[float32](w, cfg, maxBatch, maxSeq)
	if err != nil {
		return nil, nil, err
	}
	return &m.State, m, nil
}
