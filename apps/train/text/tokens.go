package text

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tiktoken-go/tokenizer/codec"
)

// TokensOf returns the tokens of a text.
func TokensOf(tok Tokenizer, text string) ([]int32, error) {
	b, err := tok.encode(nil, []byte(text))
	if err != nil {
		return nil, err
	}
	f := InMemory(tok.Width(), b)
	ids := make([]int32, f.Len())
	f.Read(ids, 0)
	return ids, nil
}

// Tokenizer turns text into token ids and back. encode may be called by many
// goroutines at once. A text survives encode and decode unchanged, valid UTF-8 or
// not; that of Bytes loses 0 bytes.
type Tokenizer interface {
	// Name goes into the key of the token file: it changes whenever the ids would.
	Name() string
	// IDs returns the number of different tokens. All ids are below it.
	IDs() int
	// Width returns the bytes of one stored token, 1 or 2.
	Width() int
	// Separator returns the token that stands after every document.
	Separator() int32
	// Files returns vocab.json and merges.txt, as transformers read them, or none.
	Files() (vocab, merges []byte, err error)
	// encode appends the tokens of text to dst, width bytes each, little-endian.
	encode(dst, text []byte) ([]byte, error)
	// Decode returns the text of ids. Ids without a text give none.
	Decode(ids []int32) []byte
	// lookahead returns how many bytes after a wanted cut are searched for a good one.
	lookahead() int
	// cut returns where a text may be cut without a change of its tokens: the first such i, 2 <= i
	// < len(b), or 2 if there is none. b begins 2 bytes before the wanted cut.
	cut(b []byte) int
}

// NewTokenizer returns the tokenizer that --tokens names.
func NewTokenizer(name string) (Tokenizer, error) {
	switch name {
	case "bytes":
		return Bytes{}, nil
	case "gpt2":
		return NewGPT2(), nil
	}
	return nil, fmt.Errorf("--tokens %s: unknown, want bytes or gpt2", name)
}

// Bytes are the 256 byte values. Documents are separated by a 0 byte, which
// no text contains.
type Bytes struct{}

func (Bytes) Name() string                             { return "bytes-1" }
func (Bytes) IDs() int                                 { return 256 }
func (Bytes) Width() int                               { return 1 }
func (Bytes) Separator() int32                         { return 0 }
func (Bytes) Files() (vocab, merges []byte, err error) { return nil, nil, nil }
func (Bytes) encode(dst, text []byte) ([]byte, error)  { return append(dst, text...), nil }
func (Bytes) lookahead() int                           { return 0 }
func (Bytes) cut([]byte) int                           { return 2 }

func (Bytes) Decode(ids []int32) []byte {
	text := make([]byte, 0, len(ids))
	for _, id := range ids {
		if id > 0 && id < 256 {
			text = append(text, byte(id))
		}
	}
	return text
}

const (
	GPT2End      = 50256 // <|endoftext|>
	bpeLookahead = 64 << 10
)

// GPT2 is GPT-2's byte-pair encoding. The text "<|endoftext|>" inside a
// document is ordinary text: only the separator has that id.
type GPT2 struct {
	bpe    *codec.Codec
	byteID [256]uint16 // the token of each single byte
}

// NewGPT2 returns GPT-2's byte-pair encoding.
func NewGPT2() *GPT2 {
	t := &GPT2{bpe: codec.NewR50kBase()}
	// GPT-2 numbers the 188 bytes that print in Latin-1 first, then the others.
	id := uint16(0)
	for _, printable := range []bool{true, false} {
		for b := range 256 {
			if printsInLatin1(b) == printable {
				t.byteID[b] = id
				id++
			}
		}
	}
	return t
}

// printsInLatin1 reports whether Latin-1 has a visible character for a byte.
func printsInLatin1(b int) bool { return b >= '!' && b <= '~' || b >= 0xa1 && b != 0xad }

// GPT2Name is the Name of GPT-2's tokens.
const GPT2Name = "gpt2-1"

func (*GPT2) Name() string     { return GPT2Name }
func (*GPT2) IDs() int         { return GPT2End + 1 }
func (*GPT2) Width() int       { return 2 }
func (*GPT2) Separator() int32 { return GPT2End }
func (*GPT2) lookahead() int   { return bpeLookahead }

// encode takes bytes that are not UTF-8 one by one: the library would replace them by U+FFFD. It
// would drop DEL, and gets standIn in its place.
func (t *GPT2) encode(dst, text []byte) ([]byte, error) {
	for len(text) > 0 {
		plain, other := splitPlain(text)
		if plain > 0 {
			ids, pieces, err := t.bpe.Encode(strings.ReplaceAll(string(text[:plain]), "\x7f", standIn))
			if err != nil {
				return dst, fmt.Errorf("GPT-2 tokenizer: %w", err)
			}
			at := 0
			for i, id := range ids {
				if text[at] == 0x7f {
					id = uint(t.byteID[0x7f])
				}
				dst = binary.LittleEndian.AppendUint16(dst, uint16(id))
				at += len(pieces[i])
			}
		}
		for _, b := range text[plain : plain+other] {
			dst = binary.LittleEndian.AppendUint16(dst, t.byteID[b])
		}
		text = text[plain+other:]
	}
	return dst, nil
}

// standIn is a character like DEL to the pattern that splits text into words. Neither is part of a
// longer token.
const standIn = "\x01"

// splitPlain returns how many bytes at the start of b the library can take, and how many follow
// that it cannot. It looks no further, since a text may change between the two at every byte.
func splitPlain(b []byte) (plain, other int) {
	takes := func(b []byte) int { // the bytes of the first character, 0 for none
		if r, n := utf8.DecodeRune(b); r != utf8.RuneError || n > 1 {
			return n
		}
		return 0
	}
	for n := takes(b); n > 0; n = takes(b[plain:]) {
		plain += n
	}
	for plain+other < len(b) && takes(b[plain+other:]) == 0 {
		other++
	}
	return plain, other
}

func (t *GPT2) Decode(ids []int32) []byte {
	known := make([]uint, 0, len(ids))
	for _, id := range ids {
		if id >= 0 && id < GPT2End {
			known = append(known, uint(id))
		}
	}
	text, err := t.bpe.Decode(known)
	if err != nil { // every id below GPT2End stands for text
		panic(err)
	}
	return []byte(text)
}

// cut finds a newline between two ASCII characters that are not white space. The pattern that
// splits text into words before the merging always ends a word there.
func (*GPT2) cut(b []byte) int {
	visible := func(c byte) bool { return c > ' ' && c < 0x7f }
	for i := 2; i < len(b); i++ {
		if b[i-1] == '\n' && visible(b[i-2]) && visible(b[i]) {
			return i
		}
	}
	return 2
}
