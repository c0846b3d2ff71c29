package gpt

import (
	"errors"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/internal/schedule"
	"lockstep/spmd"
	"lockstep/spmd/parallel"
)

// microActs are the activations of a micro-batch that forward keeps.
type microActs[A ops.Act] struct {
	emb spmd.Buffer[A] // (N,C): in the first stage
	act []layerActs[A]
}

// use makes the passes work on the micro-batch in a slot. in is its first residual stream if this
// is not the first stage.
func (m *Model[A]) use(slot int, in spmd.Buffer[A]) {
	m.act, m.emb = m.kept[slot].act, m.kept[slot].emb
	if !m.Cfg.Begins() {
		m.emb = in
	}
}

// pipelineBytes returns how many bytes OpenPipeline allocates.
func (m *Model[A]) pipelineBytes() int {
	n := 0
	if !m.Cfg.Begins() {
		n += m.Cfg.InFlight() + 1
	}
	if !m.Cfg.Ends() {
		n += 2
	}
	return n * spmd.AllocSize[A](m.rowsOf(m.rows).Held()*m.Cfg.Channels)
}

// OpenPipeline makes this model a stage of a pipeline. Every rank of c calls it.
func (m *Model[A]) OpenPipeline(c spmd.Comm) (err error) {
	m.pipe, err = parallel.NewPipeline[A](c, m.rowsOf(m.rows).Held()*m.Cfg.Channels, m.Cfg.Stage.Micro)
	if err == nil {
		m.space.Frees = append(m.space.Frees, m.pipe.Close)
	}
	return err
}

// StageTime is Time of the pipeline, ForgetTime its ForgetTime.
func (m *Model[A]) StageTime(s *spmd.Stream) (x schedule.Time, err error) {
	x.Whole, x.Waiting, err = m.pipe.Time(s)
	return x, err
}
func (m *Model[A]) ForgetTime(s *spmd.Stream) error { return m.pipe.ForgetTime(s) }

// NewSharder returns the sharder of the model's state. Every rank of c calls it.
func (m *Model[A]) NewSharder(c spmd.Comm) (*Sharder, error) {
	order := m.Cfg.GroupsOfStep()
	if m.pipe != nil {
		order = m.pipelinePass(m.Cfg.GroupsThere())
	}
	return newSharder(&m.State, &m.at, c, order)
}

// pipelinePass lists the groups of layers in the order in which a step uses them.
func (m *Model[A]) pipelinePass(forward []int) []int {
	var order []int
	for _, task := range schedule.Tasks(m.Cfg.Stage.Stages, m.Cfg.Stage.Index, m.Cfg.Stage.Micro) {
		if task.Backward {
			order = append(order, m.Cfg.GroupsBack()...)
		} else {
			order = append(order, forward...)
		}
	}
	return order
}

// StepHooks are what a pipelined step calls.
type StepHooks struct {
	Calibrate bool // as Model.Calibrate

	Scale func(micro int) float32 // of the loss, see ForwardBackward
	// called as soon as everything that the section's gradients of the micro-batch depend
	// on is enqueued
	Ready func(micro, section int) error
	Done  func(micro int) error // after the backward pass of a micro-batch
}

// Step enqueues on s all micro-batches of a step, through all stages of the pipeline: the loss and
// the gradients of this stage's parameters. The loss is 0 except in the last stage. The gradient of
// the embeddings lacks the other stage's part. Otherwise it is like ForwardBackward. Every rank of
// the pipeline calls it.
func (m *Model[A]) Step(s *spmd.Stream, batches []Batch, h StepHooks) error {
	for _, b := range batches {
		if err := m.checkBatch(b); err != nil {
			return err
		}
	}
	if err := m.noLoss(s); err != nil {
		return err
	}
	mode := ops.Learns
	if h.Calibrate {
		mode = ops.Calibrates
	}
	on := func(micro int) *enqueue[A] { return m.on(s, batches[micro], micro == 0, mode) }
	return m.pipe.Run(s, parallel.Stage[A]{
		Forward: func(micro, slot int, in, out spmd.Buffer[A]) error {
			e := on(micro)
			m.use(slot, in)
			m.sendTo(out)
			e.forward()
			if m.Cfg.Ends() {
				e.head(h.Scale(micro))
			}
			return e.Err
		},
		Backward: func(micro, slot int, in, dout, din spmd.Buffer[A]) error {
			e := on(micro)
			m.use(slot, in)
			n := e.rows.Own() * m.Cfg.Channels
			if !m.Cfg.Ends() {
				e.Err = spmd.Copy(s, m.dres.Slice(0, n), dout.Slice(0, n))
			}
			e.backward(func(section int) error { return h.Ready(micro, section) })
			if e.Err == nil && !m.Cfg.Begins() {
				e.Err = spmd.Copy(s, din.Slice(0, n), m.dres.Slice(0, n))
			}
			return errors.Join(e.Err, h.Done(micro))
		},
	})
}

// EvaluateAll enqueues on s the losses of micro micro-batches, and adds them to Loss in the last
// stage. next enqueues the load of one, and returns the scale of its loss. around is called with a
// function that enqueues a pass. Every rank of the pipeline calls it.
func (m *Model[A]) EvaluateAll(s *spmd.Stream, micro int, next func(i int) (Batch, float32, error),
	around func(func() error) error) error {
	return m.pipe.Forward(s, micro, func(i int, in, out spmd.Buffer[A]) error {
		batch, scale, err := next(i)
		if err == nil {
			err = m.checkBatch(batch)
		}
		if err != nil {
			return err
		}
		e := m.on(s, batch, OnTop, ops.Evaluates)
		m.use(0, in)
		m.sendTo(out)
		return around(func() error {
			e.forward()
			if m.Cfg.Ends() {
				e.head(scale)
			}
			return e.Err
		})
	})
}

// sendTo makes the forward pass write into the buffer for the next stage, if there is one.
func (m *Model[A]) sendTo(out spmd.Buffer[A]) {
	if !m.Cfg.Ends() {
		m.act[len(m.act)-1].res3 = out
	}
}

// noLoss enqueues a Loss of 0 if this stage computes none.
func (m *Model[A]) noLoss(s *spmd.Stream) error {
	if m.Cfg.Ends() {
		return nil
	}
	return spmd.Fill(s, m.Loss, 0)
}

// embeddingsBackward enqueues the gradient of the embeddings from the gradient in dres, if this
// stage begins with them. If this stage has the head, the head has set the tokens' gradient. The
// other stage computes the rest.
func (e *enqueue[A]) embeddingsBackward() {
	m, wte, wpe := e.m, e.m.par.WTE.DW, e.m.par.WPE.DW
	if e.Cfg.Has(layout.RMSNorms) {
		e.EmbedNormedBackward(m.dres, e.batch.In, m.par.WTE.W)
		e.tablesGrad(e.batch.Sorted)
		return
	}
	if !m.Cfg.Begins() {
		if m.Cfg.Ends() {
			e.zero(wpe)
		}
		return
	}
	if !m.Cfg.Ends() {
		e.zero(wte)
	}
	e.gatherBeside(m.dres)
	e.arrived()
	e.EncoderBackward(wte, wpe, e.all(m.dres), e.batch.Sorted)
}

// EmbeddingGrads returns this rank's part of the reduced gradient of the embeddings.
func (m *State) EmbeddingGrads() spmd.Buffer[float32] {
	return m.reduced(layout.EmbeddingGroup(m.Groups))
}

// reduced returns this rank's part of the reduced gradient of a group.
func (m *State) reduced(i int) spmd.Buffer[float32] {
	switch mode := m.Cfg.Shard.Mode; {
	case mode == layout.ShardOff:
		g := m.Groups[i]
		return m.Grads.Slice(g.Off, g.Off+g.Len)
	case mode < layout.ShardGradients:
		return m.Grads.Slice(m.Sharded.Part(i))
	default:
		return m.Sharded.Grads.Slice(m.Sharded.Shard(i))
	}
}

// ByRows returns this rank's part of the reduced gradients that are sums over rows. Each rank that
// divides the layers has added only its rows, so the gradient is the sum over these ranks. The part
// is the same on all of them.
func (m *State) ByRows() []spmd.Buffer[float32] {
	var bs []spmd.Buffer[float32]
	if m.Cfg.Tensor.Parts() == 1 {
		return nil
	}
	for i := 0; i < len(m.Params); {
		p := m.Params[i]
		if i++; p.Decay || p.Cut.Run > 0 {
			continue
		}
		lo, hi := p.Off, p.Off+p.Len
		for ; i < len(m.Params); i++ { // one run of those that follow
			q := m.Params[i]
			if q.Decay || q.Cut.Run > 0 || q.Group != p.Group || q.Off-hi >= layout.ArenaAlign {
				break
			}
			hi = q.Off + q.Len
		}
		if b := m.reducedOf(p.Group, lo, hi); b.Len() > 0 {
			bs = append(bs, b)
		}
	}
	return bs
}

// reducedOf returns this rank's part of the reduced gradient of [lo, hi) of an arena,
// inside a group.
func (m *State) reducedOf(group, lo, hi int) spmd.Buffer[float32] {
	g := m.reduced(group)
	if m.Cfg.Shard.Mode == layout.ShardOff {
		off := m.Groups[group].Off
		return g.Slice(lo-off, hi-off)
	}
	_, at, n := m.Sharded.Own(group, lo, hi)
	first, _ := m.Sharded.Shard(group)
	return g.Slice(at-first, at-first+n)
}

// Counted returns what this rank adds to the norm of the reduced gradient: its part, less what
// another stage or part of the layers also has. If two ranks have the same, the first counts it.
func (m *State) Counted() []spmd.Buffer[float32] {
	var bs []spmd.Buffer[float32]
	if m.Cfg.Tensor.Rank == 0 {
		for i := range m.Groups {
			if i != layout.EmbeddingGroup(m.Groups) || m.Cfg.Begins() {
				bs = append(bs, m.reduced(i))
			}
		}
		return bs
	}
	for _, p := range m.Params {
		if p.Cut.Run == 0 || p.Group == layout.EmbeddingGroup(m.Groups) && !m.Cfg.Begins() {
			continue
		}
		bs = append(bs, m.reducedOf(p.Group, p.Off, p.Off+p.Len))
	}
	return bs
}
