package trainer

import (
	"errors"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/spmd"
)

// Config is the settings of a trainer.
type Config struct {
	Model       layout.Config
	Adam        AdamConfig
	Rate        Schedule
	Batch       int            // sequences of a micro-step
	Seq         int            // T
	GlobalBatch int            // sequences of a step, over all ranks
	Steps       int            // steps that the loader prepares
	ValBatches  int            // global batches of a validation
	Half        bool           // activations are bfloat16
	Graph       string         // --graph
	Weights     *layout.Folder // to begin with; nil if they are drawn
	BucketMiB   int            // of gradients in an all-reduce; 0 is what the device wants
	// how many steps in a row are left out if their loss or norm is not
	// finite; one more ends the run
	SkipBad int
}

// Trainer trains a model on this rank's part of every batch. One step:
//
//	g  = Σ over the ranks' micro-batches of ∇ loss/(global tokens)
//	p -= AdamW(g)
//
// The gradients are summed over the ranks on a stream of their own, bucket by bucket, while the
// backward pass goes on to produce others.
type Trainer struct {
	Config
	Position
	division  // of the ranks
	World     *spmd.World
	Data      *Dataset
	Stream    *spmd.Stream // everything but what goes between ranks
	State     *gpt.State   // of Model
	Model     gpt.Passes
	Optimizer *AdamW
	order     order    // of a step's micro-batches: turns, or with --pp a pipeline
	sums      exchange // of gradients: replicas, or with --shard shards
	feeds     feeds
	results   results

	graphs *graphs // nil without --graph
	tensor *tensor // nil without --tp
	scales *scales // nil without --fp8

	close []func() error // in the order of making
}

// Position is where in a run a trainer is.
type Position struct {
	First   int // the step that begins the training
	Skipped int // steps before it that were left out
	BadRow  int // how many of the last steps in a row were left out
	// scales of 8-bit floats at that step, from the checkpoint; nil if it has none that fit
	Scales []int
}

// New allocates everything. The weights are zero until Begin, or until a checkpoint is loaded and
// StartAt called. Every rank of c calls it.
func New(w *spmd.World, c spmd.Comm, cfg Config, data *Dataset) (*Trainer, error) {
	t := &Trainer{Config: cfg, division: division{all: c, c: c}, World: w, Data: data}
	if err := t.divide(); err != nil {
		return nil, err
	}
	if err := t.open(); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// keep makes Close call f, before the functions that were kept earlier.
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
	if t.Optimizer, err = NewAdamW(t.State, t.c, t.Config.Adam); err != nil {
		return err
	}
	t.Optimizer.SkipBad = t.SkipBad > 0
	t.keep(t.Optimizer.Close)
	if err := t.connect(); err != nil {
		return err
	}
	if err := t.results.open(t); err != nil {
		return err
	}
	if t.graphs, err = openGraphs(t); err != nil {
		return err
	}
	t.keep(t.feeds.stop)
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
	if t.tensor, err = openTensor(t); err != nil {
		return err
	}
	if t.order, err = openOrder(t, batch); err != nil {
		return err
	}
	if t.State.FP8 != nil {
		t.scales = &scales{t: t, state: t.State.FP8}
	}
	return t.feeds.open(t, batch)
}

// connect opens what moves gradients between the ranks, and weights with --shard.
func (t *Trainer) connect() (err error) {
	if t.Config.Model.Shard.Mode == layout.ShardOff {
		t.sums, err = openReplicas(t)
	} else {
		t.sums, err = openShards(t)
	}
	if err != nil || !t.divided() {
		return err
	}
	return t.openNorm()
}

// Buckets returns how many parts the gradients go in between the ranks.
func (t *Trainer) Buckets() int { return t.sums.buckets() }

// Close ends the loader and frees everything, the last made first.
func (t *Trainer) Close() error {
	var errs []error
	for i := len(t.close) - 1; i >= 0; i-- {
		errs = append(errs, t.close[i]())
	}
	t.close = nil
	return errors.Join(errs...)
}
