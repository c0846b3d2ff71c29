package run

import (
	"fmt"

	"lockstep/apps/train/layout"
	"lockstep/spmd"
)

// replicas is how many ranks of a run have other sequences of a batch; the others have other parts
// of the model.
func (o *Options) replicas(ranks int) int { return ranks / max(1, o.pp) }

// checkStages refuses a pipeline that there cannot be on so many ranks.
func (o *Options) checkStages(ranks int) error {
	switch {
	case o.pp <= 1:
		return nil
	case o.pp > o.layers:
		return fmt.Errorf("--pp %d: the model has %d layers, and each stage needs one", o.pp, o.layers)
	case ranks%o.pp != 0:
		return fmt.Errorf("--pp %d does not divide the %d ranks", o.pp, ranks)
	case !o.Given("sample"):
		o.sample = 0
	case o.sample > 0:
		return fmt.Errorf("--sample %d does not go with --pp %d, where no rank has the whole model: train sample writes from a checkpoint", o.sample, o.pp)
	}
	return nil
}

// checkStagesFP8 refuses 8-bit floats in a pipeline; asked is where they were asked for.
func (o *Options) checkStagesFP8(asked string) error {
	if o.pp > 1 && o.Cfg.FP8 != layout.FP8Off {
		return fmt.Errorf("%s does not go with --pp %d", asked, o.pp)
	}
	return nil
}

// largestStage is how many bytes of the device the stage takes that takes most, and how many
// micro-batches of a step are there at once.
func (o *Options) largestStage(rows, batch, ranks int) (most, held int, err error) {
	held = 1
	if o.GlobalBatch > 0 && batch > 0 {
		held = max(1, (spmd.ShardOf(o.GlobalBatch, 0, o.replicas(ranks)).Len+batch-1)/batch)
	}
	for i := range o.pp {
		cfg := o.Cfg
		cfg.Stage = layout.StageOf(cfg, i, o.pp, held, o.Seq)
		n, err := stateNeeded(cfg, rows, o.Seq, o.DType == "bfloat16")
		if err != nil {
			return 0, 0, err
		}
		most = max(most, n)
	}
	return most, held + 1, nil
}

// percent is a part of 1 for people.
func percent(part float64) string { return fmt.Sprintf("%.0f %%", 100*part) }
