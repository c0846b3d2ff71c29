package gpt

import (
	"errors"
	"fmt"
	"math"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/spmd"
	"lockstep/spmd/attention"
	"lockstep/spmd/parallel"
)

// Passes are the passes of a Model, for any type of activations.
type Passes interface {
	ForwardBackward(s *spmd.Stream, batch Batch, scale float32, start Start, ready func(group int) error) error
	Evaluate(s *spmd.Stream, batch Batch, scale float32) error
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

// Open makes a Model, or a Modern if the configuration has parts of one, with bfloat16 or float32
// activations. It is collective over w.
func Open(w *spmd.World, half bool, cfg layout.Config, maxBatch, maxSeq int) (*State, Passes, error) {
	if half {
		return open[spmd.BF16](w, cfg, maxBatch, maxSeq)
	}
	return open[float32](w, cfg, maxBatch, maxSeq)
}

func open[A ops.Act](w *spmd.World, cfg layout.Config, maxBatch, maxSeq int) (*State, Passes, error) {
	if cfg.Parts != 0 {
		m, err := NewModern[A](w, cfg, maxBatch, maxSeq)
		if err != nil {
			return nil, nil, err
		}
		return &m.State, m, nil
	}
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
	if cfg.Parts != 0 {
		m, err := takeModern[A](nil, cfg, batch, seq)
		if err != nil {
			return 0, err
		}
		return m.bytes(), nil
	}
	m, err := takeModel[A](nil, cfg, batch, seq)
	if err != nil {
		return 0, err
	}
	return m.bytes(), nil
}

// Batch is a micro-batch on the device: B sequences of T tokens. Tokens are at least 0
// and below Vocab.
type Batch struct {
	In, Targets spmd.Buffer[int32] // (B,T)
	Sorted      spmd.Buffer[int32] // In as ops.Sorter.Sort leaves it, for gradients
	B, T        int
}

// decoder is what models of both forms have. Its methods with a stream only enqueue. One stream at
// a time may use a model.
//
// With BF16 the activations, their gradients and the operands of matrix products are bfloat16.
// These stay float32: weights, biases, gradients of both, moments, sums of products, statistics of
// norms and attention, losses.
type decoder[A ops.Act] struct {
	State
	at      Memory[A]
	rows    int             // N: most tokens of a micro-batch
	longest int             // most tokens of a sequence
	most    attention.Shape // of a micro-batch
	att     *attention.Attention[A]
	parts   ops.Scratch // of kernels
	begin   func(s *spmd.Stream, b Batch, start Start, mode ops.Mode) work
}

// work is the passes of one micro-batch, not enqueued yet.
type work interface {
	forward()           // up to the input of the head
	head(scale float32) // the loss, and with gradients what backward begins with
	backward(ready func(section int) error)
	failure() error
}

// Start says what a pass adds gradients and loss to.
type Start bool

const (
	FromZero Start = true
	OnTop    Start = false // of those that are there
)

// attentionOptions give equal bits for equal inputs.
var attentionOptions = attention.Options{Deterministic: true}

// take checks the shape, and allocates, or counts without a world, the memory of the state.
func (m *decoder[A]) take(w *spmd.World, cfg layout.Config, maxBatch, maxSeq int) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	heads := 1 // that a number of attention's input is counted for
	if cfg.Parts != 0 {
		heads = 3 * cfg.Heads
	}
	switch {
	case maxBatch <= 0 || maxSeq <= 0 || maxSeq > cfg.SeqMax:
		return fmt.Errorf("model: micro-batches of %d sequences of %d tokens, model takes up to %d",
			maxBatch, maxSeq, cfg.SeqMax)
	case maxBatch > math.MaxInt32/maxSeq/heads:
		return fmt.Errorf("model: micro-batches of %d sequences of %d tokens are too large", maxBatch, maxSeq)
	case cfg.Parts != 0 && (cfg.Tensor.Parts() > 1 || cfg.Stage.Stages > 1):
		return errors.New("model: the layers of a modern one are whole, and all on each rank")
	case cfg.FP8 != layout.FP8Off && !ops.IsHalf[A]():
		return errors.New("model: products of 8-bit floats are of bfloat16 activations")
	}
	m.State = State{Cfg: cfg, World: w, space: layout.Space{W: w}}
	m.rows, m.longest = maxBatch*maxSeq, cfg.SeqMax
	m.most = attention.Shape{Batch: maxBatch, Tokens: maxSeq, Heads: cfg.OwnHeads(), Size: cfg.Channels / cfg.Heads}
	var n int
	m.Params, m.Groups, n = layout.Of(cfg)
	m.at.take(&m.State, n)
	return nil
}

// open makes the attention, and settles where each group is, once all memory is allocated.
func (m *decoder[A]) open() (err error) {
	if m.space.Err != nil {
		return m.space.Err
	}
	if m.att, err = attention.New[A](m.World, m.most, attentionOptions); err != nil {
		return err
	}
	m.space.Frees = append(m.space.Frees, m.att.Close)
	m.at.place(&m.State)
	return nil
}

// Attention returns the way that attention is computed, and the reason.
func (m *decoder[A]) Attention() (path, why string) { return m.att.Path(), m.att.Why() }

// NewSharder returns the sharder of the model's state. Every rank of c calls it.
func (m *decoder[A]) NewSharder(c spmd.Comm) (*Sharder, error) {
	return newSharder(&m.State, &m.at, c, m.Cfg.GroupsOfStep())
}

// ForwardBackward enqueues on s a micro-batch: its loss and the gradients of all parameters. The
// batch's buffers may be reused once s has passed this point.
//
// scale is 1 over the number of tokens of the whole batch, over all micro-batches and ranks, so
// that gradients and Loss are to be summed.
//
// ready, if not nil, is called with i = 0, 1, ... as soon as everything that Groups[i]'s gradients
// depend on is enqueued. Pass it with the last micro-batch.
func (m *decoder[A]) ForwardBackward(s *spmd.Stream, batch Batch, scale float32, start Start,
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
	return m.run(m.begin(s, batch, start, ops.Learns), scale, ready)
}

// Calibrate enqueues on s the work of ForwardBackward, with products of bfloat16 alone. The largest
// sizes of the casts then give the scales. Beside these only the gradients and the loss change.
func (m *decoder[A]) Calibrate(s *spmd.Stream, batch Batch, scale float32) error {
	if err := m.checkBatch(batch); err != nil {
		return err
	}
	return m.run(m.begin(s, batch, FromZero, ops.Calibrates), scale, func(int) error { return nil })
}

// Evaluate enqueues on s that the loss of a micro-batch is added to Loss, without gradients.
func (m *decoder[A]) Evaluate(s *spmd.Stream, batch Batch, scale float32) error {
	if err := m.checkBatch(batch); err != nil {
		return err
	}
	return m.run(m.begin(s, batch, OnTop, ops.Evaluates), scale, nil)
}

// run enqueues the forward pass, and the backward pass unless ready is nil.
func (m *decoder[A]) run(e work, scale float32, ready func(section int) error) error {
	e.forward()
	e.head(scale)
	if ready != nil {
		e.backward(ready)
	}
	return e.failure()
}

func (m *decoder[A]) checkBatch(b Batch) error {
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

// pass puts the passes of one micro-batch on a stream. After the first error it keeps the error
// and enqueues nothing more.
type pass[A ops.Act] struct {
	ops.Launcher[A]
	batch Batch
	mode  ops.Mode
}

// pass returns a pass. If gradients are reduced in every micro-step the reduced ones are added up.
func (m *decoder[A]) pass(s *spmd.Stream, b Batch, start Start, mode ops.Mode) pass[A] {
	return pass[A]{Launcher: ops.Launcher[A]{S: s, Cfg: m.Cfg, N: b.B * b.T, T: b.T,
		Acc: start == OnTop && !m.Cfg.Shard.ScattersGrads(), AccLoss: start == OnTop, Scratch: m.parts}, batch: b,
		mode: mode}
}

func (e *pass[A]) failure() error { return e.Err }

// call calls a hook of the state at a section's matrices.
func (e *pass[A]) call(hook func(section int) error, section int) {
	if e.Err == nil {
		e.Err = hook(section)
	}
}

// sections returns a function that says of one section after the other that it is complete.
func (e *pass[A]) sections(ready func(section int) error) (done func()) {
	section := 0
	return func() {
		if e.Err == nil {
			e.Err = ready(section)
		}
		section++
	}
}

// inputCast returns the cast of a linear's input in this pass. gradCast returns the cast of its
// output's gradient.
func (e *pass[A]) inputCast(p *Linear[A]) ops.Cast { return e.mode.Input(p.eight) }
func (e *pass[A]) gradCast(p *Linear[A]) ops.Cast  { return e.mode.Grad(p.eight) }

// mlpPart is how much of an MLP is computed.
type mlpPart bool

const (
	wholeMLP mlpPart = true
	// without the second product and the copy for it, since backward does not read the result
	upToActivation mlpPart = false
)
