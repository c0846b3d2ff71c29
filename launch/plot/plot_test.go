package plot

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"lockstep/launch/exit"
)

func TestDraw(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const log = "{\"step\":1,\"loss\":5,\"lr\":1,\"tok_s\":7}\n{\"step\":2,\"loss\":4,\"lr\":1,\"tok_s\":8}\n"
	one, two := write("a/run/log.jsonl", log), write("b/run/log.jsonl", log)
	out := filepath.Join(dir, "out.svg")
	runs := []string{filepath.Dir(one), filepath.Dir(two)}
	if file, err := draw(out, false, runs); err != nil || file != out {
		t.Fatal(file, err)
	}
	text, err := os.ReadFile(out)
	if err != nil || !strings.Contains(string(text), filepath.Dir(two)) { // both are called run
		t.Errorf("%v: the second run has no name of its own", err)
	}
	for _, tc := range []struct {
		out  string
		runs []string
		want string
	}{
		{out, runs, "is there already"},
		{filepath.Join(dir, "x.pdf"), runs, "want a name that ends in .svg or .png"},
		{filepath.Join(dir, "x.png"), nil, "no run is named"},
		{filepath.Join(dir, "x.png"), []string{dir + "/none"}, "no such file"},
		{out, []string{dir + "/none"}, "no such file"}, // the more useful of two messages
		{filepath.Join(dir, "x.png"), []string{write("empty", "")}, "no step of a run"},
	} {
		if _, err := draw(tc.out, false, tc.runs); err == nil || !strings.Contains(err.Error(), tc.want) || !errors.As(err, new(exit.Usage)) {
			t.Errorf("%v: %v, want %s", tc.runs, err, tc.want)
		}
	}
	if after, err := os.ReadFile(out); err != nil || string(after) != string(text) {
		t.Error("the picture that was there has changed")
	}
	if _, err := draw(out, true, runs[:1]); err != nil {
		t.Error(err)
	}
	if _, err := draw("/dev/full", false, runs[:1]); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "x.png")); err == nil {
		t.Error("a refused picture was written")
	}
}
