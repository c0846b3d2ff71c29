package checkpoint

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"lockstep/internal/testkit"
	"lockstep/spmd/internal/job"
)

// goodIndex is an index that parses.
func goodIndex() *index {
	return &index{
		Format: format, Step: 7, Serial: 3, Chunk: chunkBytes, Meta: json.RawMessage(`{"a":1}`),
		Arrays: []array{{"w", "F32", 10}, {"empty", "U8", 0}},
		Files: []shardFile{
			{"shard-00000-of-00002.safetensors", []part{{0, 4, 6, Cut{}}}, fileSum{100, []uint32{1}}},
			{"shard-00001-of-00002.safetensors", []part{{0, 0, 4, Cut{}}}, fileSum{chunkBytes + 1, []uint32{1, 2}}},
		},
	}
}

func TestParseIndex(t *testing.T) {
	text := func(change func(x *index)) []byte {
		x := goodIndex()
		change(x)
		b, err := json.Marshal(x)
		testkit.Must(t, err)
		return b
	}
	good := text(func(*index) {})
	if x, err := parseIndex(good); err != nil || !reflect.DeepEqual(x, goodIndex()) {
		t.Fatalf("%+v, %v", x, err)
	}
	for _, c := range []struct {
		want   string
		change func(x *index)
	}{
		{"format", func(x *index) { x.Format = "lockstep checkpoint 2" }},
		{"step -1", func(x *index) { x.Step = -1 }},
		{"serial -1", func(x *index) { x.Serial = -1 }},
		{"chunks of 1 ", func(x *index) { x.Chunk = 1 }},
		{"no files", func(x *index) { x.Files = nil }},
		{"without a name", func(x *index) { x.Arrays[0].Name = "" }},
		{"out of its folder", func(x *index) { x.Arrays[0].Name = "../w" }},
		{`"F31"`, func(x *index) { x.Arrays[0].Type = "F31" }},
		{"two of it", func(x *index) { x.Arrays[1].Name = "w" }},
		{`"w" of -1`, func(x *index) { x.Arrays[0].Len = -1 }},
		{`"w" of 4611686018427387904`, func(x *index) { x.Arrays[0].Len = 1 << 62 }},
		{"is called", func(x *index) { x.Files[0].Name = "../../etc/passwd" }},
		{"0 bytes", func(x *index) { x.Files[0].Bytes = 0 }},
		{"checksums of", func(x *index) { x.Files[0].Bytes = 1 << 60 }},
		{"checksums of", func(x *index) { x.Files[1].CRC = nil }},
		{"of array 2", func(x *index) { x.Files[0].Parts[0].Array = 2 }},
		{"of array -1", func(x *index) { x.Files[0].Parts[0].Array = -1 }},
		{"[-1, -1+6)", func(x *index) { x.Files[0].Parts[0].Off = -1 }},
		{"[4, 4+7)", func(x *index) { x.Files[0].Parts[0].Len = 7 }},
		{"[4, 4+9223372036854775807)", func(x *index) { x.Files[0].Parts[0].Len = 1<<63 - 1 }},
		{"[4, 4+0)", func(x *index) { x.Files[0].Parts[0].Len = 0 }},
		{"part 1 is", func(x *index) {
			x.Files[0].Parts = []part{{0, 4, 3, Cut{}}, {0, 7, 3, Cut{}}}
		}},
		{"part 0 is", func(x *index) { x.Files[0].Parts[0].Cut = Cut{0, 2, 1} }},
		{"part 0 is", func(x *index) { x.Files[0].Parts[0].Cut = Cut{-1, 2, 3} }},
		{"part 0 is", func(x *index) { x.Files[0].Parts[0].Cut = Cut{0, 2, 1 << 62} }},
		{"part 0 is", func(x *index) { x.Files[0].Parts[0].Cut = Cut{1 << 62, 2, 2} }},
		{"part 0 is", func(x *index) { x.Files[0].Parts[0].Cut = Cut{1, 1, 1} }},
		{"element 2 is in the parts of two", func(x *index) { x.Files[0].Parts[0] = part{0, 0, 4, Cut{2, 2, 6}} }},
		{"element 4 of 10 is in no", func(x *index) {
			x.Files[0].Parts[0].Len = 5
			x.Files[0].Parts[0] = part{0, 0, 4, Cut{5, 1, 1}}
		}},
		{"element 4 is in the parts of two", func(x *index) { x.Files[1].Parts[0].Len = 5 }},
		{"element 3 of 10 is in no", func(x *index) { x.Files[1].Parts[0].Len = 3 }},
		{"element 0 of 10 is in no", func(x *index) { x.Files[1].Parts = nil }},
		{"element 9 of 10 is in no", func(x *index) { x.Files[0].Parts[0].Len = 5 }},
	} {
		if _, err := parseIndex(text(c.change)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	for want, b := range map[string][]byte{
		"goes on": append(bytes.Clone(good), '1'), "EOF": good[:len(good)-1], "unknown field": []byte(`{"x":1}`),
	} {
		if _, err := parseIndex(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func FuzzIndex(f *testing.F) {
	good, err := json.Marshal(goodIndex())
	testkit.Must(f, err)
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := parseIndex(b)
		if err != nil {
			return
		}
		// An accepted index covers every array once, inside it.
		held := make([]int, len(x.Arrays))
		for _, file := range x.Files {
			for _, p := range file.Parts {
				if a := x.Arrays[p.Array]; p.Off < 0 || p.Len < 1 || p.Off+p.Len > a.Len {
					t.Fatalf("part %v of %v", p, a)
				}
				held[p.Array] += p.Len
			}
		}
		for i, a := range x.Arrays {
			if held[i] != a.Len {
				t.Fatalf("the files hold %d elements of %v", held[i], a)
			}
		}
	})
}

// No marker but the right one makes a checkpoint complete.
func FuzzMarker(f *testing.F) {
	index, err := json.Marshal(goodIndex())
	testkit.Must(f, err)
	good := marker(index)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{'x'}, maxMarker+1))
	dir := f.TempDir()
	testkit.Must(f, os.WriteFile(filepath.Join(dir, indexName), index, 0o666))
	f.Fuzz(func(t *testing.T, b []byte) {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, markerName), b, 0o666))
		_, _, err := disk{new(job.FileWork)}.readIndex(dir)
		if (err == nil) != bytes.Equal(b, good) {
			t.Fatalf("marker %q: %v", b, err)
		}
		if err != nil && !strings.Contains(err.Error(), filepath.Join(dir, markerName)) {
			t.Fatalf("the error does not name the file: %v", err)
		}
	})
}

// Rank 0 waits for a rank whose file does not come, and finds that the folder is gone.
func TestAwaitParts(t *testing.T) {
	c := &Manager{disk: disk{new(job.FileWork)}, cfg: Config{Timeout: time.Millisecond}}
	s := &saving{temp: t.TempDir(), x: goodIndex(), cancel: make(chan struct{})}
	s.x.Files[0].fileSum, s.x.Files[1].fileSum = fileSum{}, fileSum{}
	sum, err := c.disk.writeFile(filepath.Join(s.temp, s.x.Files[0].Name), []byte("shard"))
	testkit.Must(t, err)
	text, err := json.Marshal(sum)
	testkit.Must(t, err)
	part := filepath.Join(s.temp, shardName(0, 2, "json"))
	if _, err := c.disk.writeFile(part, text); err != nil {
		t.Fatal(err)
	}
	if err := c.awaitParts(s); err == nil ||
		!strings.Contains(err.Error(), "the files of ranks [1] did not come for 1ms") {
		t.Errorf("a part that does not come: %v", err)
	}
	if !reflect.DeepEqual(s.x.Files[0].fileSum, sum) {
		t.Errorf("%+v, want %+v", s.x.Files[0].fileSum, sum)
	}
	c.cfg.Timeout = time.Hour
	close(s.cancel)
	testkit.Refused(t, c.awaitParts(s), "another rank")
	s.x.Files[0].fileSum = fileSum{}
	testkit.Must(t, os.Truncate(filepath.Join(s.temp, s.x.Files[0].Name), 4))
	testkit.Refused(t, c.awaitParts(s), "4 bytes, and 5 were saved")
	testkit.Must(t, os.RemoveAll(s.temp))
	if err := c.awaitParts(s); err == nil || !strings.Contains(err.Error(), s.temp) {
		t.Errorf("without the folder: %v", err)
	}
}
