package run

import (
	"fmt"
	"math"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/trainer"
)

// The names of optimizers and schedules.
const (
	adamW  = "adamw"
	muon   = "muon"
	cosine = "cosine"
	wsd    = "wsd"
)

// partsOf returns the parts that the model is made of.
func (o *Options) partsOf(base layout.Config) (layout.Parts, error) {
	if base.Parts == 0 && len(o.without) > 0 {
		return 0, fmt.Errorf("--without is for modern models, which have parts to leave out: --model %s has the "+
			"form of GPT-2", o.model)
	}
	parts, err := base.Parts.Without(o.without)
	if err != nil {
		return 0, fmt.Errorf("--without: %w", err)
	}
	return parts, nil
}

// takeOptimizer sets the usual values for the model's optimizer and
// schedule, unless flags are given.
func (o *Options) takeOptimizer(parts layout.Parts, lr, beta2 float64) error {
	if !o.Given("optimizer") {
		if o.optimizer = adamW; parts != 0 {
			o.optimizer = muon
		}
	}
	if !o.Given("schedule") {
		if o.schedule = cosine; o.optimizer == muon {
			o.schedule = wsd
		}
	}
	for _, flag := range []string{"embed-lr", "head-lr", "vector-lr"} {
		if o.Given(flag) && o.optimizer != muon {
			return fmt.Errorf("--%s is for --optimizer muon: AdamW has one rate, --lr", flag)
		}
	}
	usual, warmup, last := trainer.DefaultAdam, o.steps/20, 0.1
	if o.optimizer == muon {
		usual, warmup = trainer.DefaultMuonAdam, 0
	}
	switch { // the other optimizer than the model's
	case o.optimizer == muon && parts == 0:
		lr, beta2 = trainer.DefaultMuon.Peak, usual.Beta2
	case o.optimizer == adamW && parts != 0:
		lr = modernAdamRate
	}
	if o.schedule == wsd {
		last = 0.05
	}
	for _, x := range []struct {
		flag  string
		value *float64
		usual float64
	}{{"lr", &o.lr, lr}, {"beta1", &o.beta1, usual.Beta1}, {"beta2", &o.beta2, beta2},
		{"weight-decay", &o.weightDecay, usual.WeightDecay},
		{"clip", &o.clip, usual.Clip}, {"min-lr", &o.minLR, last}} {
		if !o.Given(x.flag) {
			*x.value = x.usual
		}
	}
	if !o.Given("warmup-steps") {
		o.warmup = warmup
	}
	return nil
}

// modernAdamRate is the rate for a whole modern model by AdamW. Its embeddings are
// normed, and so move slowly.
const modernAdamRate = 3e-3

// checkWhole refuses to divide layers that work only as a whole, or only on one rank.
func (o *Options) checkWhole() error {
	const less = "--shard parameters and --recompute block have it need less memory"
	switch {
	case o.tp > 1 && o.Cfg.Parts != 0:
		return fmt.Errorf("--tp %d does not divide a modern model, whose norms of queries and keys, tables of "+
			"values and head have no parts: %s", o.tp, less)
	case o.pp > 1 && o.Cfg.Parts != 0:
		return fmt.Errorf("--pp %d does not divide a modern model, whose first layers and tables are also read by "+
			"the last ones, in another stage: %s", o.pp, less)
	case o.tp > 1 && o.optimizer == muon:
		return fmt.Errorf("--tp %d is for --optimizer adamw: Muon needs whole matrices, and goes with --pp and --shard",
			o.tp)
	}
	return nil
}

// batchOfRate is how many sequences of 1,024 tokens a step has that the rates of larger
// modern models are meant for.
const batchOfRate = 64

// takeRate sets the rates of the optimizer, once --global-batch is known. By default a modern model
// with smaller steps learns at a lower rate, in proportion to the root of their sequences.
func (o *Options) takeRate() {
	if usual := habits[o.usual]; !o.Given("lr") && o.optimizer == muon && o.Cfg.Parts != 0 && usual.batch >= 16 {
		o.lr = usual.lr * math.Sqrt(min(1, float64(o.GlobalBatch)/batchOfRate))
	}
	o.adam, o.rate = o.optimizerConfig()
}

// optimizerConfig returns the trainer's settings of optimizer and schedule.
func (o *Options) optimizerConfig() (trainer.AdamConfig, trainer.Schedule) {
	adam := trainer.AdamConfig{Beta1: o.beta1, Beta2: o.beta2, Eps: trainer.DefaultAdam.Eps, WeightDecay: o.weightDecay,
		Clip: o.clip}
	if o.optimizer == muon {
		adam.Eps = trainer.DefaultMuonAdam.Eps
		adam.Muon = &trainer.MuonConfig{Peak: o.lr, Embeddings: o.embedLR, Heads: o.headLR, Vectors: o.vectorLR}
	}
	return adam, trainer.Schedule{Peak: o.lr, Final: o.lr * o.minLR, Warmup: o.warmup, Steps: o.steps,
		Stable: o.schedule == wsd}
}
