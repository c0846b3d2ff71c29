package cost

import (
	"lockstep/apps/train/layout"
	"lockstep/spmd/ddp"
)

// rates are what one H200 does: besides that of its kernels fitted to whole steps of gpt2 with 64 sequences and with 8.
// Source: bench/results/train.
type rates struct {
	layout.Rates
	products8 float64 // operations a second of products of 8-bit floats, with the casts
	update    float64 // seconds for a parameter that a rank updates
	layer     float64 // seconds of a layer and micro-batch that no kernel accounts for
}

var (
	measured = rates{layout.Measured, 895e12, 8e-12, 70e-6}
	h200     = GPU{Flops: 989.4e12, Bandwidth: 4.8e12}
)

// on are the rates of another GPU, in proportion to its peaks.
func (r rates) on(g GPU) rates {
	compute, memory := g.Flops/h200.Flops, g.Bandwidth/h200.Bandwidth
	kernels := layout.Rates{Products: r.Products * compute, Attention: r.Attention * compute, Norm: r.Norm / memory, Logit: r.Logit / memory}
	return rates{kernels, r.products8 * compute, r.update / memory, r.layer}
}

// Job is how a step is divided, besides what layout.Config says of it.
type Job struct {
	Replicas int // D
	Batch    int // sequences of a micro-batch
	Global   int // sequences of a step, over all replicas
	Seq      int // tokens of each

	Stages []layout.Staging // of a pipeline; nil where they are to be found
}

// Estimate is how long a step takes, in seconds: from where all that is between ranks and can be beside computation is
// hidden by it, to where nothing is.
type Estimate struct {
	Low, High float64
	Bubble    float64 // the part of it in which stages of a pipeline wait
}

// Rates are the tokens a second that an estimate of a job comes to.
func (e Estimate) Rates(j Job) (low, high float64) {
	n := float64(j.Global * j.Seq)
	return n / e.High, n / e.Low
}

// Step estimates a step of a model with bfloat16 activations. cfg has the parts of layers in Tensor.Ranks, and the stages
// in Stage.Stages.
func (m Machine) Step(cfg layout.Config, j Job) Estimate { return m.step(measured.on(m.GPU), cfg, j) }

// share is what a rank does for one micro-batch, and what it has.
type share struct {
	forward, backward float64  // seconds of both passes, alone
	sums              Estimate // of what parts of layers say to each other
	layers            float64  // parameters of the layers
	rest              float64  // and of the embeddings
}

func (m Machine) step(r rates, cfg layout.Config, j Job) Estimate {
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
		all = []layout.Staging{{}}
	case all == nil:
		all = layout.StagesOf(cfg, stages, micro, j.Seq)
	}
	// What parts of layers say to each other goes with the passes, in proportion; a message with each pass.
	low, high, least, most := make([]ddp.PassTime, len(all)), make([]ddp.PassTime, len(all)), make([]float64, len(all)), make([]float64, len(all))
	for i, stage := range all {
		cfg.Stage = stage
		s := m.shareOf(r, cfg, j)
		e := m.shared(cfg, j, s, micro, here)
		own := s.layers + s.rest
		if cfg.Shard.Mode != layout.ShardOff {
			own /= float64(j.Replicas)
		}
		low[i], high[i] = s.passes(s.sums.Low, message), s.passes(s.sums.High, message)
		least[i], most[i] = e.Low+own*r.update, e.High+own*r.update
	}
	var e Estimate
	fast, slow := ddp.NewSchedule(low, micro), ddp.NewSchedule(high, micro)
	for i := range all { // a stage goes on to its update when it is done
		e.Low, e.High = max(e.Low, fast.Ends[i]+least[i]), max(e.High, slow.Ends[i]+most[i])
		e.Bubble += slow.Idle[i] / float64(len(all))
	}
	e.Bubble *= slow.Length / e.High
	if stages > 1 {
		tied := m.allReduce(4*embeddings(cfg), 2, 1)
		if j.Replicas*parts*(stages-1) < m.PerNode {
			tied = m.allReduce(4*embeddings(cfg), 2, 2)
		}
		e.Low, e.High = e.Low+tied, e.High+tied
	}
	return e
}

// passes are how long those of a micro-batch take, with what is said in both of them, and messages, half of it in each.
func (s share) passes(sums, message float64) ddp.PassTime {
	both := s.forward + s.backward
	return ddp.PassTime{Forward: s.forward + sums*s.forward/both + message/2, Backward: s.backward + sums*s.backward/both + message/2}
}

// shareOf is what a rank of a stage does.
func (m Machine) shareOf(r rates, cfg layout.Config, j Job) share {
	rows, C, T := float64(j.Batch*j.Seq), float64(cfg.Channels), float64(j.Seq)
	layers, parts := float64(cfg.OwnLayers()), float64(cfg.Tensor.Parts())
	product := func(weights float64, eight bool) (forward, backward float64) {
		if t := 2 * rows * weights / r.Products; !eight {
			return t, 2 * t
		}
		t8 := 2 * rows * weights / r.products8
		return t8, t8 + 2*rows*weights/r.Products // the gradients of weights stay bfloat16
	}
	var s share
	s.forward, s.backward = product(12*C*C*layers/parts, cfg.FP8 == layout.FP8All)
	flash := rows * T * C * layers / parts / r.Attention
	norms := rows * C * layers / parts * r.Norm
	s.forward += 2*flash + norms/3 + layers*r.layer/3
	s.backward += 5*flash + norms*2/3 + layers*r.layer*2/3
	if again := max(0, layers-1); again > 0 {
		products := r.Products
		if cfg.FP8 == layout.FP8All {
			products = r.products8
		}
		switch cfg.Recompute {
		case layout.RecomputeGELU:
			s.backward += 2 * rows * 4 * C * C * again / parts / products
		case layout.RecomputeBlock:
			s.backward += (2*rows*8*C*C/products+2*rows*T*C/r.Attention+rows*C*r.Norm/3)*again/parts + r.layer*again/3
		}
	}
	if cfg.Ends() {
		_, own, _ := cfg.OwnVocab()
		f, b := product(float64(own)*C, cfg.FP8 != layout.FP8Off)
		s.forward += f + rows*float64(own)*r.Logit
		s.backward += b
	}
	if parts > 1 {
		s.sums = m.sums(r, cfg, rows)
	}
	s.layers = layers * (12*C*C/parts + 13*C)
	if cfg.Embeds() {
		s.rest = embeddings(cfg)
	}
	return s
}

// sums are what ranks that divide layers say to each other in both passes: all-gathers before a product and
// reduce-scatters behind it. They go in pieces, each beside the product of the next; backward the scatters go beside the
// product for the gradient of the weights, and what was gathered forward is gathered again beside another product. Forward
// products of 8-bit floats have their operands gathered so, in half the bytes. What
// ranks tell each other of the logits is hidden by the head. The embeddings have nothing to hide theirs.
func (m Machine) sums(r rates, cfg layout.Config, rows float64) Estimate {
	C, layers := float64(cfg.Channels), float64(cfg.OwnLayers())
	one := m.allReduce(2*rows*C, cfg.Tensor.Ranks, m.PerNode) / 2
	pieces := max(2, min(rows/4096, 4))
	product := func(weights float64) float64 { return 2 * rows * weights / float64(cfg.Tensor.Ranks) }
	// input is what is gathered for a product forward, at products operations a second.
	input, products := one, r.Products
	if cfg.FP8 == layout.FP8All {
		input, products = one/2, r.products8
	}
	inPieces := func(t, weights float64) float64 { return max(t/pieces, t-product(weights)/products*(pieces-1)/pieces) }
	beside := func(weights float64) float64 { return max(0, one-product(weights)/r.Products) }
	// Forward the inputs of qkv and fc, the outputs of proj and proj2; backward the reverse.
	e := Estimate{
		Low: layers * (inPieces(input, 3*C*C) + inPieces(input, 4*C*C) + 2*inPieces(one, 4*C*C) + 2*inPieces(one, C*C) + // what begins or ends in pieces
			2*beside(3*C*C) + 2*beside(4*C*C)),
		High: layers * (2*input + 8*one),
	}
	if again := layers - 1; again > 0 {
		switch cfg.Recompute {
		case layout.RecomputeGELU:
			e.Low, e.High = e.Low+again*inPieces(input, 4*C*C), e.High+again*input
		case layout.RecomputeBlock:
			e.Low, e.High = e.Low+again*(inPieces(input, 3*C*C)+inPieces(one, C*C)+inPieces(input, 4*C*C)), e.High+again*(2*input+one)
		}
	}
	if cfg.Begins() {
		e.Low, e.High = e.Low+2*one, e.High+2*one
	}
	if cfg.Ends() {
		_, own, _ := cfg.OwnVocab()
		head := float64(own) * C * float64(cfg.Tensor.Ranks)
		told := m.allReduce(4*3*rows*float64(cfg.Tensor.Ranks), cfg.Tensor.Ranks, m.PerNode) / 2 // an all-gather
		if cfg.FP8 == layout.FP8Head {
			products = r.products8
		}
		e.Low, e.High = e.Low+inPieces(one, head)+beside(head), e.High+told+2*one
	}
	return e
}

// embeddings is how many parameters of them a rank has.
func embeddings(cfg layout.Config) float64 {
	_, rows, _ := cfg.OwnVocab()
	return float64((rows + cfg.SeqMax) * cfg.Channels)
}

// shared is what the replicas say to each other in a step: hidden as far as it can be, and not at all.
func (m Machine) shared(cfg layout.Config, j Job, s share, micro, here int) Estimate {
	if j.Replicas == 1 {
		return Estimate{}
	}
	half := func(bytes float64) float64 { return m.allReduce(bytes, j.Replicas, here) / 2 } // a reduce-scatter, or an all-gather
	behind := func(t, pass float64) float64 { return max(0, t-pass) }
	own, n := s.layers+s.rest, float64(micro)
	gradients, weights := half(4*own), half(4*own)
	var e Estimate
	switch cfg.Shard.Mode {
	case layout.ShardOff:
		e.High = gradients + weights
		if e.Low = e.High; j.Replicas > here { // else the sum comes all at once, behind the last pass
			e.Low = behind(e.High, s.backward)
		}
	case layout.ShardOptimizer:
		e = Estimate{Low: behind(gradients, s.backward) + behind(weights, s.forward), High: gradients + weights}
	case layout.ShardGradients:
		e = Estimate{Low: n*behind(gradients, s.backward) + behind(weights, s.forward), High: n*gradients + weights}
	default:
		layers, kept := half(2*s.layers), half(4*s.rest)
		e = Estimate{Low: n*(behind(layers, s.forward)+behind(layers+gradients, s.backward)) + kept, High: n*(2*layers+gradients) + kept}
	}
	return e
}

func ceil(a, b int) int { return (a + b - 1) / b }
