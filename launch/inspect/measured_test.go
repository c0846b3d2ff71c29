package inspect

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// write writes a file into a folder of the test, and returns its name.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o777))
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o666))
	return path
}

// A run is its numbers, by names and units of its own. The last counts of a step that was taken
// again, and lines of one step are one.
func TestRead(t *testing.T) {
	var b strings.Builder
	for i := 1; i <= 20; i++ {
		fmt.Fprintf(&b, `{"step":%d,"app":"heat","residual":%g,"ok":true,"at":[1,2]`, i, 1/float64(i))
		if i == 1 {
			b.WriteString(`,"units":{"residual":"K","energy":"J"}`)
		}
		fmt.Fprintf(&b, "}\n{\"step\":%d,\"energy\":%d}\n", i, 100-i)
	}
	b.WriteString(`{"step":11,"residual":7,"energy":null}` + "\n" + `{"summary":true,"steps":3}` + "\n")
	r, err := readRun(filepath.Dir(write(t, "a/log.jsonl", b.String())))
	if err != nil || r.name != "a" || !slices.Equal(r.names, []string{"step", "residual", "energy"}) ||
		!maps.Equal(r.units, map[string]string{"residual": "K", "energy": "J"}) || len(r.records) != 11 {
		t.Fatalf("%v, %+v", err, r)
	}
	for _, tc := range []struct {
		at   int
		want map[string]float64
	}{{4, map[string]float64{"step": 5, "residual": 0.2, "energy": 95, "line": 10}},
		{10, map[string]float64{"step": 11, "residual": 7, "line": 41}}} {
		if !maps.Equal(r.records[tc.at], tc.want) {
			t.Errorf("%v, want %v", r.records[tc.at], tc.want)
		}
	}
	// Where there are but results of whole runs these are drawn.
	r, err = readRun(write(t, "log", `{"summary":true,"ranks":1,"ms":9}`+"\n"+`{"summary":true,"ranks":2,"ms":5}`+"\n"))
	if err != nil || !slices.Equal(r.names, []string{"ranks", "ms"}) || len(r.records) != 2 || r.records[1]["ms"] != 5 {
		t.Errorf("%v, %+v", err, r)
	}
	// The run is writing a last line that is not finished. A killed process left one in the middle.
	for _, half := range []string{"{", `{"st`, `{"step":`, `{"step":4,"loss":1.`} {
		for _, text := range []string{"{\"n\":1}\n{\"n\":2}\n" + half, "{\"n\":1}\n" + half + "\n{\"n\":2}\n"} {
			if r, err := readRun(write(t, "log", text)); err != nil || len(r.records) != 2 {
				t.Errorf("%q: %+v, %v", text, r, err)
			}
		}
	}
	for text, want := range map[string]string{
		"": "no number in it", "{}\n": "no number in it", "{\"n\":1}\n{]}": "line 2 is no object of JSON",
		"{\"n\":1}\nx": "line 2 is no object of JSON", "[1]": "line 1 is no object of JSON: it begins with [",
	} {
		if _, err := readRun(write(t, "log", text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := readRun(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
