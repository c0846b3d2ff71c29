package text

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"lockstep/internal/runfiles"
)

// A folder of weights may name its model's tokens: in vocab.json and merges.txt, or in
// tokenizer.json with both in one, as the class PreTrainedTokenizerFast of transformers has it.
const (
	vocabFile     = "vocab.json"
	mergesFile    = "merges.txt"
	tokenizerFile = "tokenizer.json"
	pieceFile     = "tokenizer.model"
)

// CheckTokens compares the tokens of a folder of weights with tok. A model that learned with other
// numbers is another model. missing names the files that would say all, or is "" if they are there.
func CheckTokens(dir string, tok Tokenizer) (missing string, err error) {
	gpt2, is := tok.(*GPT2)
	var found []string
	var vocab map[string]int // of GPT-2, once something is compared with it
	var merges []string
	for _, f := range []struct {
		name  string
		check func(b []byte, vocab map[string]int, merges []string) error
	}{
		{vocabFile, func(b []byte, vocab map[string]int, _ []string) error {
			var has map[string]int
			if err := json.Unmarshal(b, &has); err != nil {
				return err
			}
			return sameVocab(has, vocab)
		}},
		{mergesFile, func(b []byte, _ map[string]int, merges []string) error {
			return sameMerges(mergeLines(b), merges)
		}},
		{tokenizerFile, checkTokenizer},
		{pieceFile, func([]byte, map[string]int, []string) error { return errors.New("it is of SentencePiece") }},
	} {
		b, err := runfiles.ReadSmall(filepath.Join(dir, f.name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && !is {
			err = fmt.Errorf("%s: the folder has tokens of its own", f.name)
		} else if err == nil {
			if vocab == nil {
				vocab, merges, err = tables(gpt2)
			}
			if err == nil {
				err = f.check(b, vocab, merges)
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", f.name, err)
			}
		}
		if err != nil {
			return "", fmt.Errorf("--init-from %s: the model has other tokens than --tokens %s: %w",
				dir, flagOf(tok), err)
		}
		found = append(found, f.name)
	}
	switch {
	case !is || slices.Contains(found, tokenizerFile) ||
		slices.Contains(found, vocabFile) && slices.Contains(found, mergesFile):
		return "", nil
	case slices.Contains(found, vocabFile):
		return mergesFile, nil
	case slices.Contains(found, mergesFile):
		return vocabFile, nil
	}
	return vocabFile + ", " + mergesFile + " and " + tokenizerFile, nil
}

// flagOf returns the value of --tokens for a tokenizer.
func flagOf(tok Tokenizer) string {
	short, _, _ := strings.Cut(tok.Name(), "-")
	return short
}

// tables returns the numbers of GPT-2's tokens, and the merges in their order.
func tables(t *GPT2) (vocab map[string]int, merges []string, err error) {
	v, m, err := t.Files()
	if err == nil {
		err = json.Unmarshal(v, &vocab)
	}
	return vocab, mergeLines(m), err
}

// mergeLines returns the merges of a merges.txt, without the line of its version.
func mergeLines(b []byte) (lines []string) {
	for line := range strings.Lines(string(b)) {
		line = strings.TrimRight(line, "\r\n")
		if line != "" && !strings.HasPrefix(line, "#version") {
			lines = append(lines, line)
		}
	}
	return lines
}

// sameVocab compares the numbers of tokens, and names the first that differs.
func sameVocab(has, want map[string]int) error {
	type token struct {
		text string
		id   int
	}
	var wrong []token
	for text, id := range has {
		if n, ok := want[text]; !ok || n != id {
			wrong = append(wrong, token{text, id})
		}
	}
	if len(wrong) > 0 {
		first := slices.MinFunc(wrong,
			func(a, b token) int { return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.text, b.text)) })
		if n, ok := want[first.text]; ok {
			return fmt.Errorf("%q is token %d, and not %d", first.text, first.id, n)
		}
		return fmt.Errorf("token %d is %q, which is none of them", first.id, first.text)
	}
	if len(has) != len(want) {
		return fmt.Errorf("it has %d tokens, and not %d", len(has), len(want))
	}
	return nil
}

func sameMerges(has, want []string) error {
	for i := range min(len(has), len(want)) {
		if has[i] != want[i] {
			return fmt.Errorf("merge %d is %q, and not %q", i+1, has[i], want[i])
		}
	}
	if len(has) != len(want) {
		return fmt.Errorf("it has %d merges, and not %d", len(has), len(want))
	}
	return nil
}

// checkTokenizer compares a tokenizer.json. Its merges are texts, or pairs in newer files.
func checkTokenizer(b []byte, vocab map[string]int, merges []string) error {
	var has struct {
		Added []struct {
			ID      int    `json:"id"`
			Content string `json:"content"`
		} `json:"added_tokens"`
		Before struct {
			Type   string `json:"type"`
			Prefix bool   `json:"add_prefix_space"`
		} `json:"pre_tokenizer"`
		Model struct {
			Type   string            `json:"type"`
			Vocab  map[string]int    `json:"vocab"`
			Merges []json.RawMessage `json:"merges"`
		} `json:"model"`
	}
	if err := json.Unmarshal(b, &has); err != nil {
		return err
	}
	switch {
	case has.Model.Type != "" && has.Model.Type != "BPE":
		return fmt.Errorf("its model is %s, and not BPE", has.Model.Type)
	case has.Before.Type != "ByteLevel":
		return fmt.Errorf("its pre_tokenizer is %q, and not ByteLevel", has.Before.Type)
	case has.Before.Prefix:
		return errors.New("it puts a space before a text")
	}
	all := map[string]int{}
	for text, id := range has.Model.Vocab {
		all[text] = id
	}
	for _, t := range has.Added {
		all[t.Content] = t.ID
	}
	if err := sameVocab(all, vocab); err != nil {
		return err
	}
	lines := make([]string, len(has.Model.Merges))
	for i, m := range has.Model.Merges {
		var pair []string
		if err := json.Unmarshal(m, &lines[i]); err == nil {
			continue
		}
		if err := json.Unmarshal(m, &pair); err != nil {
			return err
		}
		lines[i] = strings.Join(pair, " ")
	}
	return sameMerges(lines, merges)
}
