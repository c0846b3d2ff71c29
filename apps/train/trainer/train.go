package trainer

import (
	"errors"
	"fmt"

	"lockstep/apps/train/batches"
	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/modern"
	"lockstep/apps/train/optim"
	"lockstep/apps/train/weights"
	"lockstep/spmd"
	"lockstep/spmd/parallel"
)

// Config is the settings of a trainer.
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
	Weights     *weights.Folder // to begin with; nil if they are drawn
	BucketMiB   int             // of gradients in an all-reduce; 0 is what the device wants
	// how many steps in a row are left out if their loss or norm is not
	// finite; one more ends the run
	SkipBad int
}

// Trainer trains a model on this rank's part of every batch. One step:
//
//	g  = Σ over the ranks' micro-batches of ∇ loss/(global tokens)
//	p -= AdamW(g)
//
// The reducer's stream sums over the ranks, bucket by bucket, while the backward pass
// goes on to produce gradients.
type Trainer struct {
	Config
	World     *spmd.World
	all       spmd.Comm // the ranks of the run
	c         spmd.Comm // the ranks that share each batch; others have other parts of the model
	pipe      spmd.Comm // those with the other stages of the model
	tensor    spmd.Comm // those with the other parts of the same layers
	tied      spmd.Comm // the two with a copy of the embeddings each; no rank elsewhere
	Data      *batches.Dataset
	State     *gpt.State // of model
	Model     gpt.Passes
	Optimizer *optim.AdamW
	reducer   *parallel.Reducer[float32] // nil with --shard
	tables    *parallel.Reducer[float32] // for a modern model's tables, which reducer then leaves out, or nil
	sharder   *gpt.Sharder               // nil without
	byRows    []spmd.Buffer[float32]     // see sumRows
	Stream    *spmd.Stream               // everything but what goes between ranks
	train     *batches.Feed              // nil before StartAt
	First     int                        // the step that train begins with
	Skipped   int                        // steps before it that were left out
	BadRow    int                        // how many of the last steps in a row were left out
	// scales of 8-bit floats at that step, from the checkpoint; nil if it has none that fit
	Scales  []int
	loaders [2]*batches.Loader        // of training and validation
	results [2]result                 // of the last two steps, by step number
	valLoss spmd.Buffer[float64]      // (1), pinned
	graphs  map[microKind]*spmd.Graph // of the kinds met so far; nil without graphs
	held    []gpt.Batch               // all micro-batches of a pipelined step
	close   []func() error            // in the order of making
}

// New allocates everything. The weights are zero until Begin, or until a checkpoint is loaded and
// StartAt called. Every rank of c calls it.
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
	if t.Optimizer, err = optim.NewAdamW(t.State, t.c, t.Config.Adam); err != nil {
		return err
	}
	t.Optimizer.SkipBad = t.SkipBad > 0
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
	if t.State, t.Model, err = modern.Open(t.World, t.Half, t.Config.Model, batch, t.Seq); err != nil {
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

// connect opens what moves gradients between the ranks, and weights with --shard.
func (t *Trainer) connect() (err error) {
	t.byRows = t.State.ByRows()
	if t.Config.Model.Shard.Mode != layout.ShardOff {
		if t.sharder, err = t.Model.NewSharder(t.c); err != nil {
			return err
		}
		t.keep(t.sharder.Close)
		if !t.divided() {
			t.Optimizer.MeasureNorm = func(s *spmd.Stream, norm spmd.Buffer[float32]) error {
				return t.sharder.Scatter.ClipNorm(0, norm, s)
			}
			return nil
		}
	}
	if t.divided() {
		n, err := parallel.NewNorm(t.all, t.counted()...)
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
	case t.World.Nodes() > 1, t.State.Cfg.Parts != 0:
		// A network is slower than GPUs compute, and a modern model's steps are short, so most
		// of the time is to be hidden.
		bucket = 64 << 20
	default: // An all-reduce beside matrix products takes multiprocessors from them, which costs more than it hides.
		bucket = 1 << 30
	}
	groups := t.State.GradGroups()
	if tables := len(groups) - 1; t.State.Cfg.Parts != 0 {
		if t.tables, err = parallel.NewReducer(t.c, groups[tables:], parallel.ReducerConfig{Op: spmd.Sum}); err != nil {
			return err
		}
		t.keep(t.tables.Close)
		groups = groups[:tables]
	}
	t.reducer, err = parallel.NewReducer(t.c, groups, parallel.ReducerConfig{BucketBytes: bucket, Op: spmd.Sum})
	if err != nil {
		return err
	}
	t.keep(t.reducer.Close)
	return nil
}

// wantGraphs says whether micro-steps become graphs. By default they do on a GPU: a replay
// costs the host less than enqueuing again. It fails if --graph on asks for graphs that
// the communicator cannot be in.
func (t *Trainer) wantGraphs() (bool, error) {
	switch t.Graph {
	case "off":
		return false, nil
	case "on":
		if err := t.all.Capturable(); err != nil {
			return false, spmd.Usage(fmt.Errorf("--graph on: %w", err))
		}
		return true, nil
	}
	if t.World.OnHost() {
		return false, nil
	}
	if err := t.all.Capturable(); err != nil {
		t.World.Log().Info().AnErr("why", err).Msg("steps are not graphs")
		return false, nil
	}
	return true, nil
}

// Buckets returns how many parts the gradients go in between the ranks.
func (t *Trainer) Buckets() int {
	if t.sharder != nil {
		return len(t.State.Groups)
	}
	if t.tables != nil {
		return t.reducer.Buckets() + t.tables.Buckets()
	}
	return t.reducer.Buckets()
}

// Close ends the loader and frees everything, the last made first.
func (t *Trainer) Close() error {
	var errs []error
	for i := len(t.close) - 1; i >= 0; i-- {
		errs = append(errs, t.close[i]())
	}
	t.close = nil
	return errors.Join(errs...)
}
