package run

import (
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/traintest"
	"lockstep/internal/testkit"
	"lockstep/spmd"
)

// The largest batch is the last one that fits.
func TestLargest(t *testing.T) {
	o := New()
	o.Cfg, o.Seq, o.Batch = layout.Config{Layers: 3, Heads: 2, Channels: 64, SeqMax: 32, Vocab: 300}, 32, 0
	for _, want := range []int{1, 2, 17, 100} {
		room, err := o.needs(want, 3)
		testkit.Must(t, err)
		for less := range 2 { // bytes
			got, err := o.largest(room-less, 1000, 3)
			if err != nil || got < want-less && less == 0 || got >= want && less == 1 {
				t.Errorf("%d bytes, %d less: batch %d, error %v, want %d", room, less, got, err, want-less)
			}
			fits, more := traintest.Must(o.needs(max(got, 1), 3)), traintest.Must(o.needs(got+1, 3))
			if got > 0 && fits > room-less || more <= room-less {
				t.Errorf("%d bytes: batch %d, which needs %d; one more needs %d", room-less, got, fits, more)
			}
		}
	}
	if a, b := traintest.Must(o.needs(8, 3)), traintest.Must(o.needs(16, 3)); a >= b {
		t.Errorf("8 sequences need %d bytes, 16 %d", a, b)
	}
	// A step of 7 sequences over 3 ranks has micro-steps of at most 3.
	o.GlobalBatch, o.fixedGlobal, o.valBatches = 7, true, 0
	if a, b := traintest.Must(o.needs(3, 3)), traintest.Must(o.needs(9, 3)); a != b {
		t.Errorf("of a rank's part of 3 sequences, micro-steps of 3 need %d bytes, of 9 %d", a, b)
	}
}

// A model takes the memory that stateNeeded returns. For GPT-2 a formula of the shape agrees.
func TestStateNeeded(t *testing.T) {
	gpt2 := layout.Presets["gpt2"]
	gpt2.Vocab = 50257
	const b, T, C, L, Vp, N = 8, 1024, 768, 12, 50304, 8 * 1024
	params := Vp*C + T*C + L*(12*C*C+13*C) + 2*C
	for _, half := range []bool{false, true} {
		act, perParam := 4, 16 // weight, gradient, two moments
		if half {
			act, perParam = 2, 18
		}
		got, err := new(Options).stateNeeded(gpt2, b, T, half)
		testkit.Must(t, err)
		least := params*perParam + act*N*(L*16*C+4*C)
		most := least + least/100 + act*N*(Vp+5*C) // logits, and gradients inside a layer
		if got < least || got > most {
			t.Errorf("half %v: %d bytes, want between %d and %d", half, got, least, most)
		}
		// The memory of one layer stands for that of all.
		for recompute, layer := range []int{0, 8 * C * act, 15*C*act + 4*(4+12)} {
			gpt2.Recompute = layout.Recomputation(recompute)
			if n := traintest.Must(new(Options).stateNeeded(gpt2, b, T, half)); n != got-(L-1)*N*layer {
				t.Errorf("half %v, --recompute %v: %d bytes less, want %d", half, gpt2.Recompute, got-n, (L-1)*N*layer)
			}
		}
		gpt2.Recompute = layout.RecomputeOff
	}
	if _, err := new(Options).stateNeeded(gpt2, 1, T+1, false); err == nil {
		t.Error("more positions than the model has need no memory")
	}
}

// Each mode needs less memory than the one before. A run that does not
// fit is told which mode would.
func TestShardedMemory(t *testing.T) {
	o := New()
	o.Batch, o.Seq, o.GlobalBatch, o.Given = 1, 1024, 4, func(string) bool { return false }
	o.Cfg = layout.Presets["gpt2-medium"]
	o.Cfg.Vocab = 50257
	params := o.Cfg.ParamCount()
	before, activations := 0, 0
	for mode := range layout.ShardParameters + 1 {
		o.Cfg.Shard = layout.Sharding{Mode: mode, Ranks: 4}
		need := traintest.Must(o.needs(1, 4))
		if mode == layout.ShardOff {
			activations = need - 4*spmd.AllocSize[float32](params)
		} else if need >= before {
			t.Errorf("--shard %v needs %d bytes, the mode before %d", mode, need, before)
		}
		before = need
	}
	// It is a quarter of the state, with weights and gradients of the embeddings and of two layers.
	C := o.Cfg.Channels
	whole := spmd.AllocSize[float32]((o.Cfg.PaddedVocab()+o.Cfg.SeqMax)*C) + 2*spmd.AllocSize[float32](8*C*C) +
		2*spmd.AllocSize[float32](4*C*C)
	want := 4*spmd.AllocSize[float32](params/4) + 2*whole
	if state := before - activations; state < want-want/100 || state > want+want/100 {
		t.Errorf("--shard parameters on 4 ranks needs %d bytes beside the activations, want %d within 1 %%",
			state, want)
	}
	o.Cfg.Shard.Mode = layout.ShardOff
	all := traintest.Must(o.needs(1, 4))
	for _, tc := range []struct {
		room, ranks int
		want        string
	}{
		{all - 1, 4, " --recompute gelu"}, {before, 4, " --shard gradients --recompute gelu"},
		{before / 2, 4, " --tp 4"}, {before * 2 / 5, 4, " --tp 4 --recompute block"}, {before / 4, 4, ""},
		{all - 1, 1, " --recompute gelu"}, {before, 1, ""},
	} {
		if got := o.wouldFit(tc.room, tc.ranks); got != tc.want {
			t.Errorf("into %d bytes on %d ranks it fits with %q, want %q", tc.room, tc.ranks, got, tc.want)
		}
	}
	// If activations are most of the memory, ranks divide them with the layers.
	o.Batch, o.GlobalBatch = 32, 32
	most := *o
	most.Cfg.Shard.Mode, most.Cfg.Recompute = layout.ShardParameters, layout.RecomputeBlock
	room := traintest.Must(most.needs(32, 4)) - 1
	most.tp, most.Cfg.Tensor.Ranks = 2, 2
	for mode, want := range []string{" --tp 2 --recompute block", " --tp 2 --shard optimizer --recompute block"} {
		if got := o.wouldFit(room, 4); got != want {
			t.Errorf("into %d bytes it fits with %q, want %q", room, got, want)
		}
		most.Cfg.Shard = layout.Sharding{Mode: layout.ShardMode(mode), Ranks: 2}
		need := traintest.Must(most.needs(32, 4))
		if need > room {
			t.Errorf("with%s it needs %d bytes of %d", want, need, room)
		}
		room = need - 1
	}
}

// With --shard parameters, one of R ranks needs 16 bytes of each of P parameters over R, beside the
// activations. The rest is at most a tenth of the run's need, at usual numbers of sequences.
func TestShardedMemoryOfParameters(t *testing.T) {
	for _, tc := range []struct {
		model string
		batch int
	}{{"gpt2-medium", 8}, {"gpt2-large", 8}, {"gpt2-xl", 4}, {"gpt2-xl", 8}, {"gpt2-xl", 32}} {
		for _, ranks := range []int{2, 4, 8} {
			o := New()
			o.Batch, o.Seq, o.GlobalBatch, o.DType = tc.batch, 1024, tc.batch*ranks, "bfloat16"
			o.Given = func(string) bool { return false }
			o.Cfg = layout.Presets[tc.model]
			o.Cfg.Vocab = 50257
			params := o.Cfg.ParamCount()
			// weights, their rounded copies, gradients and two moments
			activations := traintest.Must(o.needs(tc.batch, ranks)) - 18*params
			o.Cfg.Shard = layout.Sharding{Mode: layout.ShardParameters, Ranks: ranks}
			need, want := traintest.Must(o.needs(tc.batch, ranks)), activations+16*params/ranks
			if need < want || need > want+want/10 {
				t.Errorf("%s, %d sequences on %d ranks: %d bytes, of which 16 a parameter and activations are %d: %.3f",
					tc.model, tc.batch, ranks, need, want, float64(need)/float64(want))
			}
		}
	}
}
