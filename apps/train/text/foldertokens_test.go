package text

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// A folder is refused if its tokens have other numbers, or are merged in another order, whichever
// of its files says so. Missing files are named.
func TestCheckTokens(t *testing.T) {
	gpt2 := NewGPT2()
	dir := t.TempDir()
	own, merges, err := gpt2.Files()
	testkit.Must(t, err)
	put := func(name string, b []byte) {
		t.Helper()
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), b, 0o666))
	}
	put("vocab.json", own)
	put("merges.txt", merges)
	if missing, err := CheckTokens(dir, gpt2); missing != "" || err != nil {
		t.Fatalf("GPT-2's own tokens: %q, %v", missing, err)
	}
	var vocab map[string]int
	testkit.Must(t, json.Unmarshal(own, &vocab))
	swapped := func(vocab map[string]int) []byte {
		other := map[string]int{}
		for text, id := range vocab {
			other[text] = id
		}
		other["the"], other["and"] = other["and"], other["the"]
		b, _ := json.Marshal(other)
		return b
	}
	lines := strings.Split(strings.TrimSpace(string(merges)), "\n")[1:]
	type model struct {
		Type   string          `json:"type"`
		Vocab  json.RawMessage `json:"vocab"`
		Merges any             `json:"merges"`
	}
	var pairs [][]string
	for _, l := range lines {
		pairs = append(pairs, strings.Fields(l))
	}
	tokenizer := func(vocab []byte, merges any, before string) []byte {
		b, err := json.Marshal(map[string]any{"model": model{"BPE", vocab, merges},
			"pre_tokenizer": map[string]any{"type": before},
			"added_tokens":  []map[string]any{{"id": GPT2End, "content": "<|endoftext|>"}}})
		testkit.Must(t, err)
		return b
	}
	turned := slices.Clone(lines)
	turned[1], turned[2] = turned[2], turned[1]
	for _, tc := range []struct {
		name    string
		files   map[string][]byte // instead of those that are there
		missing string
		want    string // of the error
	}{
		{"nothing", nil, "vocab.json, merges.txt and tokenizer.json", ""},
		{"vocab.json alone", map[string][]byte{"vocab.json": own}, "merges.txt", ""},
		{"tokenizer.json alone", map[string][]byte{"tokenizer.json": tokenizer(own, lines, "ByteLevel")}, "", ""},
		{"tokenizer.json with pairs", map[string][]byte{"tokenizer.json": tokenizer(own, pairs, "ByteLevel")}, "", ""},
		{"other numbers", map[string][]byte{"vocab.json": swapped(vocab), "merges.txt": merges}, "",
			`vocab.json: "the" is token 392, and not 1169`},
		{"other numbers in tokenizer.json",
			map[string][]byte{"tokenizer.json": tokenizer(swapped(vocab), lines, "ByteLevel")}, "",
			`tokenizer.json: "the" is token 392, and not 1169`},
		{"another order", map[string][]byte{"vocab.json": own, "merges.txt": []byte(strings.Join(turned, "\n"))}, "",
			"merges.txt: merge 2 is"},
		{"fewer", map[string][]byte{"vocab.json": []byte(`{"!": 0}`)}, "",
			"vocab.json: it has 1 tokens, and not 50257"},
		{"other texts", map[string][]byte{"vocab.json": []byte(`{"[CLS]": 0}`)}, "",
			`vocab.json: token 0 is "[CLS]", which is none of them`},
		{"words", map[string][]byte{"tokenizer.json": tokenizer(own, lines, "Whitespace")}, "",
			`tokenizer.json: its pre_tokenizer is "Whitespace"`},
		{"SentencePiece", map[string][]byte{"tokenizer.model": {1}}, "", "tokenizer.model: it is of SentencePiece"},
		{"no JSON", map[string][]byte{"vocab.json": []byte("<html>")}, "", "vocab.json: invalid character"},
	} {
		for _, f := range []string{"vocab.json", "merges.txt", "tokenizer.json", "tokenizer.model"} {
			os.Remove(filepath.Join(dir, f)) // which need not be there
			if b := tc.files[f]; b != nil {
				put(f, b)
			}
		}
		missing, err := CheckTokens(dir, gpt2)
		if missing != tc.missing || (err == nil) != (tc.want == "") ||
			err != nil && (!strings.Contains(err.Error(), tc.want) ||
				!strings.Contains(err.Error(), "other tokens than --tokens gpt2")) {
			t.Errorf("%s: %q, %v; want %q, %q", tc.name, missing, err, tc.missing, tc.want)
		}
	}
	dir = t.TempDir()
	if missing, err := CheckTokens(dir, Bytes{}); missing != "" || err != nil {
		t.Errorf("bytes: %q, %v", missing, err)
	}
	put("vocab.json", []byte("{}"))
	if _, err := CheckTokens(dir, Bytes{}); err == nil ||
		!strings.Contains(err.Error(), "vocab.json: the folder has tokens of its own") {
		t.Errorf("bytes beside a vocab.json: %v", err)
	}
}
