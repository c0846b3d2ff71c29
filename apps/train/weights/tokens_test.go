package weights

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/apps/train/layout"
	"lockstep/apps/train/text"
)

// folderOf writes a folder of weights with GPT-2's tokens, and returns it.
func folderOf(t *testing.T, tok text.Tokenizer) string {
	t.Helper()
	dir := t.TempDir()
	cfg := layout.Config{Layers: 1, Heads: 2, Channels: 8, SeqMax: 6, Vocab: tok.IDs()}
	if _, err := Write(dir, cfg, tok, awkward(cfg, 3), nil); err != nil {
		t.Fatal(err)
	}
	return dir
}

// change replaces a file of a folder by the result of fn.
func change(t *testing.T, dir, file string, fn func(b []byte) []byte) {
	t.Helper()
	path := filepath.Join(dir, file)
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, fn(b), 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A folder is refused if its tokens have other numbers, or are merged in another order, whichever
// of its files says so. Missing files are named.
func TestCheckTokens(t *testing.T) {
	gpt2 := text.NewGPT2()
	dir := folderOf(t, gpt2)
	check := func(dir string) (string, error) {
		t.Helper()
		h, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		return h.CheckTokens(gpt2)
	}
	if missing, err := check(dir); missing != "" || err != nil {
		t.Fatalf("GPT-2's own tokens: %q, %v", missing, err)
	}
	var vocab map[string]int
	change(t, dir, "vocab.json", func(b []byte) []byte {
		if err := json.Unmarshal(b, &vocab); err != nil {
			t.Fatal(err)
		}
		return b
	})
	swapped := func(vocab map[string]int) []byte {
		other := map[string]int{}
		for text, id := range vocab {
			other[text] = id
		}
		other["the"], other["and"] = other["and"], other["the"]
		b, _ := json.Marshal(other)
		return b
	}
	merges, err := os.ReadFile(filepath.Join(dir, "merges.txt"))
	if err != nil {
		t.Fatal(err)
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
	own, _ := json.Marshal(vocab)
	tokenizer := func(vocab []byte, merges any, before string) []byte {
		b, err := json.Marshal(map[string]any{"model": model{"BPE", vocab, merges},
			"pre_tokenizer": map[string]any{"type": before},
			"added_tokens":  []map[string]any{{"id": text.GPT2End, "content": "<|endoftext|>"}}})
		if err != nil {
			t.Fatal(err)
		}
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
				if err := os.WriteFile(filepath.Join(dir, f), b, 0o666); err != nil {
					t.Fatal(err)
				}
			}
		}
		missing, err := check(dir)
		if missing != tc.missing || (err == nil) != (tc.want == "") ||
			err != nil && (!strings.Contains(err.Error(), tc.want) ||
				!strings.Contains(err.Error(), "other tokens than --tokens gpt2")) {
			t.Errorf("%s: %q, %v; want %q, %q", tc.name, missing, err, tc.missing, tc.want)
		}
	}
	bytes := folderOf(t, text.Bytes{})
	h, err := Open(bytes)
	if err != nil {
		t.Fatal(err)
	}
	if missing, err := h.CheckTokens(text.Bytes{}); missing != "" || err != nil {
		t.Errorf("bytes: %q, %v", missing, err)
	}
	if err := os.WriteFile(filepath.Join(bytes, "vocab.json"), []byte("{}"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := h.CheckTokens(text.Bytes{}); err == nil ||
		!strings.Contains(err.Error(), "vocab.json: the folder has tokens of its own") {
		t.Errorf("bytes beside a vocab.json: %v", err)
	}
}

// config.json may have the numbers of the shape by the names that transformers accept
// beside GPT-2's own.
func TestOtherNames(t *testing.T) {
	dir := folderOf(t, text.Bytes{})
	change(t, dir, "config.json", func(b []byte) []byte {
		s := string(b)
		for _, n := range otherNames {
			s = strings.Replace(s, `"`+n[0]+`"`, `"`+n[1]+`"`, 1)
		}
		return []byte(s)
	})
	h, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if h.Cfg.Heads != 2 || h.Cfg.Layers != 1 || h.Cfg.Channels != 8 || h.Cfg.SeqMax != 6 {
		t.Errorf("the shape is %+v", h.Cfg)
	}
	change(t, dir, "config.json", func(b []byte) []byte {
		return []byte(strings.Replace(string(b), "{", `{"n_head": 4,`, 1))
	})
	if _, err := Open(dir); err == nil ||
		!strings.Contains(err.Error(), "n_head is 4, and num_attention_heads 2: they are two names of one number") {
		t.Errorf("two values: %v", err)
	}
}

// A file that Git LFS has not fetched is named as that.
func TestPointerFiles(t *testing.T) {
	for _, file := range []string{"model.safetensors", "config.json"} {
		dir := folderOf(t, text.Bytes{})
		change(t, dir, file, func([]byte) []byte {
			return []byte("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 548105171\n")
		})
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), file+": a pointer file of Git LFS") {
			t.Errorf("%s: %v", file, err)
		}
	}
}
