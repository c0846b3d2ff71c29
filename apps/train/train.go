package main

import (
	"errors"
	"iter"
	"time"

	"lockstep/spmd"
	"lockstep/spmd/ddp"
)

// trainConfig is what a trainer needs to know, beside the data.
type trainConfig struct {
	model       Config
	adam        AdamConfig
	rate        Schedule
	batch       int       // sequences of a micro-step
	seq         int       // T
	globalBatch int       // sequences of a step, over all ranks
	steps       int       // steps that the loader prepares
	valBatches  int       // global batches of a validation
	half        bool      // activations are bfloat16
	graph       string    // --graph
	weights     *hfFolder // to begin with; nil where they are drawn
	bucketMiB   int       // of gradients in an all-reduce; 0 is what the device wants
	skipBad     bool      // a step whose loss or norm is not finite is left out; else it is the last
}

func (o *options) trainConfig() trainConfig {
	return trainConfig{model: o.cfg, adam: o.adam, rate: o.rate, batch: o.batch, seq: o.seq, globalBatch: o.globalBatch, steps: o.steps,
		valBatches: o.valBatches, half: o.dtype == "bfloat16", graph: o.graph, weights: o.weights, bucketMiB: o.bucketMiB, skipBad: o.skipBad}
}

// trainer trains a model on this rank's part of every batch. One step:
//
//	g  = Σ over the ranks' micro-batches of ∇ loss/(global tokens)
//	p -= AdamW(g)
//
// The sum over the ranks runs on the reducer's stream, bucket by bucket, while
// the backward pass that produces the gradients goes on.
type trainer struct {
	trainConfig
	w       *spmd.World
	c       spmd.Comm // the ranks that share each batch
	data    *dataset
	state   *State // of model
	model   passes
	adam    *AdamW
	reducer *ddp.Reducer[float32] // nil with --shard
	sharder *sharder              // nil without
	s       *spmd.Stream          // everything but what goes between ranks
	train   *feed                 // nil before begin or restore
	first   int                   // the step that train begins with
	skipped int                   // steps before it that were left out
	scales  []int                 // of 8-bit floats at that step, as the checkpoint has them; nil where it has none that fit
	loaders [2]*loader            // of training and validation
	results [2]result             // of the last two steps, by step number
	valLoss spmd.Buffer[float64]
	graphs  map[microKind]*spmd.Graph // of the micro-steps met so far; nil where they are not to be graphs
	close   []func() error            // in the order of making
}

// passes is what a Model does, whatever the type of its activations.
type passes interface {
	ForwardBackward(s *spmd.Stream, batch Batch, scale float32, first bool, ready func(group int) error) error
	Calibrate(s *spmd.Stream, batch Batch, scale float32) error
	Evaluate(s *spmd.Stream, batch Batch, scale float32, first bool) error
	Logits(s *spmd.Stream, tokens spmd.Buffer[int32]) (spmd.Buffer[float32], error)
	Attention() (path, why string)
	newSharder(c spmd.Comm) (*sharder, error)
}

// newModel makes a Model with bfloat16 or float32 activations.
func newModel(w *spmd.World, half bool, cfg Config, maxBatch, maxSeq int) (*State, passes, error) {
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

// result is what one step leaves for the host, which reads it when the next step
// is already enqueued: the device never waits for the host.
type result struct {
	totals     spmd.Buffer[float64] // (2), pinned: the loss, and more than 0 where a rank was asked to end
	norm       spmd.Buffer[float32] // (1), pinned
	begin, end *spmd.Event
}

// newTrainer allocates everything. The weights are zero until begin or restore. Every
// rank of c calls it.
func newTrainer(w *spmd.World, c spmd.Comm, cfg trainConfig, data *dataset) (*trainer, error) {
	if cfg.model.Shard.Mode != shardOff {
		cfg.model.Shard.Rank, cfg.model.Shard.Ranks = c.Rank(), c.Size()
	}
	t := &trainer{trainConfig: cfg, w: w, c: c, data: data}
	if err := t.open(); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *trainer) open() (err error) {
	keep := func(f func() error) { t.close = append(t.close, f) }
	if t.s, err = t.w.NewStream("train"); err != nil {
		return err
	}
	keep(t.s.Close)
	// No micro-step is larger than the largest rank's part of a batch.
	batch := min(t.batch, spmd.ShardOf(max(t.globalBatch, t.valSequences()), 0, t.c.Size()).Len)
	if t.state, t.model, err = newModel(t.w, t.half, t.trainConfig.model, batch, t.seq); err != nil {
		return err
	}
	keep(t.state.Close)
	for i := range t.loaders {
		if t.loaders[i], err = newLoader(t.w, t.data, batch, t.trainConfig.model.Vocab); err != nil {
			return err
		}
		keep(t.loaders[i].Close)
	}
	if err := t.tune(); err != nil {
		return err
	}
	if t.adam, err = NewAdamW(t.state, t.trainConfig.adam); err != nil {
		return err
	}
	t.adam.SkipBad = t.skipBad
	keep(t.adam.Close)
	if err := t.connect(keep); err != nil {
		return err
	}
	for i := range t.results {
		r := &t.results[i]
		if r.totals, err = spmd.AllocPinned[float64](t.w, 2); err != nil {
			return err
		}
		keep(r.totals.Free)
		if r.norm, err = spmd.AllocPinned[float32](t.w, 1); err != nil {
			return err
		}
		keep(r.norm.Free)
		if r.begin, err = t.w.NewEvent(); err != nil {
			return err
		}
		if r.end, err = t.w.NewEvent(); err != nil {
			return err
		}
	}
	if graphs, err := t.wantGraphs(); err != nil {
		return err
	} else if graphs {
		t.graphs = map[microKind]*spmd.Graph{}
		keep(t.closeGraphs)
	}
	if t.valLoss, err = spmd.AllocPinned[float64](t.w, 1); err != nil {
		return err
	}
	keep(t.valLoss.Free)
	keep(func() error {
		if t.train != nil {
			t.train.stop()
		}
		return nil
	})
	return nil
}

// connect makes what moves gradients, and with --shard weights, between the ranks.
func (t *trainer) connect(keep func(func() error)) (err error) {
	if t.trainConfig.model.Shard.Mode != shardOff {
		if t.sharder, err = t.model.newSharder(t.c); err != nil {
			return err
		}
		keep(t.sharder.Close)
		t.adam.measure = func(s *spmd.Stream, norm spmd.Buffer[float32]) error { return t.sharder.scatter.ClipNorm(0, norm, s) }
		return nil
	}
	bucket := t.bucketMiB << 20
	switch {
	case bucket > 0:
	case t.w.OnHost(): // A small model, too, has several: the first are under way while backward goes on.
		bucket = min(4<<20, t.state.Grads.Bytes()/4)
	case t.w.Nodes() > 1: // There a network is slower than GPUs compute, and most of it is to be hidden.
		bucket = 64 << 20
	default: // An all-reduce beside matrix products takes multiprocessors from them, which costs more than it hides.
		bucket = 1 << 30
	}
	if t.reducer, err = ddp.NewReducer(t.c, t.state.GradGroups(), ddp.ReducerConfig{BucketBytes: bucket, Op: spmd.Sum}); err != nil {
		return err
	}
	keep(t.reducer.Close)
	return nil
}

// buckets is in how many parts gradients go between the ranks.
func (t *trainer) buckets() int {
	if t.sharder != nil {
		return len(t.state.Groups)
	}
	return t.reducer.Buckets()
}

// gather enqueues that this rank has the weights that the last step has left, those that
// other ranks update too, as far as it has memory for them. Every rank of c calls it.
func (t *trainer) gather() error {
	if t.sharder == nil {
		return nil
	}
	return t.sharder.gather(t.s)
}

// begin draws the start weights from seed, or reads them, and gives all ranks those of
// rank 0. The first step is then 0. It blocks. Every rank of c calls it.
func (t *trainer) begin(seed uint64) error {
	shared := t.state.Cfg.Shard.Mode == shardParameters
	var err error
	if t.weights != nil {
		t.w.Log().Info().Str("from", t.weights.dir).Msg("reading the start weights")
	}
	switch {
	case t.weights == nil:
		err = t.state.Init(seed) // the same numbers on every rank
	case shared:
		err = t.dealOut(t.weights)
	case t.c.Rank() == 0:
		err = t.weights.load(t.state)
	}
	if err != nil {
		return err
	}
	if !shared {
		if err := ddp.SyncStart(t.c, t.state.Weights); err != nil {
			return err
		}
	}
	return t.startAt(0)
}

// dealOut has rank 0 read the weights of a folder, and gives each rank those that it has. It
// blocks. Every rank of c calls it.
func (t *trainer) dealOut(h *hfFolder) error {
	const chunk = 1 << 20 // elements that go between ranks at a time
	stage, err := spmd.Alloc[float32](t.w, chunk)
	if err != nil {
		return err
	}
	defer stage.Free()
	for _, p := range t.state.Params {
		var x []float32
		if t.c.Rank() == 0 {
			x, err = h.tensor(p)
		}
		if _, err := commGroup(t.w, t.c).gather(nil, err); err != nil {
			return err
		}
		if t.c.Rank() != 0 {
			x = make([]float32, hfLen(p, t.state.Cfg))
		}
		for lo := 0; lo < len(x); lo += chunk {
			piece := x[lo:min(lo+chunk, len(x))]
			b := stage.Slice(0, len(piece))
			if err := b.CopyFrom(piece); err != nil {
				return err
			}
			if err := spmd.Broadcast(t.c, b, 0); err != nil {
				return err
			}
			if err := b.CopyTo(piece); err != nil {
				return err
			}
		}
		if err := t.state.set(p, x); err != nil {
			return err
		}
	}
	return nil
}

// startAt makes step the next one, with the weights and moments that are there.
func (t *trainer) startAt(step int) error {
	t.first = step
	if err := t.adam.Start(step, t.skipped); err != nil {
		return err
	}
	if err := t.state.Refresh(t.s); err != nil {
		return err
	}
	if e := t.state.fp8; e != nil {
		err := error(nil)
		if t.scales != nil {
			err = e.setScales(t.scales)
		} else {
			err = t.calibrate(step)
		}
		if err != nil {
			return err
		}
	}
	t.train = t.loaders[0].feed(t.trainBatches(step))
	return nil
}

// Close ends the loader and frees everything, last made first.
func (t *trainer) Close() error {
	var errs []error
	for i := len(t.close) - 1; i >= 0; i-- {
		errs = append(errs, t.close[i]())
	}
	t.close = nil
	return errors.Join(errs...)
}

// micro yields this rank's part of n sequences in micro-batches. All of them are
// the same slice, filled anew: it is to be used before the next is asked for.
func (t *trainer) micro(n int, start func(i int) int) iter.Seq[[]int] {
	return func(yield func([]int) bool) {
		part := spmd.ShardOf(n, t.c.Rank(), t.c.Size())
		starts := make([]int, 0, min(t.batch, max(1, part.Len))) // --batch may be beyond all memory
		for k := range t.microSteps(n) {
			starts = starts[:0]
			for i := k * t.batch; i < min((k+1)*t.batch, part.Len); i++ {
				starts = append(starts, start(part.Off+i))
			}
			if t.idle(n, k) {
				starts = append(starts, start(min(part.Off, n-1))) // any will do
			}
			if !yield(starts) {
				return
			}
		}
	}
}

// microSteps is how many micro-batches micro yields. Where every micro-step concerns all ranks,
// it is as many on all of them.
func (t *trainer) microSteps(n int) int {
	if t.state.Cfg.Shard.scattersGrads() {
		return t.microStepsOf(n, 0) // which has the largest part
	}
	return t.microStepsOf(n, t.c.Rank())
}

// microStepsOf is how many it takes for the part of a rank.
func (t *trainer) microStepsOf(n, rank int) int {
	return (spmd.ShardOf(n, rank, t.c.Size()).Len + t.batch - 1) / t.batch
}

// idle says whether this rank takes part in a micro-step for the others' sake only: what it
// learns from there has the scale 0.
func (t *trainer) idle(n, micro int) bool { return micro >= t.microStepsOf(n, t.c.Rank()) }

// scaleOf is the scale of the loss in a micro-step.
func (t *trainer) scaleOf(k microKind) float32 {
	if k.idle {
		return 0
	}
	return t.lossScale()
}

// lossScale is 1 over the tokens of a step, of all ranks.
func (t *trainer) lossScale() float32 { return float32(1 / (float64(t.globalBatch) * float64(t.seq))) }

// trainBatches yields the micro-batches of the steps from first on.
func (t *trainer) trainBatches(first int) iter.Seq[[]int] {
	return func(yield func([]int) bool) {
		for step := first; step < t.steps; step++ {
			for starts := range t.micro(t.globalBatch, func(j int) int { return t.data.start(step, j) }) {
				if !yield(starts) {
					return
				}
			}
		}
	}
}

// askToEnd lets the next step tell all ranks that this one is to end: ended says so
// when the step has been read.
func (t *trainer) askToEnd() error { return spmd.Fill(t.s, t.state.Totals.Slice(1, 2), 1) }

// ended says whether any rank has asked to end before the step, one of the last two
// and read, was enqueued. All ranks get the same answer.
func (t *trainer) ended(step int) bool { return t.results[step%len(t.results)].totals.At(1) > 0 }

// read waits for a step, one of the last two, and returns its loss before the
// update, the norm of its gradient before clipping, and how long it took. Where one of
// the former is not finite that is an error, unless such steps are to be skipped.
// Every rank of c calls it for the same step.
func (t *trainer) read(step int) (loss, norm float64, took time.Duration, err error) {
	r := &t.results[step%len(t.results)]
	if err := r.end.Synchronize(); err != nil {
		return 0, 0, 0, err
	}
	loss, norm = r.totals.At(0), float64(r.norm.At(0))
	if bad(loss, norm) && !t.skipBad {
		return loss, norm, 0, t.blame(step, loss, norm)
	}
	took, err = r.end.Elapsed(r.begin)
	return loss, norm, took, err
}

// valSequences is the number of sequences in a validation.
func (t *trainer) valSequences() int {
	return min(t.valBatches*t.globalBatch, t.data.valWindows())
}

// evaluate adds the loss of a micro-batch, with weights that gather has gathered.
func (t *trainer) evaluate(batch Batch, scale float32) error {
	commands := func() error { return t.model.Evaluate(t.s, batch, scale, false) }
	if x := t.sharder; x != nil {
		return x.around(t.s, x.forward, false, false, commands)
	}
	return commands()
}

// validate returns the mean loss on the validation sequences. It blocks. Every
// rank of c calls it.
func (t *trainer) validate() (float64, error) {
	n := t.valSequences()
	scale := float32(1 / (float64(n) * float64(t.seq)))
	f := t.loaders[1].feed(t.micro(n, func(i int) int { return t.data.valStart(i, n) }))
	defer f.stop()
	if err := spmd.Fill(t.s, t.state.Loss, 0); err != nil { // a rank may have no part
		return 0, err
	}
	if err := t.gather(); err != nil {
		return 0, err
	}
	for i := range t.microSteps(n) {
		batch, err := f.next(t.s)
		if err != nil {
			return 0, err
		}
		by := scale
		if t.idle(n, i) {
			by = 0
		}
		if err := t.evaluate(batch, by); err != nil {
			return 0, err
		}
	}
	if err := spmd.AllReduce(t.c.On(t.s), t.state.Loss, t.state.Loss, spmd.Sum); err != nil {
		return 0, err
	}
	if err := spmd.Copy(t.s, t.valLoss, t.state.Loss); err != nil {
		return 0, err
	}
	if err := t.s.Synchronize(); err != nil {
		return 0, err
	}
	return t.valLoss.At(0), nil
}
