package main

import (
	"bytes"
	"math"
	"testing"

	"github.com/tiktoken-go/tokenizer/codec"

	"lockstep/bench/measure"
	"lockstep/internal/testkit"
)

// The signed difference of the last losses counts, those before do not. Several seeds
// give their mean.
func TestLossRow(t *testing.T) {
	l := lossBench{model: "gpt2", batch: 8, seq: 1024, steps: 300}
	l.Set, l.Group, l.GPUs = measure.GPUSet, "loss", []string{"a GPU"}
	theirs := make([]measure.TrainStep, 300)
	for i := range theirs {
		theirs[i].Loss = 3
	}
	// The last 100 have the mean of 3.03+add and 2.99+add.
	run := func(add float64) learned {
		t.Helper()
		ours := make([]timedStep, 300)
		for i := range ours {
			ours[i].Loss = 5 // in the steps that do not count
			switch {
			case i >= 250:
				ours[i].Loss = 3.03 + add
			case i >= 200:
				ours[i].Loss = 2.99 + add
			}
		}
		d, err := compareLosses(ours, theirs)
		testkit.Must(t, err)
		return d
	}
	for _, tc := range []struct {
		flags        string
		add          []float64
		signed, size float64
		goal         float64
	}{
		{"", []float64{0}, 0.01, 0.02, 0.01},
		{"--fp8=all", []float64{0}, 0.01, 0.02, 0.02},
		{"", []float64{0, -0.06}, -0.02, 0.035, 0.01}, // sizes 0.02 and 0.05, the mean of 0.03 and 0.07
	} {
		var seeds []learned
		for _, add := range tc.add {
			seeds = append(seeds, run(add))
		}
		l.rowOf(tc.flags, seeds)
		r := l.Rows[len(l.Rows)-1]
		for _, x := range []struct{ got, want float64 }{{r.Ours, math.Abs(tc.signed)}, {r.Parts["signed"], tc.signed},
			{r.Parts["mean_of_sizes"], tc.size}, {r.Parts["first"], 2}, {r.Parts["pytorch"], 3}, {r.Goal, tc.goal}} {
			if math.Abs(x.got-x.want) > 1e-9 {
				t.Errorf("%+v: %v, want %v: %+v", tc, x.got, x.want, r)
			}
		}
	}
	if _, err := compareLosses(make([]timedStep, 299), theirs); err == nil {
		t.Error("299 losses beside 300 are taken")
	}
}

// The tokens of a text give the text again, for any number of parts. Tokens beyond the wanted ones
// may be missing.
func TestEncode(t *testing.T) {
	text := bytes.Repeat([]byte("a line of words, and of 1,234 numbers\n\tand another, that begins with a tab\n"),
		1<<15)
	text = append(text, "the last has no end"...)
	for _, most := range []int{0, 1, math.MaxInt} {
		ids, err := encode(text, most)
		testkit.Must(t, err)
		got, err := codec.NewR50kBase().Decode(ids)
		testkit.Must(t, err)
		if len(ids) < min(most, 1) || most == 0 && len(ids) > 0 || most > 1 && got != string(text) ||
			!bytes.HasPrefix(text, []byte(got)) {
			t.Errorf("of %d bytes, %d tokens asked for: %d, of %d bytes", len(text), most, len(ids), len(got))
		}
	}
}
