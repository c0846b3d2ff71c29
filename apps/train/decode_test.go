package main

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/spmd"
	"lockstep/spmd/spmdtest"
)

// modelOf is a model on a stream of w, with the given weights.
func modelOf[A Act](t *testing.T, w *spmd.World, cfg Config, p map[string][]float64) (*Model[A], *spmd.Stream) {
	t.Helper()
	m, err := NewModel[A](w, cfg, 1, cfg.SeqMax)
	if err != nil {
		t.Fatal(err)
	}
	s, err := w.NewStream("test")
	if err != nil {
		t.Fatal(err)
	}
	loadParams(t, m.Params, m.Weights, p)
	if err := m.Refresh(s); err != nil {
		t.Fatal(err)
	}
	return m, s
}

// A sequence that grows, by pieces and token by token, has the logits that the whole
// forward pass has for it.
func TestDecode(t *testing.T) {
	onBoth(t, []int{1}, testDecode[float32], testDecode[spmd.BF16])
}

func testDecode[A Act](t *testing.T, w *spmd.World) {
	bound := 1e-5
	switch {
	case isHalf[A]():
		bound = 0.02
	case !w.OnHost(): // whose sums go in other orders
		bound = 1e-4
	}
	worst := 0.0
	for _, c := range []struct {
		cfg   Config
		first int // tokens at once; then one by one
	}{
		{Config{Layers: 1, Heads: 1, Channels: 1, SeqMax: 3, Vocab: 2}, 1},
		{small, 5},
		{Config{Layers: 3, Heads: 3, Channels: 3 * 37, SeqMax: 80, Vocab: 300}, 70},
		{Config{Layers: 2, Heads: 1, Channels: 300, SeqMax: 12, Vocab: 61}, 3}, // a head wider than a block
		{Config{Layers: 2, Heads: 4, Channels: 64, SeqMax: 600, Vocab: 130}, 2*decodeRows + 30},
	} {
		m, s := modelOf[A](t, w, c.cfg, randomParams(c.cfg, 1))
		d, err := newDecoder(s, c.cfg, m.Weights, m.half, c.cfg.SeqMax)
		if err != nil {
			t.Fatal(err)
		}
		tokens := randomTokens(min(c.cfg.SeqMax, c.first+9), c.cfg.Vocab, 3)
		var all [2][][]float32
		for round := range all { // the second time after a reset, with everything seen
			d.reset()
			for at, n := 0, c.first; at < len(tokens); at, n = at+n, 1 {
				got, err := d.next(tokens[at : at+n])
				if err != nil {
					t.Fatal(err)
				}
				if d.len() != at+n {
					t.Fatalf("%d tokens, want %d", d.len(), at+n)
				}
				all[round] = append(all[round], slices.Clone(got))
				if round > 0 {
					continue
				}
				out, err := m.Logits(s, tokenBuffer(t, w, tokens[:at+n]))
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Synchronize(); err != nil {
					t.Fatal(err)
				}
				want, largest := floatsOf(t, out), 0.0
				for _, v := range want {
					largest = max(largest, math.Abs(float64(v)))
				}
				for i := range want {
					if diff := math.Abs(float64(got[i]-want[i])) / largest; !(diff < bound) {
						t.Fatalf("%+v: logit %d after %d tokens is %g, of the whole pass %g", c.cfg, i, at+n, got[i], want[i])
					} else {
						worst = max(worst, diff)
					}
				}
			}
		}
		if !slices.EqualFunc(all[0], all[1], slices.Equal[[]float32]) {
			t.Errorf("%+v: other logits the second time", c.cfg)
		}
		if _, err := d.next(make([]int32, c.cfg.SeqMax-d.len()+1)); err == nil {
			t.Error("more tokens than positions are taken")
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	kind := "float32"
	if isHalf[A]() {
		kind = "bfloat16"
	}
	measured(t, "largest difference of a "+kind+" logit with cached keys and values, relative to the largest logit", worst)
}

func TestKeepTop(t *testing.T) {
	none := float32(math.Inf(-1))
	for k, want := range map[int][]float32{0: {1, 3, 2, 3}, 1: {none, 3, none, none}, 2: {none, 3, none, 3}, 3: {none, 3, 2, 3}, 4: {1, 3, 2, 3}, 9: {1, 3, 2, 3}} {
		got := []float32{1, 3, 2, 3}
		if keepTop(got, k); !slices.Equal(got, want) {
			t.Errorf("the %d largest: %v, want %v", k, got, want)
		}
	}
}

func TestWholeRunes(t *testing.T) {
	for text, want := range map[string]int{"": 0, "abc": 3, "ä": 2, "a\xc3": 1, "\xe2\x82": 0, "x€": 4, "\xf0\x9f\x98": 0, "\x80\x80": 2, "a\xff": 2, "€\x80": 4} {
		if got := wholeRunes([]byte(text)); got != want {
			t.Errorf("%q: %d bytes, want %d", text, got, want)
		}
	}
}

// With nothing but the checkpoint the program writes what its run has learned, and finds
// the loss that the run found.
func TestSampleAndEval(t *testing.T) {
	besideOthers(t)
	spmdtest.Ranks(t, 3)
	const sentence = "abcdefghijklmnop\n"
	dir, data := t.TempDir(), t.TempDir()
	text := write(t, data, "text.txt", strings.Repeat(sentence, 400))
	r, _ := finish(t, 2, "--data", text, "--steps", "80", "--layers", "2", "--channels", "32", "--heads", "2", "--seq", "24", "--batch", "4", "--global-batch", "8",
		"--lr", "0.01", "--sample", "0", "--json", "-", "--checkpoint", dir, "--dtype", "float32")
	want := strings.Repeat(sentence, 4)[:len(sentence)+3+40]
	for _, args := range [][]string{
		{"sample", "--checkpoint", dir, "--prompt", sentence + "abc", "--max-tokens", "40", "--temperature", "0"},
		{"sample", dir, "--prompt", sentence + "abc", "--max-tokens", "40", "--top-k", "1", "--dtype", "bfloat16"},
	} {
		if p := train(t, 0, args...); p.Status != 0 || p.Stdout != want+"\n" || !strings.Contains(p.Stderr, "tok/s") {
			t.Errorf("%v: status %d, wrote %q, want %q; stderr:\n%s", args, p.Status, p.Stdout, want, p.Stderr)
		}
	}
	p := train(t, 0, "sample", dir, "--prompt", sentence, "--max-tokens", "5", "--json", "-", "--temperature", "0")
	var rec sampleRecord
	if err := json.Unmarshal([]byte(p.Stdout), &rec); err != nil || rec.Text != sentence+"abcde" || rec.Tokens != 5 || rec.PromptTokens != len(sentence) || rec.Steps != 80 {
		t.Errorf("told %+v, error %v:\n%s", rec, err, p.Stdout)
	}
	// The same seed writes the same, another one something else.
	wild := func(seed string) string {
		return train(t, 0, "sample", dir, "--max-tokens", "60", "--temperature", "5", "--ignore-end", "--seed", seed).Stdout
	}
	if a, b, c := wild("1"), wild("1"), wild("2"); a != b || a == c || len(a) < 60 {
		t.Errorf("seeds 1, 1, 2 write %q, %q, %q", a, b, c)
	}

	for ranks, batch := range map[int]string{0: "4", 3: "2"} {
		for _, c := range []struct {
			args []string
			n    int // sequences; of 6801 tokens the last 340 are for validation
		}{
			{[]string{"--part", "val"}, 14},
			{[]string{"--part", "train"}, 269},
			{nil, 283},
			{[]string{"--sequences", "2"}, 2}, // a rank of 3 has none
		} {
			p := train(t, ranks, append([]string{"eval", "--checkpoint", dir, "--data", text, "--json", "-", "--batch", batch, "--dtype", "float32"}, c.args...)...)
			var rec evalRecord
			if err := json.Unmarshal([]byte(p.Stdout), &rec); err != nil || p.Status != 0 {
				t.Fatalf("%v: status %d, error %v:\n%s%s", c.args, p.Status, err, p.Stdout, p.Stderr)
			}
			if rec.Sequences != c.n || rec.Tokens != 24*c.n || rec.Steps != 80 || rec.Ranks != max(1, ranks) {
				t.Errorf("%v: told %+v", c.args, rec)
			}
			if !(rec.Loss > 0 && rec.Loss < 0.3) || !closeTo(rec.Perplexity, math.Exp(rec.Loss), 1e-9) {
				t.Errorf("%v: loss %g, perplexity %g", c.args, rec.Loss, rec.Perplexity)
			}
			if rec.Part == "val" && !closeTo(rec.Loss, *r.summary.ValLoss, 1e-5) {
				t.Errorf("%d ranks: loss %g on what the run had %g on", ranks, rec.Loss, *r.summary.ValLoss)
			}
		}
	}

	short := write(t, data, "short.txt", "a few bytes")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"sample"}, "--checkpoint is missing"},
		{[]string{"sample", dir, "--max-tokens", "0"}, "--max-tokens 0"},
		{[]string{"sample", dir, "--top-k", "-1"}, "--top-k -1"},
		{[]string{"sample", dir, "--temperature", "nan"}, "--temperature NaN"},
		{[]string{"sample", dir, "--dtype", "int8"}, "--dtype int8"},
		{[]string{"sample", dir, "--data", text}, "unknown flag: --data"},
		{[]string{"eval", dir, "--data", text, "--batch", "0"}, "--batch 0"},
		{[]string{"eval", dir, "--data", text, "--part", "most"}, "--part most"},
		{[]string{"eval", dir, "--data", text, "--sequences", "-1"}, "--sequences -1"},
		{[]string{"eval", dir, "--data", data + "/none"}, "none: no such file"},
		{[]string{"eval", dir, "--data", short}, "12 tokens are too few"},
	} {
		p := train(t, 0, c.args...)
		prefix, lines := fmt.Sprintf("train %s: ", c.args[0]), 0
		for line := range strings.Lines(p.Stderr) {
			if strings.HasPrefix(line, prefix) && strings.Contains(line, c.want) {
				lines++
			}
		}
		if p.Status != 2 || lines != 1 || p.Stdout != "" {
			t.Errorf("%v: status %d, want 2 and one line with %q:\n%s", c.args, p.Status, c.want, p.Stderr)
		}
	}
}
