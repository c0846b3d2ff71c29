package train

import (
	"bytes"
	"math"
	"testing"

	"github.com/tiktoken-go/tokenizer/codec"

	"lockstep/bench/harness"
)

// The difference of the last losses counts, with its sign; those before it do not.
func TestLossRow(t *testing.T) {
	l := lossBench{model: "gpt2", batch: 8, seq: 1024, steps: 300}
	l.Set, l.Group, l.GPUs = harness.GPUSet, "loss", []string{"a GPU"}
	ours, theirs := make([]timedStep, 300), make([]harness.TrainStep, 300)
	for i := range ours {
		theirs[i].Loss = 3
		ours[i].Loss = 5 // in the steps that do not count
		switch {
		case i >= 250:
			ours[i].Loss = 3.03
		case i >= 200:
			ours[i].Loss = 2.99
		}
	}
	for _, tc := range []struct {
		flags string
		goal  float64
	}{{"", 0.01}, {"--fp8=all", 0.02}} {
		if err := l.rowOf(tc.flags, ours, theirs); err != nil {
			t.Fatal(err)
		}
		r := l.Rows[len(l.Rows)-1]
		for _, x := range []struct{ got, want float64 }{{r.Ours, 0.01}, {r.Parts["mean_of_sizes"], 0.02}, {r.Parts["first"], 2}, {r.Parts["pytorch"], 3}, {r.Goal, tc.goal}} {
			if math.Abs(x.got-x.want) > 1e-9 {
				t.Errorf("%q: %v, want %v: %+v", tc.flags, x.got, x.want, r)
			}
		}
	}
	if err := l.rowOf("", ours[1:], theirs); err == nil {
		t.Error("299 losses beside 300 are taken")
	}
}

// The tokens of a text give the text again, however many parts it has; those that nobody asked for may be missing.
func TestEncode(t *testing.T) {
	text := bytes.Repeat([]byte("a line of words, and of 1,234 numbers\n\tand another, that begins with a tab\n"), 1<<15)
	text = append(text, "the last has no end"...)
	for _, most := range []int{0, 1, math.MaxInt} {
		ids, err := encode(text, most)
		if err != nil {
			t.Fatal(err)
		}
		got, err := codec.NewR50kBase().Decode(ids)
		if err != nil {
			t.Fatal(err)
		}
		if len(ids) < min(most, 1) || most == 0 && len(ids) > 0 || most > 1 && got != string(text) || !bytes.HasPrefix(text, []byte(got)) {
			t.Errorf("of %d bytes, %d tokens asked for: %d, of %d bytes", len(text), most, len(ids), len(got))
		}
	}
}
