package layout

import (
	"fmt"
	"strings"

	"lockstep/internal/schedule"
)

// Staging says which layers of a model a rank has, if a pipeline of ranks divides them (--pp). The
// zero value is all of them.
//
// The token embedding is also the head, so the first stage and the last have a copy of the
// embeddings each. The gradient of both is the sum of both.
type Staging struct {
	Index, Stages int // which of how many
	First, End    int // layers [First, End)
	Micro         int // micro-batches of a step
}

// StageOf returns a stage of a model that learns from sequences of seq tokens.
func StageOf(cfg Config, index, stages, micro, seq int) Staging {
	return StagesOf(cfg, stages, micro, seq)[index]
}

// StagesOf returns all stages of such a model. They take about equally long, by the Times of a
// layer and, in the last stage, of the head. Each rank may have a part of a layer.
func StagesOf(cfg Config, stages, micro, seq int) []Staging {
	costs := make([]float64, cfg.Layers)
	for l := range costs {
		costs[l] = cfg.LayerTime(seq) / float64(cfg.Tensor.Parts())
	}
	costs[len(costs)-1] += cfg.HeadTime()
	all := make([]Staging, stages)
	for i, end := range schedule.Balance(costs, stages) {
		all[i] = Staging{Index: i, Stages: stages, End: end, Micro: micro}
		if i > 0 {
			all[i].First = all[i-1].End
		}
	}
	return all
}

// Idle returns the part of a step in which the stages wait, if messages take no time. They wait at
// the step's beginning and end, and because their times differ. A third of a stage's time is its
// forward pass.
func (cfg Config) Idle(seq int) float64 {
	x := cfg.Stage
	if x.Stages <= 1 {
		return 0
	}
	var times []schedule.PassTime
	for i, s := range StagesOf(cfg, x.Stages, x.Micro, seq) {
		time := float64(s.End-s.First) * cfg.LayerTime(seq) / float64(cfg.Tensor.Parts())
		if i == x.Stages-1 {
			time += cfg.HeadTime()
		}
		times = append(times, schedule.PassTime{Forward: time / 3, Backward: time * 2 / 3})
	}
	idle := 0.0
	for _, part := range schedule.New(times, x.Micro).Idle {
		idle += part / float64(x.Stages)
	}
	return idle
}

// Own returns which layers this rank has.
func (cfg Config) Own() (first, end int) {
	if cfg.Stage.Stages == 0 {
		return 0, cfg.Layers
	}
	return cfg.Stage.First, cfg.Stage.End
}

// OwnLayers returns how many layers this rank has.
func (cfg Config) OwnLayers() int {
	first, end := cfg.Own()
	return end - first
}

// Begins reports whether this rank looks up the tokens, Ends whether it computes the loss, Embeds
// whether it does one of them.
func (cfg Config) Begins() bool { return cfg.Stage.Index == 0 }
func (cfg Config) Ends() bool   { return cfg.Stage.Stages == 0 || cfg.Stage.Index == cfg.Stage.Stages-1 }
func (cfg Config) Embeds() bool { return cfg.Begins() || cfg.Ends() }

// InFlight returns how many micro-batches this rank has begun and not ended, at most.
func (cfg Config) InFlight() int {
	if cfg.Stage.Stages == 0 {
		return 1
	}
	return schedule.InFlight(cfg.Stage.Stages, cfg.Stage.Index, cfg.Stage.Micro)
}

// Again reports whether activations of layer l of this stage that are not kept are overwritten
// before backward, by another layer's or micro-batch's.
func (cfg Config) Again(l int) bool { return l < cfg.OwnLayers()-1 || cfg.InFlight() > 1 }

// Whole returns the configuration of the whole model.
func (cfg Config) Whole() Config {
	cfg.Stage, cfg.Tensor = Staging{}, Tensor{}
	return cfg
}

// Divided says how many layers each stage has.
func (cfg Config) Divided(seq int) string {
	var parts []string
	for _, x := range StagesOf(cfg, cfg.Stage.Stages, cfg.Stage.Micro, seq) {
		parts = append(parts, fmt.Sprint(x.End-x.First))
	}
	return strings.Join(parts, "+")
}
