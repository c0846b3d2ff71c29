package gpt

import (
	"fmt"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/internal/schedule"
	"lockstep/spmd"
	"lockstep/spmd/attention"
)

// Passes are the passes of a Model, for any type of activations.
type Passes interface {
	ForwardBackward(s *spmd.Stream, batch Batch, scale float32, start Start, ready func(group int) error) error
	Evaluate(s *spmd.Stream, batch Batch, scale float32) error
	Logits(s *spmd.Stream, tokens spmd.Buffer[int32], before int) (spmd.Buffer[float32], error)
	Attention() (path, why string)
	// NewSharder is for --shard, Calibrate for --fp8, ShareLayers for --tp.
	NewSharder(c spmd.Comm) (*Sharder, error)
	Calibrate(s *spmd.Stream, batch Batch, scale float32) error
	ShareLayers(c spmd.Comm) error
	RowsFit(rows, ranks int) bool

	// These are for a stage of a pipeline (--pp).
	OpenPipeline(c spmd.Comm) error
	Step(s *spmd.Stream, batches []Batch, h StepHooks) error
	EvaluateAll(s *spmd.Stream, micro int, next func(i int) (Batch, float32, error),
		around func(func() error) error) error
	StageTime(s *spmd.Stream) (schedule.Time, error)
	ForgetTime(s *spmd.Stream) error
}

// Open makes a Model with bfloat16 or float32 activations. It is collective over w.
func Open(w *spmd.World, half bool, cfg layout.Config, maxBatch, maxSeq int) (*State, Passes, error) {
	if half {
		return open[spmd.BF16](w, cfg, maxBatch, maxSeq)
	}
	return open[float32](w, cfg, maxBatch, maxSeq)
}

func open[A ops.Act](w *spmd.World, cfg layout.Config, maxBatch, maxSeq int) (*State, Passes, error) {
	m, err := NewModel[A](w, cfg, maxBatch, maxSeq)
	if err != nil {
		return nil, nil, err
	}
	return &m.State, m, nil
}

// MemoryNeeded returns how many bytes of the device a model takes, without the memory of libraries.
func MemoryNeeded(cfg layout.Config, batch, seq int, half bool) (int, error) {
	if half {
		return bytesOf[spmd.BF16](cfg, batch, seq)
	}
	return bytesOf[float32](cfg, batch, seq)
}

func bytesOf[A ops.Act](cfg layout.Config, batch, seq int) (int, error) {
	m, err := takeModel[A](nil, cfg, batch, seq)
	if err != nil {
		return 0, err
	}
	n := m.space.Bytes + m.pipelineBytes() + attention.Workspace[A](m.most, attentionOptions)
	if s, some := m.windowed(); some {
		n += attention.Workspace[A](s, attentionOptions)
	}
	return n, nil
}

// Batch is a micro-batch on the device: B sequences of T tokens. Tokens are at least 0
// and below Vocab.
type Batch struct {
	In, Targets spmd.Buffer[int32] // (B,T)
	Sorted      spmd.Buffer[int32] // In as ops.Sorter.Sort leaves it, for gradients
	B, T        int
}

// Start says what a pass adds gradients and loss to.
type Start bool

const (
	FromZero Start = true
	OnTop    Start = false // of those that are there
)

// Attention returns the way that attention is computed, and the reason.
func (m *Model[A]) Attention() (path, why string) { return m.att.Path() }

// ForwardBackward enqueues on s a micro-batch: its loss and the gradients of all parameters. The
// batch's buffers may be reused once s has passed this point.
//
// scale is 1 over the number of tokens of the whole batch, over all micro-batches and ranks, so
// that gradients and Loss are to be summed.
//
// ready, if not nil, is called with i = 0, 1, ... as soon as everything that Groups[i]'s gradients
// depend on is enqueued. Pass it with the last micro-batch.
func (m *Model[A]) ForwardBackward(s *spmd.Stream, batch Batch, scale float32, start Start,
	ready func(group int) error) error {
	if err := m.checkBatch(batch); err != nil {
		return err
	}
	if n := ops.SortedLen(batch.B*batch.T, m.Cfg.Vocab); batch.Sorted.Len() != n {
		return fmt.Errorf("model: micro-batch of %d×%d with %d numbers in the order of its tokens, want %d",
			batch.B, batch.T, batch.Sorted.Len(), n)
	}
	if ready == nil {
		ready = func(int) error { return nil }
	}
	return m.run(m.on(s, batch, start, ops.Learns), scale, ready)
}

// Calibrate enqueues on s the work of ForwardBackward, with products of bfloat16 alone. The largest
// sizes of the casts then give the scales. Beside these only the gradients and the loss change.
func (m *Model[A]) Calibrate(s *spmd.Stream, batch Batch, scale float32) error {
	if err := m.checkBatch(batch); err != nil {
		return err
	}
	return m.run(m.on(s, batch, FromZero, ops.Calibrates), scale, func(int) error { return nil })
}

// Evaluate enqueues on s that the loss of a micro-batch is added to Loss, without gradients.
func (m *Model[A]) Evaluate(s *spmd.Stream, batch Batch, scale float32) error {
	if err := m.checkBatch(batch); err != nil {
		return err
	}
	return m.run(m.on(s, batch, OnTop, ops.Evaluates), scale, nil)
}

// run enqueues the forward pass, and the backward pass unless ready is nil.
func (m *Model[A]) run(e *enqueue[A], scale float32, ready func(section int) error) error {
	e.forward()
	e.head(scale)
	if ready != nil {
		e.backward(ready)
	}
	return e.Err
}

func (m *Model[A]) checkBatch(b Batch) error {
	switch {
	case b.B <= 0 || b.T <= 0 || b.T > m.longest || b.B*b.T > m.rows:
		return fmt.Errorf("model: micro-batch of %d sequences of %d tokens, made for up to %d tokens of each and %d "+
			"in all", b.B, b.T, m.longest, m.rows)
	case b.In.Len() != b.B*b.T || b.Targets.Len() != b.B*b.T:
		return fmt.Errorf("model: micro-batch of %d×%d, but %d tokens and %d targets",
			b.B, b.T, b.In.Len(), b.Targets.Len())
	}
	return nil
}
