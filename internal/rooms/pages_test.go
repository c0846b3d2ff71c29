package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// markdown is a page of the tree: its path, and its text.
type markdown struct{ path, text string }

func pages(t *testing.T) (all []markdown) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(strings.TrimSuffix(path, ".tmpl"), ".md") {
			return nil
		}
		text, err := os.ReadFile(path)
		all = append(all, markdown{path, string(text)})
		return err
	})
	if err != nil || len(all) < 10 {
		t.Fatalf("%d pages: %v", len(all), err)
	}
	return all
}

// Lines of pages are no longer than 120 characters, but for rows of tables.
func TestPageWidth(t *testing.T) {
	for _, p := range pages(t) {
		n := 0
		for line := range strings.Lines(p.text) {
			n++
			line = strings.TrimSuffix(line, "\n")
			if utf8.RuneCountInString(line) > 120 && !strings.HasPrefix(line, "|") {
				t.Errorf("%s, line %d has %d characters", p.path, n, utf8.RuneCountInString(line))
			}
		}
	}
}

// A link of a page leads to a file or a folder of the tree, or to another site.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s,]+)(?:#[^)\s]*)?\)`)
	links := 0
	for _, p := range pages(t) {
		if strings.HasSuffix(p.path, ".tmpl") { // it lies elsewhere once it is filled in
			continue
		}
		for _, m := range link.FindAllStringSubmatch(p.text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			if _, err := os.Stat(filepath.Join(filepath.Dir(p.path), m[1])); err != nil {
				t.Errorf("%s: %v", p.path, err)
			}
		}
	}
	if links < 100 {
		t.Errorf("only %d links", links)
	}
}

// A place that a page shows, FILE:LINE, is in main.go, the file of an example. Lines of the tree
// move, so a page names its functions.
func TestPlaces(t *testing.T) {
	place := regexp.MustCompile(`([\w.]+\.go):\d+`)
	places := 0
	for _, p := range pages(t) {
		for _, m := range place.FindAllStringSubmatch(p.text, -1) {
			places++
			if m[1] != "main.go" {
				t.Errorf("%s: %s is a line of the tree: name the function", p.path, m[0])
			}
		}
	}
	if places < 10 {
		t.Errorf("only %d places", places)
	}
}
