package trainer

import (
	"errors"
	"iter"
	"time"

	"lockstep/apps/train/agree"
	"lockstep/apps/train/batches"
	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/optim"
	"lockstep/apps/train/weights"
	"lockstep/spmd"
	"lockstep/spmd/ddp"
)

// Config is what a trainer needs to know, beside the data.
type Config struct {
	Model       layout.Config
	Adam        optim.AdamConfig
	Rate        optim.Schedule
	Batch       int             // sequences of a micro-step
	Seq         int             // T
	GlobalBatch int             // sequences of a step, over all ranks
	Steps       int             // steps that the loader prepares
	ValBatches  int             // global batches of a validation
	Half        bool            // activations are bfloat16
	Graph       string          // --graph
	Weights     *weights.Folder // to begin with; nil where they are drawn
	BucketMiB   int             // of gradients in an all-reduce; 0 is what the device wants
	SkipBad     bool            // a step whose loss or norm is not finite is left out; else it is the last
}

// Trainer trains a model on this rank's part of every batch. One step:
//
//	g  = Σ over the ranks' micro-batches of ∇ loss/(global tokens)
//	p -= AdamW(g)
//
// The sum over the ranks runs on the reducer's stream, bucket by bucket, while
// the backward pass that produces the gradients goes on.
type Trainer struct {
	Config
	World     *spmd.World
	all       spmd.Comm // the ranks of the run
	c         spmd.Comm // those that share each batch: the others have other parts of the model
	pipe      spmd.Comm // those with the other stages of the model
	tensor    spmd.Comm // those with the other parts of the same layers
	tied      spmd.Comm // the two with a copy of the embeddings each; no rank elsewhere
	Data      *batches.Dataset
	State     *gpt.State // of model
	Model     gpt.Passes
	Optimizer *optim.AdamW
	reducer   *ddp.Reducer[float32]     // nil with --shard
	sharder   *gpt.Sharder              // nil without
	byRows    []spmd.Buffer[float32]    // see sumRows
	Stream    *spmd.Stream              // everything but what goes between ranks
	train     *batches.Feed             // nil before StartAt
	First     int                       // the step that train begins with
	Skipped   int                       // steps before it that were left out
	Scales    []int                     // of 8-bit floats at that step, as the checkpoint has them; nil where it has none that fit
	loaders   [2]*batches.Loader        // of training and validation
	results   [2]result                 // of the last two steps, by step number
	valLoss   spmd.Buffer[float64]      // (1), pinned
	graphs    map[microKind]*spmd.Graph // of the micro-steps met so far; nil where they are not to be graphs
	held      []gpt.Batch               // of a pipelined step, whose micro-batches are there at once
	close     []func() error            // in the order of making
}

// result is what one step leaves for the host, which reads it when the next step
// is already enqueued: the device never waits for the host.
type result struct {
	totals     spmd.Buffer[float64] // (2), pinned: the loss, and more than 0 where a rank was asked to end
	norm       spmd.Buffer[float32] // (1), pinned
	begin, end *spmd.Event
}

// New allocates everything. The weights are zero until Begin, or until a checkpoint is
// loaded and StartAt called. Every rank of c calls it.
func New(w *spmd.World, c spmd.Comm, cfg Config, data *batches.Dataset) (*Trainer, error) {
	t := &Trainer{Config: cfg, World: w, all: c, c: c, Data: data}
	if err := t.divide(); err != nil {
		return nil, err
	}
	if err := t.open(); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// keep has Close call f, before what was kept earlier.
func (t *Trainer) keep(f func() error) { t.close = append(t.close, f) }

func (t *Trainer) open() (err error) {
	if t.Stream, err = t.World.NewStream("train"); err != nil {
		return err
	}
	t.keep(t.Stream.Close)
	if err := t.openModel(); err != nil {
		return err
	}
	if err := t.tune(); err != nil {
		return err
	}
	if t.Optimizer, err = optim.NewAdamW(t.State, t.Config.Adam); err != nil {
		return err
	}
	t.Optimizer.SkipBad = t.SkipBad
	t.keep(t.Optimizer.Close)
	if err := t.connect(); err != nil {
		return err
	}
	if err := t.openResults(); err != nil {
		return err
	}
	if graphs, err := t.wantGraphs(); err != nil {
		return err
	} else if graphs {
		t.graphs = map[microKind]*spmd.Graph{}
		t.keep(t.closeGraphs)
	}
	t.keep(func() error {
		if t.train != nil {
			t.train.Stop()
		}
		return nil
	})
	return nil
}

// openModel makes the model, and the loaders of its micro-batches.
func (t *Trainer) openModel() (err error) {
	// No micro-step is larger than the largest rank's part of a batch.
	batch := min(t.Batch, spmd.ShardOf(max(t.GlobalBatch, t.ValSequences()), 0, t.c.Size()).Len)
	if t.State, t.Model, err = gpt.Open(t.World, t.Half, t.Config.Model, batch, t.Seq); err != nil {
		return err
	}
	t.keep(t.State.Close)
	if err := t.Model.ShareLayers(t.tensor); err != nil {
		return err
	}
	if t.pipelined() {
		if err := t.openPipeline(batch); err != nil {
			return err
		}
	}
	for i := range t.loaders {
		if t.loaders[i], err = batches.NewLoader(t.World, t.Data, batch, t.Config.Model.Vocab); err != nil {
			return err
		}
		t.keep(t.loaders[i].Close)
	}
	return nil
}

// openResults makes what steps and validations leave for the host.
func (t *Trainer) openResults() (err error) {
	for i := range t.results {
		r := &t.results[i]
		if r.totals, err = spmd.AllocPinned[float64](t.World, 2); err != nil {
			return err
		}
		t.keep(r.totals.Free)
		if r.norm, err = spmd.AllocPinned[float32](t.World, 1); err != nil {
			return err
		}
		t.keep(r.norm.Free)
		if r.begin, err = t.World.NewEvent(); err != nil {
			return err
		}
		if r.end, err = t.World.NewEvent(); err != nil {
			return err
		}
	}
	if t.valLoss, err = spmd.AllocPinned[float64](t.World, 1); err != nil {
		return err
	}
	t.keep(t.valLoss.Free)
	return nil
}

// connect makes what moves gradients, and with --shard weights, between the ranks.
func (t *Trainer) connect() (err error) {
	t.byRows = t.State.ByRows()
	if t.Config.Model.Shard.Mode != layout.ShardOff {
		if t.sharder, err = t.Model.NewSharder(t.c); err != nil {
			return err
		}
		t.keep(t.sharder.Close)
		if !t.divided() {
			t.Optimizer.MeasureNorm = func(s *spmd.Stream, norm spmd.Buffer[float32]) error { return t.sharder.Scatter.ClipNorm(0, norm, s) }
			return nil
		}
	}
	if t.divided() {
		n, err := ddp.NewNorm(t.all, t.counted()...)
		if err != nil {
			return err
		}
		t.keep(n.Close)
		t.Optimizer.MeasureNorm = func(s *spmd.Stream, norm spmd.Buffer[float32]) error { return n.Clip(0, norm, s) }
	}
	if t.sharder != nil {
		return nil
	}
	bucket := t.BucketMiB << 20
	switch {
	case bucket > 0:
	case t.World.OnHost(): // A small model, too, has several: the first are under way while backward goes on.
		bucket = min(4<<20, t.State.Grads.Bytes()/4)
	case t.World.Nodes() > 1: // There a network is slower than GPUs compute, and most of it is to be hidden.
		bucket = 64 << 20
	default: // An all-reduce beside matrix products takes multiprocessors from them, which costs more than it hides.
		bucket = 1 << 30
	}
	if t.reducer, err = ddp.NewReducer(t.c, t.State.GradGroups(), ddp.ReducerConfig{BucketBytes: bucket, Op: spmd.Sum}); err != nil {
		return err
	}
	t.keep(t.reducer.Close)
	return nil
}

// Buckets is in how many parts gradients go between the ranks.
func (t *Trainer) Buckets() int {
	if t.sharder != nil {
		return len(t.State.Groups)
	}
	return t.reducer.Buckets()
}

// gather enqueues that this rank has the weights that the last step has left, those that
// other ranks update too, as far as it has memory for them. Every rank of c calls it.
func (t *Trainer) gather() error {
	if t.sharder == nil {
		return nil
	}
	return t.sharder.Gather(t.Stream)
}

// Begin draws the start weights from seed, or reads them, and gives all ranks those of
// rank 0. The first step is then 0. It blocks. Every rank of c calls it.
func (t *Trainer) Begin(seed uint64) error {
	shared := t.State.Cfg.Shard.Mode == layout.ShardParameters
	var err error
	if t.Weights != nil {
		t.World.Log().Info().Str("from", t.Weights.Dir).Msg("reading the start weights")
	}
	switch {
	case t.Weights == nil:
		err = t.State.Init(seed) // the same numbers on every rank
	case shared:
		err = t.dealOut(t.Weights)
	case t.c.Rank() == 0:
		err = t.Weights.Load(t.State)
	}
	if err != nil {
		return err
	}
	if !shared {
		if err := ddp.SyncStart(t.c, t.State.Weights); err != nil {
			return err
		}
	}
	return t.StartAt(0)
}

// dealOut has rank 0 read the weights of a folder, and gives each rank those that it has. It
// blocks. Every rank of c calls it.
func (t *Trainer) dealOut(h *weights.Folder) error {
	const chunk = 1 << 20 // elements that go between ranks at a time
	stage, err := spmd.Alloc[float32](t.World, chunk)
	if err != nil {
		return err
	}
	defer stage.Free()
	for _, p := range t.State.Params {
		var x []float32
		if t.c.Rank() == 0 {
			x, err = h.Tensor(p.Uncut())
		}
		if _, err := agree.Among(t.World, t.c).Gather(nil, err); err != nil {
			return err
		}
		if t.c.Rank() != 0 {
			x = make([]float32, weights.Len(p.Uncut(), t.State.Cfg))
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
		if err := t.State.Set(p, x); err != nil {
			return err
		}
	}
	return nil
}

// StartAt makes step the next one, with the weights and moments that are there.
func (t *Trainer) StartAt(step int) error {
	t.First = step
	if err := t.Optimizer.Start(step, t.Skipped); err != nil {
		return err
	}
	if err := t.State.Refresh(t.Stream); err != nil {
		return err
	}
	if e := t.State.FP8; e != nil {
		err := error(nil)
		if t.Scales != nil {
			err = e.SetScales(t.Scales)
		} else {
			err = t.calibrate(step)
		}
		if err != nil {
			return err
		}
	}
	t.train = t.loaders[0].Feed(t.trainBatches(step))
	return nil
}

// Close ends the loader and frees everything, last made first.
func (t *Trainer) Close() error {
	var errs []error
	for i := len(t.close) - 1; i >= 0; i-- {
		errs = append(errs, t.close[i]())
	}
	t.close = nil
	return errors.Join(errs...)
}

// micro yields this rank's part of n sequences in micro-batches, as where they start. All
// of them are the same slice, filled anew: use one before the next is asked for.
func (t *Trainer) micro(n int, start func(i int) int) iter.Seq[[]int] {
	return func(yield func([]int) bool) {
		part := spmd.ShardOf(n, t.c.Rank(), t.c.Size())
		starts := make([]int, 0, min(t.Batch, max(1, part.Len))) // --batch may be beyond all memory
		for k := range t.microSteps(n) {
			starts = starts[:0]
			for i := k * t.Batch; i < min((k+1)*t.Batch, part.Len); i++ {
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
func (t *Trainer) microSteps(n int) int {
	if t.Config.Model.Shard.ScattersGrads() {
		return t.microStepsOf(n, 0) // which has the largest part
	}
	return t.microStepsOf(n, t.c.Rank())
}

// microStepsOf is how many it takes for the part of a rank.
func (t *Trainer) microStepsOf(n, rank int) int {
	return (spmd.ShardOf(n, rank, t.c.Size()).Len + t.Batch - 1) / t.Batch
}

// idle says whether this rank takes part in a micro-step only because the others do. Its
// loss then has the scale 0.
func (t *Trainer) idle(n, micro int) bool { return micro >= t.microStepsOf(n, t.c.Rank()) }

// scaleOf is the scale of the loss in a micro-step.
func (t *Trainer) scaleOf(k microKind) float32 {
	if k.idle {
		return 0
	}
	return t.lossScale()
}

// lossScale is 1 over the tokens of a step, of all ranks.
func (t *Trainer) lossScale() float32 { return float32(1 / (float64(t.GlobalBatch) * float64(t.Seq))) }

// trainBatches yields the micro-batches of the steps from first on.
func (t *Trainer) trainBatches(first int) iter.Seq[[]int] {
	return func(yield func([]int) bool) {
		for step := first; step < t.Steps; step++ {
			for starts := range t.micro(t.GlobalBatch, func(j int) int { return t.Data.Start(step, j) }) {
				if !yield(starts) {
					return
				}
			}
		}
	}
}

// AskToEnd lets the next step tell all ranks that this one is asked to end. Once the step
// has been read, Ended says so.
func (t *Trainer) AskToEnd() error { return spmd.Fill(t.Stream, t.State.Totals.Slice(1, 2), 1) }

// Ended says whether any rank has asked to end before the step, one of the last two
// and read, was enqueued. All ranks get the same answer.
func (t *Trainer) Ended(step int) bool { return t.results[step%len(t.results)].totals.At(1) > 0 }

// Read waits for a step, one of the last two, and returns its loss before the
// update, the norm of its gradient before clipping, and how long it took. Where one of
// the former is not finite that is an error, unless such steps are to be skipped.
// Every rank of c calls it for the same step.
func (t *Trainer) Read(step int) (loss, norm float64, took time.Duration, err error) {
	r := &t.results[step%len(t.results)]
	if err := r.end.Synchronize(); err != nil {
		return 0, 0, 0, err
	}
	loss, norm = r.totals.At(0), float64(r.norm.At(0))
	if optim.Bad(loss, norm) && !t.SkipBad {
		return loss, norm, 0, t.blame(step, loss, norm)
	}
	took, err = r.end.Elapsed(r.begin)
	return loss, norm, took, err
}

// ValSequences is the number of sequences in a validation.
func (t *Trainer) ValSequences() int {
	return min(t.ValBatches*t.GlobalBatch, t.Data.ValWindows())
}

// evaluate adds the loss of micro micro-batches, with weights that gather has gathered. next
// enqueues what brings one.
func (t *Trainer) evaluate(micro int, next func(i int) (gpt.Batch, float32, error)) error {
	around := func(commands func() error) error { return commands() }
	if x := t.sharder; x != nil {
		around = func(commands func() error) error { return x.Around(t.Stream, x.Forward, false, false, commands) }
	}
	if t.pipelined() {
		return t.Model.EvaluateAll(t.Stream, micro, next, around)
	}
	for i := range micro {
		batch, scale, err := next(i)
		if err != nil {
			return err
		}
		if err := around(func() error { return t.Model.Evaluate(t.Stream, batch, scale, false) }); err != nil {
			return err
		}
	}
	return nil
}

// Validate returns the mean loss on the validation sequences. It blocks. Every
// rank of c calls it.
func (t *Trainer) Validate() (float64, error) {
	n := t.ValSequences()
	scale := float32(1 / (float64(n) * float64(t.Seq)))
	f := t.loaders[1].Feed(t.micro(n, func(i int) int { return t.Data.ValStart(i, n) }))
	defer f.Stop()
	if err := spmd.Fill(t.Stream, t.State.Loss, 0); err != nil { // a rank may have no part
		return 0, err
	}
	if err := t.gather(); err != nil {
		return 0, err
	}
	next := func(i int) (gpt.Batch, float32, error) {
		batch, err := f.Next(t.Stream)
		if t.idle(n, i) {
			return batch, 0, err
		}
		return batch, scale, err
	}
	if err := t.evaluate(t.microSteps(n), next); err != nil {
		return 0, err
	}
	if err := t.countLoss(); err != nil {
		return 0, err
	}
	if err := spmd.AllReduce(t.all.On(t.Stream), t.State.Loss, t.State.Loss, spmd.Sum); err != nil {
		return 0, err
	}
	if err := spmd.Copy(t.Stream, t.valLoss, t.State.Loss); err != nil {
		return 0, err
	}
	if err := t.Stream.Synchronize(); err != nil {
		return 0, err
	}
	return t.valLoss.At(0), nil
}
