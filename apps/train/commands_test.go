package main

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"lockstep/apps/train/traintest"
	"lockstep/spmd/spmdtest"
)

func TestWholeRunes(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "abc": 3, "ä": 2, "a\xc3": 1, "\xe2\x82": 0, "x€": 4, "\xf0\x9f\x98": 0, "\x80\x80": 2, "a\xff": 2,
		"€\x80": 4,
	} {
		if got := wholeRunes([]byte(text)); got != want {
			t.Errorf("%q: %d bytes, want %d", text, got, want)
		}
	}
}

// From the checkpoint alone the program writes text like the run's, and finds the run's loss.
func TestSampleAndEval(t *testing.T) {
	besideOthers(t)
	spmdtest.Ranks(t, 3)
	const sentence = "abcdefghijklmnop\n"
	dir, data := t.TempDir(), t.TempDir()
	text := traintest.Write(t, data, "text.txt", strings.Repeat(sentence, 400))
	r, _ := finishQuickly(t, 2, "--data", text, "--steps", "80", "--layers", "2", "--channels", "32", "--heads", "2",
		"--seq", "24", "--batch", "4", "--global-batch", "8",
		"--lr", "0.01", "--sample", "0", "--json", "-", "--checkpoint", dir, "--dtype", "float32")
	want := strings.Repeat(sentence, 4)[:len(sentence)+3+40]
	for _, args := range [][]string{
		{"sample", "--checkpoint", dir, "--prompt", sentence + "abc", "--max-tokens", "40", "--temperature", "0"},
		{"sample", dir, "--prompt", sentence + "abc", "--max-tokens", "40", "--top-k", "1", "--dtype", "bfloat16"},
	} {
		if p := quickly(t, 0, args...); p.Status != 0 || p.Stdout != want+"\n" || !strings.Contains(p.Stderr, "tok/s") {
			t.Errorf("%v: status %d, wrote %q, want %q; stderr:\n%s", args, p.Status, p.Stdout, want, p.Stderr)
		}
	}
	p := quickly(t, 0, "sample", dir, "--prompt", sentence, "--max-tokens", "5", "--json", "-", "--temperature", "0")
	var rec sampleRecord
	if err := json.Unmarshal([]byte(p.Stdout), &rec); err != nil || rec.Text != sentence+"abcde" || rec.Tokens != 5 ||
		rec.PromptTokens != len(sentence) || rec.Steps != 80 {
		t.Errorf("told %+v, error %v:\n%s", rec, err, p.Stdout)
	}
	// The same seed writes the same text, another seed another text.
	wild := func(seed string) string {
		return train(t, 0, "sample", dir, "--max-tokens", "60", "--temperature", "5", "--ignore-end", "--seed",
			seed).Stdout
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
			p := quickly(t, ranks, append([]string{"eval", "--checkpoint", dir, "--data", text, "--json", "-",
				"--batch", batch, "--dtype", "float32"}, c.args...)...)
			var rec evalRecord
			if err := json.Unmarshal([]byte(p.Stdout), &rec); err != nil || p.Status != 0 {
				t.Fatalf("%v: status %d, error %v:\n%s%s", c.args, p.Status, err, p.Stdout, p.Stderr)
			}
			if rec.Sequences != c.n || rec.Tokens != 24*c.n || rec.Steps != 80 || rec.Ranks != max(1, ranks) {
				t.Errorf("%v: told %+v", c.args, rec)
			}
			if !(rec.Loss > 0 && rec.Loss < 0.3) || !traintest.CloseTo(rec.Perplexity, math.Exp(rec.Loss), 1e-9) {
				t.Errorf("%v: loss %g, perplexity %g", c.args, rec.Loss, rec.Perplexity)
			}
			if rec.Part == "val" && !traintest.CloseTo(rec.Loss, *r.summary.ValLoss, 1e-5) {
				t.Errorf("%d ranks: loss %g on what the run had %g on", ranks, rec.Loss, *r.summary.ValLoss)
			}
		}
	}

	short := traintest.Write(t, data, "short.txt", "a few bytes")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"sample"}, "--checkpoint is missing"},
		{[]string{"sample", dir, "--max-tokens", "0"}, "--max-tokens 0"},
		{[]string{"sample", dir, "--top-k", "-1"}, "--top-k -1"},
		{[]string{"sample", dir, "--mid-document"}, "--mid-document needs a --prompt"},
		{[]string{"sample", dir, "--temperature", "nan"}, "--temperature NaN"},
		{[]string{"sample", dir, "--dtype", "int8"}, "--dtype int8"},
		{[]string{"sample", dir, "--data", text}, "unknown flag: --data"},
		{[]string{"eval", dir, "--data", text, "--batch", "0"}, "--batch 0"},
		{[]string{"eval", dir, "--data", text, "--part", "most"}, "--part most"},
		{[]string{"eval", dir, "--data", text, "--sequences", "-1"}, "--sequences -1"},
		{[]string{"eval", dir, "--data", data + "/none"}, "none: no such file"},
		{[]string{"eval", dir, "--data", short}, "12 tokens are too few"},
	} {
		p := quickly(t, 0, c.args...)
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
