package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The most files that a reader opens to follow an AllReduce on a stream.
var mostOpened = map[string]int{"On the host": 10, "Through NCCL": 12}

// step is a function on the way of a call.
type step struct{ file, name string }

// wayOf returns the files and the functions of a table of the page. The title is that
// of the table's first column.
func wayOf(t *testing.T, page, title string) (files []string, steps []step) {
	t.Helper()
	_, table, ok := strings.Cut(page, "\n| "+title+" | Functions |\n|---|---|\n")
	if !ok {
		t.Fatalf("the page has no table %q", title)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	row := regexp.MustCompile(`^\| \[[^]]+\]\(\.\./([^)]+)\) \| (.*) \|$`)
	for line := range strings.Lines(table) {
		m := row.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			t.Fatalf("%s: a row is not of the form [name](file) and functions: %s", title, line)
		}
		files = append(files, m[1])
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(m[2], -1) {
			steps = append(steps, step{m[1], name[1]})
		}
	}
	return files, steps
}

// bodies returns the bodies of the functions of a name in a file of Go or C, or "".
func bodies(t *testing.T, s step) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(root, s.file))
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Ext(s.file) != ".go" {
		return regexp.MustCompile(`(?ms)^\w[\w *]*\b` + s.name + `\([^;{]*\{.*?^\}`).FindString(string(source))
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, s.file, source, 0)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Name.Name == s.name {
			text += string(source[fset.Position(d.Body.Lbrace).Offset:fset.Position(d.Body.Rbrace).Offset])
		}
	}
	return text
}

// meant returns the function that a call by name calls. If several steps have the name, it
// is the next one down the way.
func meant(files []string, steps []step, from step, name string) (to step) {
	at := slices.Index(files, from.file)
	for _, s := range steps {
		if s.name == name && (to == step{} || slices.Index(files, to.file) < at) {
			to = s
		}
	}
	return to
}

// The page names the functions from AllReduce down to the addition, and so all files to open.
// Another step calls each function, except the first one and the start of a goroutine.
func TestWay(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	for title, most := range mostOpened {
		files, steps := wayOf(t, string(text), title)
		if len(files) > most {
			t.Errorf("%s: %d files to open, want at most %d: %q", title, len(files), most, files)
		}
		body, reached := map[step]string{}, map[step]bool{}
		for _, s := range steps {
			if body[s] = bodies(t, s); body[s] == "" {
				t.Errorf("%s: %s has no function %s", title, s.file, s.name)
			}
		}
		next := []step{steps[0]}
		if i := slices.IndexFunc(steps, func(s step) bool { return s.name == "work" }); i >= 0 {
			next = append(next, steps[i])
		}
		for len(next) > 0 {
			from := next[0]
			next, reached[from] = next[1:], true
			for _, to := range steps {
				if regexp.MustCompile(`\b` + to.name + `\(`).MatchString(body[from]) {
					if to = meant(files, steps, from, to.name); !reached[to] {
						next, reached[to] = append(next, to), true
					}
				}
			}
		}
		for _, s := range steps {
			if !reached[s] {
				t.Errorf("%s: no function before calls %s of %s: a file is missing in between", title, s.name, s.file)
			}
		}
	}
}
