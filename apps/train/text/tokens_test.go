package text

import (
	"bytes"
	"encoding/binary"
	rand "math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"lockstep/internal/testkit"
)

// ids16 reads stored tokens of two bytes.
func ids16(b []byte) []int32 {
	ids := make([]int32, len(b)/2)
	for i := range ids {
		ids[i] = int32(binary.LittleEndian.Uint16(b[2*i:]))
	}
	return ids
}

// The ids are those of OpenAI's encoder for GPT-2.
func TestGPT2KnownIDs(t *testing.T) {
	tok := NewGPT2()
	for _, c := range []struct {
		text string
		ids  []int32
	}{
		{"", []int32{}},
		{"Hello world", []int32{15496, 995}},
		{"Hello, world!", []int32{15496, 11, 995, 0}},
		{"!", []int32{0}},
		{"\n", []int32{198}},
		{"\x7f's", []int32{221, 6, 82}}, // one word of DEL and the apostrophe
		{"a  \x7f\x01'\x7f", []int32{64, 220, 220, 221, 189, 6, 221}},
		{"<|endoftext|>", []int32{27, 91, 437, 1659, 5239, 91, 29}}, // text, not the separator
	} {
		b, err := tok.encode(nil, []byte(c.text))
		testkit.Must(t, err)
		if got := ids16(b); !slices.Equal(got, c.ids) {
			t.Errorf("%q: ids %v, want %v", c.text, got, c.ids)
		}
	}
}

func TestTokenizersAreLossless(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 4096)
	for i := range noise {
		noise[i] = byte(1 + rng.IntN(255)) // 0 is the separator of bytes
	}
	every := make([]byte, 255)
	for i := range every {
		every[i] = byte(i + 1)
	}
	var runes []byte
	for r := rune(1); r < 0x10000; r++ {
		runes = utf8.AppendRune(append(runes, 'a'), r)
	}
	texts := [][]byte{
		[]byte("func main() {\n\tfmt.Println(\"größe ≥ 世界 🙂\")\n}\n"),
		[]byte("replacement \ufffd is valid, \xff\xfe and \xe2\x82 are not"),
		every, noise, runes,
	}
	for _, name := range []string{"bytes", "gpt2"} {
		tok, err := NewTokenizer(name)
		testkit.Must(t, err)
		for _, text := range texts {
			b, err := tok.encode(nil, text)
			testkit.Must(t, err)
			ids := ids16(b)
			if tok.Width() == 1 {
				ids = nil
				for _, c := range b {
					ids = append(ids, int32(c))
				}
			}
			for _, id := range ids {
				if id < 0 || id >= int32(tok.IDs()) {
					t.Fatalf("%s: id %d, want below %d", name, id, tok.IDs())
				}
			}
			if got := tok.Decode(ids); !bytes.Equal(got, text) {
				i := 0
				for i < min(len(got), len(text)) && got[i] == text[i] {
					i++
				}
				t.Errorf("%s: %q became %q", name, text[i:min(i+16, len(text))], got[i:min(i+16, len(got))])
			}
		}
		if got := tok.Decode([]int32{tok.Separator(), int32(tok.IDs()), -1}); len(got) != 0 {
			t.Errorf("%s: separator and ids out of range decode to %q", name, got)
		}
	}
}

// Cutting where cut says does not change the ids, so that pieces of a file can be tokenised apart.
func TestGPT2CutKeepsIDs(t *testing.T) {
	tok := NewGPT2()
	text := strings.Repeat("if x {\n\n  return 'it's' + 1\n}\nfunc f(a, b int) int {\n\treturn a*b \n}\n"+
		"var s = `日本\n語`\n", 20)
	whole, err := tok.encode(nil, []byte(text))
	testkit.Must(t, err)
	cuts := 0
	for at := 2; at < len(text); at += 7 {
		b := []byte(text)
		i := at - 2 + tok.cut(b[at-2:])
		if i == at && (b[at-1] != '\n' || b[at-2] <= ' ' || b[at] <= ' ') {
			continue // none found
		}
		cuts++
		parts, err := tok.encode(nil, b[:i])
		if err == nil {
			parts, err = tok.encode(parts, b[i:])
		}
		testkit.Must(t, err)
		if !bytes.Equal(parts, whole) {
			t.Fatalf("cut at %d, %q|%q, changes the ids", i, b[max(0, i-8):i], b[i:min(len(b), i+8)])
		}
	}
	if cuts < 20 {
		t.Fatalf("only %d cuts found", cuts)
	}
}

func TestUnknownTokenizer(t *testing.T) {
	if _, err := NewTokenizer("words"); err == nil || !strings.Contains(err.Error(), "words") {
		t.Fatalf("error %v, want one that names words", err)
	}
}
