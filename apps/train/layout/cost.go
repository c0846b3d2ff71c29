package layout

import "lockstep/internal/schedule"

// rates are the speeds of one H200. Those that are not of kernels were fitted to whole steps of
// gpt2 with 64 sequences and with 8. Source: bench/results/train.
type rates struct {
	Rates
	products8 float64 // operations a second of products of 8-bit floats, with the casts
	update    float64 // seconds for a parameter that a rank updates
	layer     float64 // seconds of a layer and micro-batch that no kernel accounts for
}

var (
	measured = rates{Measured, 895e12, 8e-12, 70e-6}
	h200     = GPU{Flops: 989.4e12, Bandwidth: 4.8e12}
)

// on returns the rates of another GPU, in proportion to its peaks.
func (r rates) on(g GPU) rates {
	compute, memory := g.Flops/h200.Flops, g.Bandwidth/h200.Bandwidth
	kernels := Rates{Products: r.Products * compute, Attention: r.Attention * compute, Norm: r.Norm / memory,
		Logit: r.Logit / memory}
	return rates{kernels, r.products8 * compute, r.update / memory, r.layer}
}

// Job is how a step is divided, beside what Config says.
type Job struct {
	Replicas int // D
	Batch    int // sequences of a micro-batch
	Global   int // sequences of a step, over all replicas
	Seq      int // tokens of each

	Stages []Staging // of a pipeline; nil to find them
}

// Estimate is how long a step takes, in seconds. The lower end hides all messages that can be
// beside computation. The upper end hides none.
type Estimate struct {
	Low, High float64
	Bubble    float64 // the part of it in which stages of a pipeline wait
	Alone     float64 // how long it would take if what is between ranks took no time
}

// Messages returns the parts of both ends of an estimate that messages add.
func (e Estimate) Messages() (low, high float64) {
	return max(0, 1-e.Alone/e.Low), max(0, 1-e.Alone/e.High)
}

// Rates returns the tokens a second of both ends of an estimate.
func (e Estimate) Rates(j Job) (low, high float64) {
	n := float64(j.Global * j.Seq)
	return n / e.High, n / e.Low
}

// Step estimates a step of a model with bfloat16 activations. cfg has the parts of layers in
// Tensor.Ranks, and the stages in Stage.Stages.
func (m Machine) Step(cfg Config, j Job) Estimate { return m.step(measured.on(m.GPU), cfg, j) }

// section is the attention or the MLP of a layer, on a rank that may have a part of it.
type section struct {
	forward, backward float64 // seconds of the passes, alone
	again             float64 // seconds in which backward recomputes what was not kept
	params            float64 // of its matrices
}

// share has a rank's work for one micro-batch, and its memory.
type share struct {
	sections   []section // in the order of the forward pass
	head       section
	sums       Estimate // of what parts of layers say to each other
	vectors    float64  // parameters of the layers that are no matrices
	embeddings float64
}

// alone returns how long both passes take without messages.
func (s share) alone() times {
	t := times{forward: s.head.forward, backward: s.head.backward}
	for _, x := range s.sections {
		t.forward, t.backward = t.forward+x.forward, t.backward+x.again+x.backward
	}
	return t
}

// work returns how long both passes take together.
func (s share) work() float64 {
	t := s.alone()
	return t.forward + t.backward
}

// params returns how many parameters the rank has.
func (s share) params() float64 {
	n := s.vectors + s.embeddings
	for _, x := range s.sections {
		n += x.params
	}
	return n
}

func (m Machine) step(r rates, cfg Config, j Job) Estimate {
	stages := max(1, cfg.Stage.Stages)
	micro := ceil(ceil(j.Global, j.Replicas), j.Batch)
	parts := cfg.Tensor.Parts()
	here := max(1, m.PerNode/parts) // replicas in a node
	message := 0.0
	if stages > 1 {
		message = 2 * m.send(float64(2*j.Batch*j.Seq*cfg.Channels/parts), j.Replicas*parts < m.PerNode)
	}
	all := j.Stages
	switch {
	case stages == 1:
		all = []Staging{{}}
	case all == nil:
		all = StagesOf(cfg, stages, micro, j.Seq)
	}
	fast, slow, alone := make([]times, len(all)), make([]times, len(all)), make([]times, len(all))
	for i, stage := range all {
		cfg.Stage = stage
		s := m.shareOf(r, cfg, j)
		x := m.among(cfg, j, s, here, j.Replicas*parts*stages > m.PerNode)
		own := s.params()
		if cfg.Shard.Mode != ShardOff {
			own /= float64(j.Replicas)
		}
		// Messages between parts of layers go with the passes, in proportion. A message to another
		// stage goes with each pass.
		work := s.work()
		fast[i], slow[i], alone[i] = x.times(1+s.sums.Low/work, hidden), x.times(1+s.sums.High/work, shown), s.alone()
		for _, t := range []*times{&fast[i], &slow[i]} {
			t.forward, t.backward = t.forward+message/2, t.backward+message/2
		}
		for _, t := range []*times{&fast[i], &slow[i], &alone[i]} {
			t.end += own * r.update
		}
	}
	var e Estimate
	e.Alone, _ = length(alone, micro)
	e.Low, _ = length(fast, micro)
	e.High, e.Bubble = length(slow, micro)
	if stages > 1 {
		bytes := 4 * embeddings(cfg)
		if cfg.Shard.Mode != ShardOff {
			bytes /= float64(j.Replicas)
		}
		tied := m.allReduce(bytes, 2, 1)
		if j.Replicas*parts*(stages-1) < m.PerNode {
			tied = m.allReduce(bytes, 2, 2)
		}
		e.Low, e.High = e.Low+tied, e.High+tied
	}
	return e
}

// length returns how long a step of so many micro-batches takes through stages, and the part of it
// in which they wait for each other.
func length(stages []times, micro int) (seconds, bubble float64) {
	passes := make([]schedule.PassTime, len(stages))
	for i, t := range stages {
		passes[i] = schedule.PassTime{Forward: t.forward, Backward: t.backward}
	}
	s := schedule.New(passes, micro)
	// A stage that begins later than its first micro-batch comes delays the others. A stage that is
	// done goes on to its update.
	late, first := 0.0, 0.0
	for i, t := range stages {
		late, first = max(late, t.begin-first), first+t.forward
		seconds = max(seconds, s.Ends[i]+t.end)
		bubble += s.Idle[i] / float64(len(stages))
	}
	if seconds += late; len(stages) == 1 {
		return seconds, 0
	}
	return seconds, bubble * s.Length / seconds
}

// shareOf returns the share of a rank of a stage.
func (m Machine) shareOf(r rates, cfg Config, j Job) share {
	rows, C, T := float64(j.Batch*j.Seq), float64(cfg.Channels), float64(j.Seq)
	layers, parts := cfg.OwnLayers(), float64(cfg.Tensor.Parts())
	product := func(weights float64, eight bool) (forward, backward float64) {
		if t := 2 * rows * weights / r.Products; !eight {
			return t, 2 * t
		}
		t8 := 2 * rows * weights / r.products8
		return t8, t8 + 2*rows*weights/r.Products // the gradients of weights stay bfloat16
	}
	eight := cfg.FP8 == FP8All
	products := r.Products
	if eight {
		products = r.products8
	}
	flash := rows * T * C / parts / r.Attention
	beside := rows*C/parts*r.Norm/2 + r.layer/2 // of all but products, in a half of a layer
	half := func(weights float64) section {
		f, b := product(weights/parts, eight)
		return section{forward: f + beside/3, backward: b + beside*2/3, params: weights / parts}
	}
	attn, mlp := half(4*C*C), half(8*C*C)
	attn.forward, attn.backward = attn.forward+2*flash, attn.backward+5*flash
	var s share
	for l := range layers {
		a, b := attn, mlp
		if cfg.Recomputes(l) {
			b.again = 2 * rows * 4 * C * C / parts / products
			if cfg.Recompute == RecomputeBlock {
				a.again = b.again + 2*flash + 2*beside/3
			}
		}
		s.sections = append(s.sections, a, b)
	}
	if cfg.Ends() {
		_, own, _ := cfg.OwnVocab()
		f, b := product(float64(own)*C, cfg.FP8 != FP8Off)
		s.head = section{forward: f + rows*float64(own)*r.Logit, backward: b}
	}
	if parts > 1 {
		s.sums = m.sums(r, cfg, rows)
	}
	s.vectors = float64(layers) * 13 * C
	if cfg.Embeds() {
		s.embeddings = embeddings(cfg)
	}
	return s
}

// sums estimates the messages of ranks that divide layers, in both passes: all-gathers
// before a product and reduce-scatters behind it. They go in pieces, each beside the product
// of the next piece.
//
// Backward, scatters go beside the product for the weights' gradient, and inputs are gathered again
// beside another product. Forward products of 8-bit floats gather their operands, in half of the
// bytes. The head hides the exchange about logits. Nothing hides the embeddings' messages.
func (m Machine) sums(r rates, cfg Config, rows float64) Estimate {
	C, layers := float64(cfg.Channels), float64(cfg.OwnLayers())
	one := m.allReduce(2*rows*C, cfg.Tensor.Ranks, m.PerNode) / 2
	pieces := max(2, min(rows/4096, 4))
	product := func(weights float64) float64 { return 2 * rows * weights / float64(cfg.Tensor.Ranks) }
	// input is the time to gather a forward product's input, at products operations a second.
	input, products := one, r.Products
	if cfg.FP8 == FP8All {
		input, products = one/2, r.products8
	}
	inPieces := func(t, weights float64) float64 { return max(t/pieces, t-product(weights)/products*(pieces-1)/pieces) }
	beside := func(weights float64) float64 { return max(0, one-product(weights)/r.Products) }
	// Forward, these are the inputs of qkv and fc and the outputs of proj and proj2. Backward it
	// is the reverse.
	e := Estimate{
		// messages that begin or end in pieces
		Low: layers * (inPieces(input, 3*C*C) + inPieces(input, 4*C*C) + 2*inPieces(one, 4*C*C) + 2*inPieces(one, C*C) +
			2*beside(3*C*C) + 2*beside(4*C*C)),
		High: layers * (2*input + 8*one),
	}
	for l := range cfg.OwnLayers() {
		switch {
		case !cfg.Recomputes(l):
		case cfg.Recompute == RecomputeGELU:
			e.Low, e.High = e.Low+inPieces(input, 4*C*C), e.High+input
		default:
			e.Low, e.High = e.Low+inPieces(input, 3*C*C)+inPieces(one, C*C)+inPieces(input, 4*C*C), e.High+2*input+one
		}
	}
	if cfg.Begins() {
		e.Low, e.High = e.Low+2*one, e.High+2*one
	}
	if cfg.Ends() {
		_, own, _ := cfg.OwnVocab()
		head := float64(own) * C * float64(cfg.Tensor.Ranks)
		told := m.allReduce(4*3*rows*float64(cfg.Tensor.Ranks), cfg.Tensor.Ranks, m.PerNode) / 2 // an all-gather
		if cfg.FP8 == FP8Head {
			products = r.products8
		}
		e.Low, e.High = e.Low+inPieces(one, head)+beside(head), e.High+told+2*one
	}
	return e
}

// embeddings returns how many parameters of the embeddings a rank has.
func embeddings(cfg Config) float64 {
	_, rows, _ := cfg.OwnVocab()
	return float64((rows + cfg.SeqMax) * cfg.Channels)
}

func ceil(a, b int) int { return (a + b - 1) / b }
