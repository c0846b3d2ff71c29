// Package safetensors reads and writes the header of the safetensors format: 8 bytes of length,
// little endian, then a JSON object that names the tensors, then their data.
//
// A header from a file is checked before anything is allocated for it. The tensors must fill the
// data without gaps and overlaps, and their sizes must be those of their types and shapes.
package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxHeader is the length of the longest JSON header that is read or written.
const MaxHeader = 100_000_000

const (
	prefix   = 8 // bytes before the JSON header
	maxName  = 512
	maxDims  = 32
	metadata = "__metadata__"
)

// sizes is the bytes of an element of every type of the format.
var sizes = map[string]int64{
	"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
	"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}

// Tensor is one array of a file. Its data are bytes [Off, Off+Bytes) of the file.
type Tensor struct {
	Name       string
	Type       string // such as "F32"
	Shape      []int64
	Off, Bytes int64
}

// entry is a tensor in the JSON header.
type entry struct {
	Type    string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// bytes returns the size of a tensor by its type and shape.
func (e *entry) bytes() (int64, error) {
	n, ok := sizes[e.Type]
	if !ok {
		return 0, fmt.Errorf("unknown dtype %.20q", e.Type)
	}
	if len(e.Shape) > maxDims {
		return 0, fmt.Errorf("%d dimensions, at most %d", len(e.Shape), maxDims)
	}
	if slices.Contains(e.Shape, 0) {
		n = 0 // whatever the other dimensions are
	}
	for _, d := range e.Shape {
		if d < 0 || d > 0 && n > math.MaxInt64/d {
			return 0, fmt.Errorf("shape %v is too large or negative", e.Shape)
		}
		n *= d
	}
	return n, nil
}

// CheckName refuses names that no tensor may have: empty or long ones, those with control
// characters, and those that would lead out of a folder if they became a file's name.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("a tensor without a name")
	case len(name) > maxName:
		return fmt.Errorf("a name of %d bytes, at most %d, that starts with %.40q", len(name), maxName, name)
	case !utf8.ValidString(name):
		return fmt.Errorf("the name %q is not UTF-8", name)
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("the name %q holds control characters", name)
	case name == metadata:
		return fmt.Errorf("the name %s is the format's own", name)
	case name[0] == '/' || name[0] == '\\':
		return fmt.Errorf("the name %q starts with a slash", name)
	}
	for _, part := range strings.FieldsFunc(name, func(r rune) bool { return r == '/' || r == '\\' }) {
		if part == ".." {
			return fmt.Errorf(`the name %q leads out of its folder`, name)
		}
	}
	return nil
}

// Layout returns the header of a file that holds tensors, with length and padding. It sets where
// the data of each will be, in the given order from the end of the header on. To keep elements
// aligned, give those with larger elements first.
func Layout(tensors []Tensor) ([]byte, error) { return LayoutMeta(nil, tensors) }

// LayoutMeta is Layout with the file's texts about itself.
func LayoutMeta(meta map[string]string, tensors []Tensor) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, prefix))
	b.WriteByte('{')
	if len(meta) > 0 {
		text, err := json.Marshal(meta) // in the order of the keys
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%q:%s", metadata, text)
	}
	seen := make(map[string]bool, len(tensors))
	off := int64(0)
	for i := range tensors {
		t := &tensors[i]
		if err := CheckName(t.Name); err != nil {
			return nil, err
		}
		if seen[t.Name] {
			return nil, fmt.Errorf("two tensors are named %q", t.Name)
		}
		seen[t.Name] = true
		e := entry{Type: t.Type, Shape: t.Shape}
		if e.Shape == nil {
			e.Shape = []int64{}
		}
		n, err := e.bytes()
		if err == nil && off > math.MaxInt64-n-MaxHeader-prefix {
			err = errors.New("the file would be too large")
		}
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		e.Offsets = [2]int64{off, off + n}
		t.Off, t.Bytes = off, n
		off += n
		if i > 0 || len(meta) > 0 {
			b.WriteByte(',')
		}
		for j, v := range []any{t.Name, e} {
			text, err := json.Marshal(v)
			if err != nil {
				return nil, err
			}
			b.Write(text)
			if j == 0 {
				b.WriteByte(':')
			}
		}
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if b.Len()-prefix > MaxHeader {
		return nil, fmt.Errorf("a header of %d bytes, at most %d", b.Len()-prefix, MaxHeader)
	}
	for i := range tensors {
		tensors[i].Off += int64(b.Len())
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(b.Len()-prefix))
	return b.Bytes(), nil
}

// Parse reads the header of a file of size bytes and returns its tensors in the order
// of their data.
func Parse(r io.ReaderAt, size int64) ([]Tensor, error) {
	var length [prefix]byte
	if size < prefix {
		return nil, fmt.Errorf("%d bytes, too few for a header", size)
	}
	if err := readFull(r, length[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n < 2 || n > MaxHeader || n > uint64(size-prefix) {
		return nil, fmt.Errorf("a header of %d bytes in a file of %d, at most %d", n, size, MaxHeader)
	}
	text := make([]byte, n)
	if err := readFull(r, text, prefix); err != nil {
		return nil, err
	}
	switch {
	case text[0] != '{':
		return nil, errors.New("the header does not start with {")
	case !utf8.Valid(text):
		return nil, errors.New("the header is not UTF-8")
	}
	tensors, err := parse(text)
	if err != nil {
		return nil, err
	}
	return tensors, place(tensors, prefix+int64(n), size)
}

func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case err == nil || err == io.EOF:
		return io.ErrUnexpectedEOF
	}
	return err
}

// parse reads the JSON object. Offsets still count from the start of the data.
func parse(text []byte) ([]Tensor, error) {
	var tensors []Tensor
	seen := make(map[string]bool)
	dec := json.NewDecoder(bytes.NewReader(text))
	err := object(dec, func(name string) error {
		if seen[name] {
			return fmt.Errorf("two tensors are named %.40q", name)
		}
		seen[name] = true
		if name == metadata {
			return skipMetadata(dec)
		}
		if err := CheckName(name); err != nil {
			return err
		}
		t, err := parseTensor(dec)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		t.Name = name
		tensors = append(tensors, t)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("the header goes on after its JSON object")
	}
	return tensors, nil
}

// object reads an object and calls fn after every key, to read the value.
func object(dec *json.Decoder, fn func(key string) error) error {
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return cmp.Or(err, fmt.Errorf("%v where an object should be", tok))
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		if err := fn(key.(string)); err != nil {
			return err
		}
	}
	_, err := dec.Token()
	return err
}

// skipMetadata reads the file's texts about itself, which nobody needs.
func skipMetadata(dec *json.Decoder) error {
	return object(dec, func(key string) error {
		value, err := dec.Token()
		if _, ok := value.(string); err == nil && !ok {
			err = fmt.Errorf("%s: %.40q is not a text", metadata, key)
		}
		return err
	})
}

// parseTensor reads one tensor's object strictly: every key once, nothing else.
func parseTensor(dec *json.Decoder) (Tensor, error) {
	var e entry
	var offsets []int64
	seen := make(map[string]bool, 3)
	err := object(dec, func(key string) error {
		if seen[key] {
			return fmt.Errorf("%q twice", key)
		}
		seen[key] = true
		switch key {
		case "dtype":
			return dec.Decode(&e.Type)
		case "shape":
			return dec.Decode(&e.Shape)
		case "data_offsets":
			return dec.Decode(&offsets)
		}
		return fmt.Errorf("unknown key %.40q", key)
	})
	if err != nil {
		return Tensor{}, err
	}
	if e.Shape == nil || len(offsets) != 2 {
		return Tensor{}, errors.New("no shape, or not two data_offsets")
	}
	n, err := e.bytes()
	if err != nil {
		return Tensor{}, err
	}
	if offsets[0] < 0 || offsets[1] < offsets[0] || offsets[1]-offsets[0] != n {
		return Tensor{}, fmt.Errorf("data_offsets %v, but %s of shape %v has %d bytes", offsets, e.Type, e.Shape, n)
	}
	return Tensor{Type: e.Type, Shape: e.Shape, Off: offsets[0], Bytes: n}, nil
}

// place checks that the tensors fill the data [from, size) of the file, and turns their offsets
// into those of the file.
func place(tensors []Tensor, from, size int64) error {
	slices.SortStableFunc(tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Off, b.Off), cmp.Compare(a.Bytes, b.Bytes))
	})
	end := int64(0)
	for i := range tensors {
		t := &tensors[i]
		switch {
		case t.Off < end:
			return fmt.Errorf("the data of tensor %q overlap those of %q", t.Name, tensors[i-1].Name)
		case t.Off > end:
			return fmt.Errorf("bytes %d to %d of the data before tensor %q belong to no tensor", end, t.Off, t.Name)
		case t.Bytes > size-from-end:
			return fmt.Errorf("the data of tensor %q end at byte %d, the file at %d", t.Name, from+end+t.Bytes, size)
		}
		end += t.Bytes
		t.Off += from
	}
	if end != size-from {
		return fmt.Errorf("%d bytes after the last tensor", size-from-end)
	}
	return nil
}
