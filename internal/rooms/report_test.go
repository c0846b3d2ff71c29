package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// A place that a page shows, FILE:LINE, is in main.go, the file of an example. Lines of the tree
// move, so a page names its functions.
func TestPlaces(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	place := regexp.MustCompile(`([\w.]+\.go):\d+`)
	places := 0
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range place.FindAllStringSubmatch(string(text), -1) {
			places++
			if m[1] != "main.go" {
				t.Errorf("%s: %s is a line of the tree: name the function", page, m[0])
			}
		}
	}
	if places < 10 {
		t.Errorf("only %d places in %d pages", places, len(pages))
	}
}
