package text

import (
	"bytes"
	"fmt"
	"strconv"
)

// These are GPT-2's tokens in the files that transformers read: vocab.json and
// merges.txt, byte for byte as OpenAI published them. A character stands for each byte of
// a token, so that all tokens are text.

// byteRunes returns the characters that stand for the bytes: Latin-1's own if it prints, and those
// from U+0100 on, in order, for the other bytes.
func byteRunes() (runes [256]rune) {
	other := rune(256)
	for b := range runes {
		runes[b] = rune(b)
		if !printsInLatin1(b) {
			runes[b] = other
			other++
		}
	}
	return runes
}

// table returns the text of each token but the separator, in the order of their ids.
func (t *GPT2) table() ([]string, error) {
	tokens := make([]string, GPT2End)
	for id := range tokens {
		text, err := t.bpe.Decode([]uint{uint(id)})
		if err != nil {
			return nil, err
		}
		tokens[id] = text
	}
	return tokens, nil
}

// Files returns vocab.json and merges.txt. The library knows only the tokens. The two parts of a
// merge follow from merging a token's bytes by the merges before it.
func (t *GPT2) Files() (vocab, merges []byte, err error) {
	tokens, err := t.table()
	if err != nil {
		return nil, nil, err
	}
	runes := byteRunes()
	written := func(token string) string {
		r := make([]rune, len(token))
		for i := range len(token) {
			r[i] = runes[token[i]]
		}
		return string(r)
	}
	ids := make(map[string]int, len(tokens))
	for id, token := range tokens {
		ids[token] = id
	}
	var v, m bytes.Buffer
	m.WriteString("#version: 0.2\n")
	v.WriteByte('{')
	for id, token := range append(tokens, "<|endoftext|>") {
		name := token
		if id < GPT2End {
			name = written(token)
		}
		if id > 0 {
			v.WriteString(", ")
		}
		fmt.Fprintf(&v, "%s: %d", strconv.QuoteToASCII(name), id) // this escapes everything as JSON does
		if len(token) == 1 || id == GPT2End {
			continue
		}
		parts := mergeBelow(token, ids, id)
		if len(parts) != 2 {
			return nil, nil, fmt.Errorf("token %d, %q, is made of %q", id, token, parts)
		}
		fmt.Fprintf(&m, "%s %s\n", written(parts[0]), written(parts[1]))
	}
	v.WriteByte('}')
	return v.Bytes(), m.Bytes(), nil
}

// mergeBelow applies the merges to tokens below id to a text: again and again it merges the
// neighbours with the oldest merge.
func mergeBelow(text string, ids map[string]int, id int) []string {
	parts := make([]string, len(text))
	for i := range parts {
		parts[i] = text[i : i+1]
	}
	for {
		best, at := id, -1
		for i := 1; i < len(parts); i++ {
			if n, ok := ids[parts[i-1]+parts[i]]; ok && n < best {
				best, at = n, i
			}
		}
		if at < 0 {
			return parts
		}
		parts[at-1] += parts[at]
		parts = append(parts[:at], parts[at+1:]...)
	}
}
