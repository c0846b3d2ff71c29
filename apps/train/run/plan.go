package run

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/text"
)

// Proposal is one way to divide a run among the GPUs of a machine.
type Proposal struct {
	Flags []string `json:"flags"` // to be added to those that were given
	Bytes int      `json:"bytes"` // that a rank needs, without what libraries take
	// estimated tokens a second if no message is hidden; 0 if there is no estimate
	Low    float64 `json:"tok_s"`
	High   float64 `json:"most"`   // if all messages are hidden that can be
	Bubble float64 `json:"bubble"` // the part of the time in which stages of a pipeline wait

	// Messages are the parts of the time that messages between ranks add: if all are hidden
	// that can be, and if none is.
	Messages [2]float64 `json:"messages"`
}

// Planned is the proposals for a run on a machine.
type Planned struct {
	GPU       string     `json:"gpu"`
	Memory    int        `json:"memory"` // bytes of each GPU
	Ranks     int        `json:"ranks"`
	Params    int        `json:"params"`
	Proposals []Proposal `json:"proposals"` // the fastest first
}

// mostProposals is the largest number of proposals.
const mostProposals = 6

// stepTokens is the default number of tokens of a step. Models of GPT-2's sizes usually learn from
// as many. Source: Brown et al., Language models are few-shot learners, table 2.1.
const stepTokens = 1 << 19

// mostBatch is the largest proposed micro-batch: larger ones are hardly faster.
const mostBatch = 64

// Plan proposes how ranks, each with a GPU of m, divide the run. It chooses --dp, --tp, --pp,
// --shard, --recompute, --batch and --global-batch unless they are given. It looks at no data.
func (o *Options) Plan(m layout.Machine, ranks int) (*Planned, error) {
	if err := o.takeModel(); err != nil {
		return nil, err
	}
	if o.Cfg.Parts != 0 || o.optimizer == muon {
		return nil, fmt.Errorf("plan knows how long models of GPT-2's form take by AdamW: a modern model, or " +
			"--optimizer muon, runs on all GPUs without, and with --batch 0 as large as fits")
	}
	if o.DType == "float32" {
		return nil, fmt.Errorf("--dtype float32: what that takes on GPUs has not been measured: leave it out, for " +
			"bfloat16")
	}
	o.DType = "bfloat16"
	for _, data := range o.Data {
		if filepath.Ext(data) == ".bin" {
			o.tokens = "gpt2"
		}
	}
	tok, err := text.NewTokenizer(o.tokens)
	if err != nil {
		return nil, err
	}
	o.Cfg.Vocab = tok.IDs()
	if !o.Given("global-batch") {
		o.GlobalBatch = max(1, stepTokens/max(1, o.Seq), ranks)
	}
	if err := cmp.Or(o.checkNumbers(), o.Cfg.Validate()); err != nil {
		return nil, err
	}
	out := &Planned{GPU: m.Name, Memory: m.Memory, Ranks: ranks, Params: o.Cfg.ParamCount()}
	seen := map[[3]int]bool{} // parts, stages, mode
	for _, c := range o.candidates(m, ranks) {
		key := [3]int{c.o.tp, c.o.pp, int(c.o.Cfg.Shard.Mode)}
		if seen[key] {
			continue
		}
		need, err := c.o.needs(c.o.Batch, ranks)
		if err != nil {
			return nil, err
		}
		if need > roomOf(m, c) {
			continue
		}
		seen[key] = true
		p := Proposal{Flags: c.flags(), Bytes: need, Bubble: c.estimate.Bubble}
		p.Low, p.High = c.estimate.Rates(c.job)
		p.Messages[0], p.Messages[1] = c.estimate.Messages()
		out.Proposals = append(out.Proposals, p)
		if len(out.Proposals) == mostProposals {
			break
		}
	}
	return out, nil
}

// candidate is one way to divide a run.
type candidate struct {
	o        *Options
	job      layout.Job
	fixed    bool // --batch is given
	estimate layout.Estimate
}

// fixedBatch reports whether --batch is given and not 0, which asks for a search.
func (o *Options) fixedBatch() bool { return o.Given("batch") && o.Batch > 0 }

// roomOf returns how many bytes of a GPU a candidate may have. Libraries take the rest, and NCCL
// takes some for each kind of communicator.
func roomOf(m layout.Machine, c candidate) int {
	room := m.Memory - m.Memory/50 - 1<<30
	for _, n := range []int{c.job.Replicas, c.o.tp, c.o.pp} {
		if n > 1 {
			room -= 1 << 30
		}
	}
	return room
}

// candidates returns all ways that agree with the flags and have room for the parameters. The
// fastest come first, and the simplest among equally fast ones.
func (o *Options) candidates(m layout.Machine, ranks int) []candidate {
	var all []candidate
	for tp := 1; tp <= min(ranks, o.heads, m.PerNode); tp++ {
		if o.Given("tp") && tp != o.tp || o.heads%tp != 0 || ranks%tp != 0 || m.PerNode%tp != 0 {
			continue
		}
		for pp := 1; pp <= min(ranks/tp, o.layers); pp++ {
			replicas := ranks / (tp * pp)
			if o.Given("pp") && pp != o.pp || replicas*tp*pp != ranks || o.dp > 0 && o.dp != replicas ||
				o.GlobalBatch < replicas {
				continue
			}
			all = append(all, o.divided(m, tp, pp, replicas)...)
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Compare(a.estimate.Low+a.estimate.High, b.estimate.Low+b.estimate.High)
	})
	return all
}

// divided returns the candidates with so many parts, stages and replicas.
func (o *Options) divided(m layout.Machine, tp, pp, replicas int) (all []candidate) {
	modes, again := []layout.ShardMode{o.Cfg.Shard.Mode}, []layout.Recomputation{o.Cfg.Recompute}
	if !o.Given("shard") && replicas > 1 {
		modes = []layout.ShardMode{layout.ShardOff, layout.ShardOptimizer, layout.ShardGradients,
			layout.ShardParameters}
	}
	if !o.Given("recompute") {
		again = []layout.Recomputation{layout.RecomputeOff, layout.RecomputeGELU, layout.RecomputeBlock}
	}
	part := (o.GlobalBatch + replicas - 1) / replicas
	sizes := batchesUpTo(min(part, mostBatch))
	if o.fixedBatch() {
		sizes = []int{o.Batch}
	}
	for _, batch := range sizes {
		job := layout.Job{Replicas: replicas, Batch: batch, Global: o.GlobalBatch, Seq: o.Seq}
		cfg := o.Cfg
		cfg.Tensor.Ranks = tp
		if pp > 1 {
			cfg.Stage.Stages = pp
			job.Stages = layout.StagesOf(cfg, pp, (part+batch-1)/batch, o.Seq)
		}
		for _, mode := range modes {
			for _, r := range again {
				c := *o
				c.tp, c.pp, c.Batch, c.fixedGlobal = tp, pp, batch, true
				c.Cfg = cfg
				c.Cfg.Shard, c.Cfg.Recompute = layout.Sharding{Mode: mode, Ranks: replicas}, r
				if tp == 1 {
					c.Cfg.Tensor = layout.Tensor{}
				}
				x := candidate{&c, job, o.fixedBatch(), layout.Estimate{}}
				if c.Cfg.CheckParts8() != nil || c.least(replicas) > roomOf(m, x) {
					continue
				}
				x.estimate = m.Step(c.Cfg, job)
				all = append(all, x)
			}
		}
	}
	return all
}

// least returns a lower bound of the bytes that a rank needs: for the parameters of its layers,
// with their gradients and moments.
func (o *Options) least(replicas int) int {
	n := (o.layers + o.pp - 1) / o.pp * 12 * o.channels * o.channels / o.tp // the largest stage
	n = n * o.layers / (o.layers + o.pp)                                    // a little less
	state := [...]int{layout.ShardOff: 16, layout.ShardOptimizer: 8, layout.ShardGradients: 4,
		layout.ShardParameters: 0}[o.Cfg.Shard.Mode]
	return n*state + n/replicas*(16-state)
}

// batchesUpTo returns the micro-batches to try: powers of two, and most.
func batchesUpTo(most int) (all []int) {
	for n := 1; n < most; n *= 2 {
		all = append(all, n)
	}
	return append(all, most)
}

// flags returns the flags of a candidate that were not given.
func (c candidate) flags() []string {
	var flags []string
	add := func(name, value, usual string) {
		if !c.o.Given(name) && value != usual {
			flags = append(flags, "--"+name, value)
		}
	}
	if c.o.tp*c.o.pp > 1 {
		add("dp", strconv.Itoa(c.job.Replicas), "")
	}
	add("tp", strconv.Itoa(c.o.tp), "1")
	add("pp", strconv.Itoa(c.o.pp), "1")
	add("shard", c.o.Cfg.Shard.Mode.String(), "off")
	add("recompute", c.o.Cfg.Recompute.String(), "off")
	if !c.fixed {
		flags = append(flags, "--batch", strconv.Itoa(c.o.Batch))
	}
	add("global-batch", strconv.Itoa(c.o.GlobalBatch), "")
	return flags
}
