package run

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/traintest"
	"lockstep/internal/testkit"
)

// typed returns the options of a command line.
func typed(t *testing.T, args ...string) *Options {
	t.Helper()
	fs := pflag.NewFlagSet("train", pflag.ContinueOnError)
	o := New()
	o.Flags(fs)
	testkit.Must(t, fs.Parse(args))
	return o
}

func machine(t *testing.T, gpu string, perNode int) layout.Machine {
	t.Helper()
	g, err := layout.ParseGPU(gpu)
	testkit.Must(t, err)
	return layout.NodesOf(g, perNode)
}

// planOf returns the plan for a command line.
func planOf(t *testing.T, gpu string, perNode, ranks int, args ...string) *Planned {
	t.Helper()
	p, err := typed(t, args...).Plan(machine(t, gpu, perNode), ranks)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return p
}

// train accepts each proposed command line. It needs the memory that the proposal says, and fits.
func TestPlan(t *testing.T) {
	data := []string{"--data", traintest.Write(t, t.TempDir(), "text.txt", "words")}
	for _, tc := range []struct {
		gpu            string
		perNode, ranks int
		args           string
	}{
		{"H200", 1, 1, "--model gpt2 --tokens gpt2"}, {"H200", 8, 8, "--model gpt2-xl --tokens gpt2"},
		{"A100:40", 8, 64, "--model gpt2-xl --tokens gpt2"},
		{"H100", 6, 6, "--model gpt2-medium --global-batch 100"}, {"L4", 1, 7, "--model gpt2-large --batch 2"},
		{"H200", 8, 16, "--model gpt2 --tp 4 --recompute block"},
		{"H200", 4, 8, "--model gpt2 --pp 2 --shard gradients --batch 0"}, {"H200", 2, 2, "--model gpt2 --fp8 all"},
		{"L4", 1, 1, "--model gpt2-large --fp8 all --recompute block"},
		{"H200", 8, 64, "--layers 32 --heads 32 --channels 4096 --seq 2048"},
	} {
		given := append(strings.Fields(tc.args), data...)
		plan := planOf(t, tc.gpu, tc.perNode, tc.ranks, given...)
		if len(plan.Proposals) == 0 {
			t.Errorf("%s on %d: nothing is proposed", tc.args, tc.ranks)
		}
		before := 0.0
		for i, p := range plan.Proposals {
			what := fmt.Sprintf("%s on %d: %v", tc.args, tc.ranks, p.Flags)
			rest := given
			if at := slices.Index(rest, "--batch"); at >= 0 && rest[at+1] == "0" {
				rest = slices.Delete(slices.Clone(rest), at, at+2)
			}
			o := typed(t, slices.Concat(rest, p.Flags)...)
			if err := o.Check(tc.ranks); err != nil {
				t.Errorf("%s: %v", what, err)
				continue
			}
			o.DType = "bfloat16"
			if need := traintest.Must(o.needs(o.Batch, tc.ranks)); need != p.Bytes || need > plan.Memory {
				t.Errorf("%s: %d bytes, of which the run needs %d, of %d", what, p.Bytes, need, plan.Memory)
			}
			for _, f := range p.Flags {
				if strings.HasPrefix(f, "--") && slices.Contains(rest, f) {
					t.Errorf("%s: %s was given", what, f)
				}
			}
			time := 1/p.Low + 1/p.High
			if !(p.Low > 0 && p.High >= p.Low) || i > 0 && time < before*(1-1e-9) {
				t.Errorf("%s: %.0f to %.0f tokens a second", what, p.Low, p.High)
			}
			before = time
		}
	}
}

// A model that is too large for one GPU is divided. A model that fits stays whole. A model that
// fits in no way gets no proposal.
func TestPlanDivides(t *testing.T) {
	whole := func(p Proposal) bool {
		return !slices.ContainsFunc(p.Flags, func(f string) bool { return f == "--tp" || f == "--pp" })
	}
	if p := planOf(t, "H200", 8, 8, "--model", "gpt2", "--tokens", "gpt2").Proposals[0]; !whole(p) || p.Bubble != 0 {
		t.Errorf("gpt2 on 8 GPUs: %v", p)
	}
	large := []string{"--layers", "96", "--heads", "96", "--channels", "12288", "--seq", "2048", "--global-batch",
		"2048"}
	plan := planOf(t, "H200", 8, 1024, large...)
	if p := plan.Proposals[0]; whole(p) || p.Bubble <= 0 {
		t.Errorf("%d parameters on 1,024 GPUs: %v", plan.Params, p)
	}
	if p := planOf(t, "H200", 8, 8, large...).Proposals; len(p) != 0 {
		t.Errorf("%d parameters on 8 GPUs: %v", plan.Params, p)
	}
	for _, p := range planOf(t, "H200", 8, 8, "--model", "gpt2-xl", "--dp", "2").Proposals {
		at := slices.Index(p.Flags, "--pp")
		if whole(p) || slices.Contains(p.Flags, "--dp") || at >= 0 && p.Flags[at+1] != "4" {
			t.Errorf("--dp 2 on 8 GPUs: %v", p.Flags)
		}
	}
	for _, bad := range [][]string{
		{"--dtype", "float32"}, {"--model", "x"}, {"--heads", "5"}, {"--tokens", "x"}, {"--seq", "0"},
	} {
		if p, err := typed(t, bad...).Plan(machine(t, "H200", 8), 8); err == nil {
			t.Errorf("%v: %v", bad, p)
		}
	}
}

// least is less than a rank needs.
func TestLeast(t *testing.T) {
	for _, form := range [][3]int{{1, 1, 1}, {2, 1, 1}, {1, 2, 4}, {4, 3, 2}, {2, 5, 1}, {1, 24, 3}} {
		for mode := layout.ShardOff; mode <= layout.ShardParameters; mode++ {
			o := typed(t, "--model", "gpt2-medium")
			testkit.Must(t, o.takeModel())
			o.tp, o.pp, o.Batch, o.GlobalBatch, o.Cfg.Vocab, o.DType = form[0], form[1], 1, form[2], 256, "bfloat16"
			o.Cfg.Tensor.Ranks, o.Cfg.Stage.Stages = form[0], form[1]*min(1, form[1]-1)
			o.Cfg.Shard = layout.Sharding{Mode: mode, Ranks: form[2]}
			if need := traintest.Must(o.needs(1, form[0]*form[1]*form[2])); o.least(form[2]) > need {
				t.Errorf("--tp %d --pp %d --dp %d --shard %v: at least %d bytes, and needs %d",
					form[0], form[1], form[2], mode, o.least(form[2]), need)
			}
		}
	}
}
