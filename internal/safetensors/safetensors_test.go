package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// file returns a file with the given header and n bytes of data.
func file(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, n)...)
}

func parseBytes(b []byte) ([]Tensor, error) { return Parse(bytes.NewReader(b), int64(len(b))) }

func TestLayoutAndParse(t *testing.T) {
	for _, tensors := range [][]Tensor{
		nil,
		{{Name: "a", Type: "F32", Shape: []int64{3}}},
		{{Name: "scalar", Type: "F64", Shape: []int64{}},
			{Name: "h/0.weight \"ä\"", Type: "BF16", Shape: []int64{2, 3}},
			{Name: "empty", Type: "U8", Shape: []int64{0, 1 << 40, 1 << 40}},
			{Name: "<&>", Type: "I8", Shape: []int64{5}}},
	} {
		header, err := Layout(tensors)
		testkit.Must(t, err)
		if len(header)%8 != 0 {
			t.Errorf("the data start at byte %d", len(header))
		}
		var plain map[string]struct { // as any reader sees it
			Type    string `json:"dtype"`
			Shape   []int64
			Offsets [2]int64 `json:"data_offsets"`
		}
		if err := json.Unmarshal(header[8:], &plain); err != nil || len(plain) != len(tensors) {
			t.Fatalf("%s: %v", header, err)
		}
		end := int64(len(header))
		for _, x := range tensors {
			p := plain[x.Name]
			if x.Off != end || p.Type != x.Type || !slices.Equal(p.Shape, x.Shape) ||
				p.Offsets[0] != end-int64(len(header)) || p.Offsets[1]-p.Offsets[0] != x.Bytes {
				t.Errorf("%+v is %+v in the file, and should be at %d", x, p, end)
			}
			end += x.Bytes
		}
		got, err := parseBytes(append(header, make([]byte, end-int64(len(header)))...))
		testkit.Must(t, err)
		sortByName := func(a, b Tensor) int { return strings.Compare(a.Name, b.Name) }
		want := slices.Clone(tensors)
		slices.SortFunc(got, sortByName)
		slices.SortFunc(want, sortByName)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

// The texts of a file about itself stand in the header, and are passed over.
func TestLayoutMeta(t *testing.T) {
	for _, tensors := range [][]Tensor{nil, {{Name: "a", Type: "F32", Shape: []int64{2}}}} {
		header, err := LayoutMeta(map[string]string{"format": "pt", "a \"b\"": "ü"}, tensors)
		testkit.Must(t, err)
		var plain map[string]map[string]any
		if err := json.Unmarshal(header[8:], &plain); err != nil {
			t.Fatalf("%s: %v", header, err)
		}
		if m := plain["__metadata__"]; len(m) != 2 || m["format"] != "pt" || m["a \"b\""] != "ü" {
			t.Errorf("%s: metadata %v", header, m)
		}
		got, err := parseBytes(append(header, make([]byte, 8*len(tensors))...))
		if err != nil || len(got) != len(tensors) {
			t.Errorf("%s: %v, error %v", header, got, err)
		}
	}
}

func TestLayoutRefuses(t *testing.T) {
	ok := []int64{1}
	for want, tensors := range map[string][]Tensor{
		"two tensors":   {{Name: "a", Type: "U8", Shape: ok}, {Name: "a", Type: "U8", Shape: ok}},
		"unknown dtype": {{Name: "a", Type: "F4", Shape: ok}},
		"too large or":  {{Name: "a", Type: "F64", Shape: []int64{1 << 60, 4}}},
		"negative":      {{Name: "a", Type: "F64", Shape: []int64{-1}}},
		"too large": {{Name: "a", Type: "U8", Shape: []int64{1 << 62}},
			{Name: "b", Type: "U8", Shape: []int64{1 << 62}}},
		"without a name":  {{Type: "U8", Shape: ok}},
		"control":         {{Name: "a\n", Type: "U8", Shape: ok}},
		"own":             {{Name: "__metadata__", Type: "U8", Shape: ok}},
		"slash":           {{Name: "/a", Type: "U8", Shape: ok}},
		"out of its":      {{Name: "a/../../b", Type: "U8", Shape: ok}},
		"at most 512":     {{Name: strings.Repeat("a", 513), Type: "U8", Shape: ok}},
		"not UTF-8":       {{Name: "\xff", Type: "U8", Shape: ok}},
		"33 dimensions":   {{Name: "a", Type: "U8", Shape: make([]int64, 33)}},
		`\\x" starts`:     {{Name: `\x`, Type: "U8", Shape: ok}},
		`"..\\x" leads o`: {{Name: `..\x`, Type: "U8", Shape: ok}},
	} {
		if _, err := Layout(tensors); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	one := func(fields string) []byte { return file(`{"a":{`+fields+`}}`, 4) }
	for _, c := range []struct {
		b    []byte
		want string
	}{
		{nil, "0 bytes, too few"},
		{make([]byte, 7), "too few"},
		{make([]byte, 64), "a header of 0 bytes"},
		{append(bytes.Repeat([]byte{0xff}, 8), "{}"...), "a header of 18446744073709551615 bytes in a file of 10"},
		{file(`{}`, 0)[:9], "a header of 2 bytes in a file of 9"},
		{file(` {}`, 0), "does not start with {"},
		{file("{\"\xff\":1}", 0), "not UTF-8"},
		{file(`{`, 1), "a header of 1 bytes"},
		{file(`{"a"`, 0), "EOF"},
		{file(`{}{}`, 0), "goes on"},
		{file(`{}x`, 0), "goes on"},
		{file(`{} `, 1), "1 bytes after the last tensor"},
		{file(`{"a":1}`, 0), "object should be"},
		{file(`{"__metadata__":{"a":1}}`, 0), "not a text"},
		{file(`{"__metadata__":[]}`, 0), "object should be"},
		{file(`{"__metadata__":{},"__metadata__":{}}`, 0), "two tensors"},
		{one(`"dtype":"F32","shape":[1]`), "not two data_offsets"},
		{one(`"dtype":"F32","data_offsets":[0,4]`), "no shape"},
		{one(`"dtype":"F32","shape":null,"data_offsets":[0,4]`), "no shape"},
		{one(`"shape":[1],"data_offsets":[0,4]`), "unknown dtype"},
		{one(`"dtype":"F31","shape":[1],"data_offsets":[0,4]`), "unknown dtype"},
		{one(`"DTYPE":"F32","shape":[1],"data_offsets":[0,4]`), "unknown key"},
		{one(`"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]`), "twice"},
		{one(`"dtype":"F32","shape":[1.5],"data_offsets":[0,4]`), "cannot unmarshal"},
		{one(`"dtype":"F32","shape":[1e99],"data_offsets":[0,4]`), "cannot unmarshal"},
		{one(`"dtype":"F32","shape":[-1],"data_offsets":[0,4]`), "negative"},
		{one(`"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]`), "too large"},
		{one(`"dtype":"F32","shape":[2],"data_offsets":[0,4]`), "has 8 bytes"},
		{one(`"dtype":"F32","shape":[1],"data_offsets":[4,0]`), "has 4 bytes"},
		{one(`"dtype":"F32","shape":[1],"data_offsets":[-4,0]`), "has 4 bytes"},
		{one(`"dtype":"F32","shape":[1],"data_offsets":[0,4,8]`), "not two"},
		{one(`"dtype":"F32","shape":[2],"data_offsets":[0,8]`), "end at byte"},
		{one(`"dtype":"U8","shape":[4611686018427387904],"data_offsets":[0,4611686018427387904]`), "end at byte"},
		{one(`"dtype":"U8","shape":[3],"data_offsets":[1,4]`), "belong to no tensor"},
		{one(`"dtype":"U8","shape":[3],"data_offsets":[0,3]`), "1 bytes after"},
		{file(`{"..":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), "out of its folder"},
		{file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},`+
			`"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), "overlap"},
		{file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},`+
			`"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2), "two tensors"},
	} {
		if got, err := parseBytes(c.b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, %v; want %s", c.b, got, err, c.want)
		}
	}
	// A length beyond the file is refused before memory is allocated for it.
	huge := file(`{}`, 0)
	binary.LittleEndian.PutUint64(huge, MaxHeader)
	if n := testkit.Allocations(10, func() { _, _ = parseBytes(huge) }); n > 10 {
		t.Errorf("%v allocations", n)
	}
	if _, err := Parse(bytes.NewReader(huge), 1<<40); err == nil || !strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("a file that is shorter than it was: %v", err)
	}
}

// FuzzParse checks that accepted tensors fill the file, and that Layout writes them back with the
// same meaning.
func FuzzParse(f *testing.F) {
	f.Add(file(`{}`, 0))
	f.Add(file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4))
	f.Add(file(`{"__metadata__":{"k":"v"},"b":{"dtype":"U8","shape":[2,2],"data_offsets":[4,8]},`+
		`"a":{"dtype":"I16","shape":[2],"data_offsets":[0,4]}}  `, 8))
	f.Fuzz(func(t *testing.T, b []byte) {
		tensors, err := parseBytes(b)
		if err != nil {
			return
		}
		end := int64(8) + int64(binary.LittleEndian.Uint64(b))
		for _, x := range tensors {
			if x.Off != end || x.Bytes < 0 || CheckName(x.Name) != nil {
				t.Fatalf("%+v after %d", x, end)
			}
			end += x.Bytes
		}
		if end != int64(len(b)) {
			t.Fatalf("the tensors end at %d of %d", end, len(b))
		}
		again := slices.Clone(tensors)
		header, err := Layout(again)
		testkit.Must(t, err)
		back, err := Parse(bytes.NewReader(header), int64(len(header))+sum(again))
		testkit.Must(t, err)
		if fmt.Sprint(back) != fmt.Sprint(again) { // only tensors without data may change places with each other
			sortAll := func(a, b Tensor) int { return strings.Compare(a.Name, b.Name) }
			slices.SortFunc(back, sortAll)
			slices.SortFunc(again, sortAll)
			if !reflect.DeepEqual(back, again) {
				t.Fatalf("%+v comes back as %+v", again, back)
			}
		}
	})
}

func sum(tensors []Tensor) (n int64) {
	for _, t := range tensors {
		n += t.Bytes
	}
	return n
}
