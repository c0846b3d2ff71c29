package main

import "testing"

// What a model is said to need is what it takes, and for GPT-2 what its shape says.
func TestStateNeeded(t *testing.T) {
	gpt2 := presets["gpt2"]
	gpt2.Vocab = 50257
	const b, T, C, L, Vp, N = 8, 1024, 768, 12, 50304, 8 * 1024
	params := Vp*C + T*C + L*(12*C*C+13*C) + 2*C
	for _, half := range []bool{false, true} {
		act, perParam := 4, 16 // weight, gradient, two moments
		if half {
			act, perParam = 2, 18
		}
		got, err := stateNeeded(gpt2, b, T, half)
		if err != nil {
			t.Fatal(err)
		}
		least := params*perParam + act*N*(L*16*C+4*C)
		most := least + least/100 + act*N*(Vp+5*C) // logits, and gradients inside a layer
		if got < least || got > most {
			t.Errorf("half %v: %d bytes, want between %d and %d", half, got, least, most)
		}
		// The memory of one layer stands for that of all.
		for recompute, layer := range []int{0, 8 * C * act, 15*C*act + 4*(4+12)} {
			gpt2.Recompute = recomputation(recompute)
			if n := must(stateNeeded(gpt2, b, T, half)); n != got-(L-1)*N*layer {
				t.Errorf("half %v, --recompute %v: %d bytes less, want %d", half, gpt2.Recompute, got-n, (L-1)*N*layer)
			}
		}
		gpt2.Recompute = recomputeOff
	}
	if _, err := stateNeeded(gpt2, 1, T+1, false); err == nil {
		t.Error("more positions than the model has need no memory")
	}
}
