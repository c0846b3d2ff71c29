package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// The hang report in docs/faults.md has frames of today's code: their files and functions exist.
// Lines may move.
func TestReport(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "faults.md"))
	if err != nil {
		t.Fatal(err)
	}
	frame := regexp.MustCompile(`(?m)^ {8}lockstep/((?:\w+/)*\w+?)(?:_test)?\.(\S+) \S*?(\w+\.go):\d+$`)
	word := regexp.MustCompile(`[A-Za-z_]\w*`)
	frames := frame.FindAllStringSubmatch(string(text), -1)
	if len(frames) < 10 {
		t.Errorf("only %d frames", len(frames))
	}
	for _, f := range frames {
		source, err := os.ReadFile(filepath.Join(root, f[1], f[3]))
		if err != nil {
			t.Errorf("%s: %v", f[0], err)
			continue
		}
		// The compiler may have put a function of the file into one of another file.
		if !slices.ContainsFunc(word.FindAllString(f[2], -1), func(name string) bool {
			return regexp.MustCompile(`(?m)^func (\(\w+ [^)]*\) )?` + name + `\b`).Match(source)
		}) {
			t.Errorf("%s: the file has none of these functions", f[0])
		}
	}
}
