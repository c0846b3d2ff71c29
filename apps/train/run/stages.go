package run

import (
	"fmt"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/text"
	"lockstep/spmd"
)

// replicas returns the number of replicas of the model. Each learns from other sequences of a
// batch; the ranks of a replica have parts of the model.
func (o *Options) replicas(ranks int) int { return ranks / max(1, o.tp*o.pp) }

// checkParts refuses a division of the model that is impossible on so many ranks.
func (o *Options) checkParts(ranks int) error {
	asked := ""
	for _, x := range []struct {
		flag string
		n    int
	}{{"--dp", o.dp}, {"--tp", o.tp}, {"--pp", o.pp}} {
		if x.n > 1 || x.n == 1 && x.flag == "--dp" {
			asked += fmt.Sprintf(" %s %d", x.flag, x.n)
		}
	}
	if asked == "" || o.tp < 1 || o.pp < 1 {
		return nil
	}
	asked = asked[1:]
	switch cfg := (layout.Config{Heads: o.heads, Tensor: layout.Tensor{Ranks: o.tp}}); {
	case o.pp > o.layers:
		return fmt.Errorf("--pp %d: the model has %d layers, and each stage needs one", o.pp, o.layers)
	case cfg.CheckTensor() != nil:
		return cfg.CheckTensor()
	case o.tp > ranks || o.pp > ranks || ranks%(o.tp*o.pp) != 0:
		return fmt.Errorf("%s: %d ranks have a part of a replica each, which does not divide the %d ranks",
			asked, o.tp*o.pp, ranks)
	case o.dp > 0 && o.dp != o.replicas(ranks):
		return fmt.Errorf("%s: that is %d ranks, and there are %d", asked, o.dp*o.tp*o.pp, ranks)
	case o.tp*o.pp == 1:
		return nil
	case !o.Given("sample"):
		o.sample = 0
	case o.sample > 0:
		return fmt.Errorf("--sample %d does not go with %s, where no rank has the whole model: train sample writes "+
			"from a checkpoint", o.sample, asked)
	}
	return nil
}

// warnApart warns if ranks that divide layers are on several nodes, which makes
// --tp slow. Every rank calls it.
func (o *Options) warnApart(w *spmd.World) error {
	if o.tp == 1 || w.Nodes() == 1 {
		return nil
	}
	nodes, err := text.GatherOne(w, w.Comm(), int64(w.Node()))
	if err != nil {
		return err
	}
	if first := apart(nodes, o.tp); first >= 0 {
		w.Log().Warn().Msgf("--tp %d: ranks %d to %d divide layers, and are on several nodes, between which that is "+
			"slow: take a --tp that divides the ranks of each node, and place ranks node by node",
			o.tp, first, first+o.tp-1)
	}
	return nil
}

// apart returns the first rank of the first group that is not on one node, or -1.
// nodes has the node of each rank.
func apart(nodes []int64, group int) int {
	for first := 0; first < len(nodes); first += group {
		for _, node := range nodes[first : first+group] {
			if node != nodes[first] {
				return first
			}
		}
	}
	return -1
}

// largestStage returns how many bytes of the device the largest stage takes, and how many
// micro-batches are there at once.
func (o *Options) largestStage(rows, batch, ranks int) (most, held int, err error) {
	held = 1
	if o.GlobalBatch > 0 && batch > 0 {
		held = max(1, (spmd.ShardOf(o.GlobalBatch, 0, o.replicas(ranks)).Len+batch-1)/batch)
	}
	for _, stage := range layout.StagesOf(o.Cfg, o.pp, held, o.Seq) {
		cfg := o.Cfg
		cfg.Stage = stage
		n, err := o.stateNeeded(cfg, rows, o.Seq, o.DType == "bfloat16")
		if err != nil {
			return 0, 0, err
		}
		most = max(most, n)
	}
	return most, held + 1, nil
}

// percent prints a part of 1 in per cent.
func percent(part float64) string { return fmt.Sprintf("%.0f %%", 100*part) }
