package run

import (
	"fmt"
	"math"
	"sort"

	"lockstep/apps/train/gpt"
	"lockstep/apps/train/layout"
	"lockstep/apps/train/ops"
	"lockstep/apps/train/text"
	"lockstep/apps/train/trainer"
	"lockstep/spmd"
)

// settle chooses the defaults that depend on the device, and refuses what the device lacks.
func (o *Options) settle(w *spmd.World) error {
	o.onHost = w.OnHost()
	o.DType = DefaultDType(w, o.DType)
	return ops.CheckFP8(w, o.Cfg.FP8, o.DType, "--fp8 "+o.FP8)
}

// fit logs how much memory the run is going to need. It refuses a run that needs more than there
// is, before it allocates anything. If --batch is 0 it takes the largest batch that fits, up to a
// twentieth of tokens in a step. Every rank calls it.
func (o *Options) fit(w *spmd.World, tokens int) error {
	free, total, err := w.Memory()
	if err != nil {
		return err
	}
	ranks := 1 // that share it
	if w.OnHost() {
		ranks = w.LocalSize()
	}
	all, err := text.GatherOne(w, w.Comm(), int64(free/ranks))
	if err != nil {
		return err
	}
	worst := 0
	for r, f := range all {
		if f < all[worst] {
			worst = r
		}
	}
	room := int(all[worst]) // the same on every rank
	if err := o.measureLayers(w, room, o.timeHere); err != nil {
		return err
	}
	if o.Batch == 0 {
		if err := o.largestBatch(w, room, tokens); err != nil {
			return err
		}
	}
	need, err := o.needs(o.Batch, w.Size())
	if err != nil {
		return err
	}
	if need == math.MaxInt {
		return spmd.Usage(fmt.Errorf("--batch %d: micro-steps of more than %d tokens are too large",
			o.Batch, math.MaxInt32))
	}
	w.Log().Info().Str("free", spmd.Amount(free, "B")).
		Msgf("needs %s of %s", spmd.Amount(need*ranks, "B"), spmd.Amount(total, "B"))
	if need <= room {
		o.need = need - o.reductions(w.Size())
		return nil
	}
	advice := "a smaller --batch or --model is needed"
	if n, err := o.largest(room, o.Batch, w.Size()); err == nil && n > 0 {
		advice = fmt.Sprintf("the largest --batch that fits is %d", n)
	}
	if flags := o.wouldFit(room, w.Size()); flags != "" {
		advice += "; this one fits with" + flags
	}
	where := "on its GPU"
	if w.OnHost() {
		where = "as its part of the host's memory"
	}
	return spmd.Usage(fmt.Errorf("--batch %d: a rank needs %s, and rank %d has %s %s: %s",
		o.Batch, spmd.Amount(need, "B"), worst, spmd.Amount(room, "B"), where, advice))
}

// wouldFit returns flags with which the run needs at most room bytes, or none. It tries first what
// keeps the model whole on each rank, then divisions of the model into as few parts as possible.
func (o *Options) wouldFit(room, ranks int) string {
	if flags := o.keepsLess(room, ranks); flags != "" || o.optimizer == muon || o.Cfg.Parts != 0 || o.tp*o.pp > 1 ||
		o.dp > 0 || o.Given("sample") && o.sample > 0 {
		return flags
	}
	for parts := 2; parts <= ranks; parts++ {
		for tp := parts; tp > 0 && ranks%parts == 0; tp-- {
			pp := parts / tp
			if tp*pp != parts || o.Cfg.Heads%tp != 0 || pp > o.Cfg.Layers {
				continue
			}
			other, flags := *o, ""
			if other.tp, other.pp = tp, pp; tp > 1 {
				other.Cfg.Tensor.Ranks = tp
				flags = fmt.Sprintf(" --tp %d", tp)
			}
			if pp > 1 {
				other.Cfg.Stage.Stages = pp
				flags += fmt.Sprintf(" --pp %d", pp)
			}
			other.Cfg.Shard.Ranks = other.replicas(ranks)
			if other.Cfg.CheckParts8() != nil {
				continue
			}
			if need, err := other.needs(o.Batch, ranks); err == nil && need <= room {
				return flags
			}
			if less := other.keepsLess(room, ranks); less != "" {
				return flags + less
			}
		}
	}
	return ""
}

// keepsLess returns flags with which the run needs at most room bytes, without another
// division of the model. Among the flags that save memory it takes the first, with as
// little sharing as possible.
func (o *Options) keepsLess(room, ranks int) string {
	other, most := *o, layout.ShardParameters
	if o.replicas(ranks) == 1 {
		most = o.Cfg.Shard.Mode
	}
	for mode := o.Cfg.Shard.Mode; mode <= most; mode++ {
		for again := o.Cfg.Recompute; again <= layout.RecomputeBlock; again++ {
			other.Cfg.Shard.Mode, other.Cfg.Recompute = mode, again
			need, err := other.needs(o.Batch, ranks)
			if err != nil || need > room {
				continue
			}
			flags := ""
			if mode != o.Cfg.Shard.Mode {
				flags += fmt.Sprintf(" --shard %v", mode)
			}
			if again != o.Cfg.Recompute {
				flags += fmt.Sprintf(" --recompute %v", again)
			}
			return flags
		}
	}
	return ""
}

// largestBatch sets --batch to the largest that fits into room bytes, less a reserve for
// libraries and other programs.
func (o *Options) largestBatch(w *spmd.World, room, tokens int) error {
	if w.OnHost() {
		room /= 4 // the machine is not the run's alone, and its caches gain nothing from more
	} else {
		room -= 1<<30 + room/50
	}
	most := max(1, tokens/20/o.Seq/w.Size())
	if o.fixedGlobal {
		most = spmd.ShardOf(o.GlobalBatch, 0, o.replicas(w.Size())).Len
	}
	n, err := o.largest(room, most, w.Size())
	if err != nil {
		return err
	}
	if n == 0 {
		need, err := o.needs(1, w.Size())
		if err != nil {
			return err
		}
		return spmd.Usage(fmt.Errorf("--batch 0: a rank needs %s for one sequence, and %s can be had",
			spmd.Amount(need, "B"), spmd.Amount(max(0, room), "B")))
	}
	o.Batch = n
	if !o.fixedGlobal {
		o.GlobalBatch = n * w.Size()
		o.takeRate()
	}
	return nil
}

// largest returns the largest batch up to most that needs at most room bytes, or 0.
func (o *Options) largest(room, most, ranks int) (int, error) {
	var failed error
	return sort.Search(most, func(i int) bool {
		need, err := o.needs(i+1, ranks)
		if err != nil {
			failed = err
		}
		return err != nil || need > room
	}), failed
}

// needs returns how many bytes of the device a rank is going to take for micro-batches of batch
// sequences: the model, the optimizer, and the loaders of training and validation. In a pipeline it
// is the largest stage that counts.
func (o *Options) needs(batch, ranks int) (int, error) {
	rows := batch
	if o.GlobalBatch > 0 && (o.Batch != 0 || o.fixedGlobal) {
		// As in trainer.openModel, no micro-step is larger than the largest rank's part.
		rows = min(batch, spmd.ShardOf(o.GlobalBatch*max(1, o.valBatches), 0, o.replicas(ranks)).Len)
	}
	if rows > math.MaxInt32/o.Seq { // beyond what a model takes, and any memory
		return math.MaxInt, nil
	}
	n, held, err := 0, 1, error(nil)
	if o.pp > 1 {
		n, held, err = o.largestStage(rows, batch, ranks)
	} else {
		n, err = o.stateNeeded(o.Cfg, rows, o.Seq, o.DType == "bfloat16")
	}
	n += o.reductions(ranks)
	batches := 1 + held // of tokens, on the device
	if o.onHost {
		batches += 4 // and what they come from: two of each loader
	}
	return n + batches*(2*spmd.AllocSize[int32](rows*o.Seq)+
		spmd.AllocSize[int32](ops.SortedLen(rows*o.Seq, o.Cfg.Vocab))), err
}

// reductions returns how much host memory MPI takes to reduce the
// largest group of shared gradients.
func (o *Options) reductions(ranks int) int {
	if !o.onHost || o.replicas(ranks) == 1 || o.Cfg.Shard.Mode == layout.ShardOff {
		return 0
	}
	return 2 * 4 * layout.LargestGroup(o.Cfg)
}

// stateNeeded returns how many bytes of the device a model and its optimizer take.
func (o *Options) stateNeeded(cfg layout.Config, batch, seq int, half bool) (int, error) {
	n, err := gpt.MemoryNeeded(cfg, batch, seq, half)
	return n + trainer.MomentsNeeded(cfg, o.adam, half), err
}
