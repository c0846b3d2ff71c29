package layout

import (
	"math"
	"testing"

	"lockstep/internal/testkit"
)

// Estimates are as near to measurements on H200s as docs/speed.md says.
func TestMeasured(t *testing.T) {
	g, err := ParseGPU("H200")
	testkit.Must(t, err)
	// The larger models ran before attention's backward pass and LayerNorm became faster.
	before := measured
	before.Attention, before.Norm = 200e12, 9.43e-12
	for _, tc := range []struct {
		model       string
		ranks, seqs int
		fp8         FP8Level
		rates       rates
		want, most  float64 // tokens a second, and by how much an estimate may differ
	}{
		{"gpt2", 1, 64, FP8Off, measured, 626_200, 0.01},
		{"gpt2", 1, 8, FP8Off, measured, 557_100, 0.01},
		{"gpt2", 1, 64, FP8All, measured, 749_300, 0.01},
		{"gpt2", 2, 64, FP8Off, measured, 1_226_600, 0.01},
		{"gpt2", 2, 8, FP8Off, measured, 1_001_100, 0.02},
		{"gpt2-medium", 1, 32, FP8Off, before, 204_900, 0.03},
		{"gpt2-xl", 1, 8, FP8Off, before, 47_600, 0.03},
	} {
		cfg := Presets[tc.model]
		cfg.Vocab, cfg.FP8 = 50257, tc.fp8
		j := Job{Replicas: tc.ranks, Batch: tc.seqs, Global: tc.seqs * tc.ranks, Seq: 1024}
		e := NodesOf(g, 8).step(tc.rates.on(g), cfg, j)
		low, high := e.Rates(j)
		got := (low + high) / 2
		t.Logf("%s, %d x %d, fp8 %v: %.0f measured, %.0f estimated, %+.1f %%",
			tc.model, tc.ranks, tc.seqs, tc.fp8, tc.want, got, 100*(got/tc.want-1))
		if math.Abs(got/tc.want-1) > tc.most {
			t.Errorf("%s on %d GPUs, %d sequences each: %.0f tokens a second, measured %.0f",
				tc.model, tc.ranks, tc.seqs, got, tc.want)
		}
	}
}

// Some relations hold for estimates at any rates.
func TestStep(t *testing.T) {
	g, err := ParseGPU("H100")
	testkit.Must(t, err)
	m := NodesOf(g, 8)
	base := Presets["gpt2-xl"]
	base.Vocab = 50257
	step := func(change func(cfg *Config, j *Job)) Estimate {
		cfg, j := base, Job{Replicas: 8, Batch: 4, Global: 64, Seq: 1024}
		change(&cfg, &j)
		e := m.Step(cfg, j)
		if !(e.Low > 0 && e.High >= e.Low) || e.Bubble < 0 || e.Bubble >= 1 {
			t.Fatalf("%+v", e)
		}
		return e
	}
	plain := step(func(*Config, *Job) {})
	for what, e := range map[string]Estimate{
		"--shard parameters":       step(func(cfg *Config, _ *Job) { cfg.Shard.Mode = ShardParameters }),
		"--recompute gelu":         step(func(cfg *Config, _ *Job) { cfg.Recompute = RecomputeGELU }),
		"--recompute block":        step(func(cfg *Config, _ *Job) { cfg.Recompute = RecomputeBlock }),
		"twice the network's work": step(func(_ *Config, j *Job) { j.Replicas, j.Global = 16, 128 }),
	} {
		if e.High <= plain.High {
			t.Errorf("%s: %g s, plain %g", what, e.High, plain.High)
		}
	}
	// Products of 8-bit floats are faster in recomputation, too.
	for _, r := range []Recomputation{RecomputeGELU, RecomputeBlock} {
		cost := func(level FP8Level) float64 {
			kept := step(func(cfg *Config, _ *Job) { cfg.FP8 = level })
			return step(func(cfg *Config, _ *Job) { cfg.FP8, cfg.Recompute = level, r }).High - kept.High
		}
		if eight, half := cost(FP8All), cost(FP8Head); eight <= 0 || eight >= half {
			t.Errorf("--recompute %v takes %g s with --fp8 all, %g with --fp8 head", r, eight, half)
		}
	}
	// Parts of layers are faster than the whole, but slower than as many GPUs with a whole each.
	parts := step(func(cfg *Config, j *Job) { cfg.Tensor.Ranks, j.Replicas = 5, 1 })
	alone := step(func(_ *Config, j *Job) { j.Replicas = 1 })
	if parts.High >= alone.Low || parts.Low <= alone.High/5 || parts.Low >= parts.High {
		t.Errorf("in 5 parts %+v, alone %+v", parts, alone)
	}
	// With as many micro-batches as stages the bubble is nearly half of the time. With many it is
	// the difference of the stages' times.
	pipeline := func(cfg *Config, j *Job, global int) {
		cfg.Stage.Stages, j.Replicas, j.Batch, j.Global = 8, 1, 1, global
		j.Stages = StagesOf(*cfg, 8, global, j.Seq)
	}
	few := step(func(cfg *Config, j *Job) { pipeline(cfg, j, 8) })
	many := step(func(cfg *Config, j *Job) { pipeline(cfg, j, 512) })
	if few.Bubble < 0.3 || few.Bubble > 0.55 {
		t.Errorf("a bubble of %.2f", few.Bubble)
	}
	sum, most := 0.0, 0.0
	for _, x := range StagesOf(base, 8, 512, 1024) {
		cfg := base
		cfg.Stage = x
		s := m.shareOf(measured.on(g), cfg, Job{Replicas: 1, Batch: 1, Global: 512, Seq: 1024})
		sum, most = sum+s.work(), max(most, s.work())
	}
	if unequal := 1 - sum/8/most; many.Bubble < unequal || many.Bubble > unequal+0.03 {
		t.Errorf("a bubble of %.3f, of which %.3f by unequal stages", many.Bubble, unequal)
	}
	// If the first of two stages has nearly all layers, a step takes as long as these alone, plus
	// one micro-batch in the other.
	unequal := step(func(cfg *Config, j *Job) {
		cfg.Stage.Stages, j.Replicas, j.Batch, j.Global = 2, 1, 4, 64
		j.Stages = []Staging{{Stages: 2, End: 46, Micro: 16},
			{Index: 1, Stages: 2, First: 46, End: 48, Micro: 16}}
	})
	if unequal.Low <= alone.Low*46/51 || unequal.High >= alone.High {
		t.Errorf("46 and 2 layers take %g to %g s, all in one stage %g", unequal.Low, unequal.High, alone.High)
	}
	if _, ok := FindGPU("Tesla T4"); ok {
		t.Error("a Tesla T4 is taken for another")
	}
	if g, err := ParseGPU("A100:40"); err != nil || g.Memory != 40e9 {
		t.Errorf("A100:40 has %d bytes, error %v", g.Memory, err)
	}
	for _, bad := range []string{"", "X", "A100:", "A100:-1", "A100:many"} {
		if _, err := ParseGPU(bad); err == nil {
			t.Errorf("--gpu %q is taken", bad)
		}
	}
}
