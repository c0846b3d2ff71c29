package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// The most files that a reader opens to follow an AllReduce on a stream.
var mostOpened = map[string]int{"On the host": 7, "Through NCCL": 8}

// The call comes at most so often to a room that it was in before.
const mostReturns = 3

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
	testkit.Must(t, err)
	if filepath.Ext(s.file) != ".go" {
		return regexp.MustCompile(`(?ms)^\w[\w *]*\b` + s.name + `\([^;{]*\{.*?^\}`).FindString(string(source))
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, s.file, source, 0)
	testkit.Must(t, err)
	text := ""
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Name.Name == s.name {
			text += string(source[fset.Position(d.Body.Lbrace).Offset:fset.Position(d.Body.Rbrace).Offset])
		}
	}
	return text
}

// meant returns the step that a call by name in from is of: the next one down the way, or the first
// where none follows.
func meant(steps []step, from step, name string) (to step) {
	after := slices.Index(steps, from)
	for i, s := range steps {
		if s.name == name && (to == step{} || slices.Index(steps, to) <= after && i > after) {
			to = s
		}
	}
	return to
}

// called returns the steps that a body calls, in the order of the text. If it returns what a step
// does, the rest is another way.
func called(steps []step, from step, body string) (to []step) {
	returned := regexp.MustCompile(`\breturn [\w.]*?(\w+)\(`)
	for _, m := range returned.FindAllStringSubmatchIndex(body, -1) {
		name := body[m[2]:m[3]]
		if name != from.name && slices.ContainsFunc(steps, func(s step) bool { return s.name == name }) {
			body = body[:m[1]]
			break
		}
	}
	at := map[step]int{}
	for _, s := range steps {
		if m := regexp.MustCompile(`\b` + s.name + `\(`).FindStringIndex(body); m != nil {
			s = meant(steps, from, s.name)
			if at[s] == 0 {
				at[s] = m[0] + 1
				to = append(to, s)
			}
		}
	}
	slices.SortFunc(to, func(a, b step) int { return at[a] - at[b] })
	return to
}

// way is the rooms that a call has been in.
type way struct {
	steps   []step
	body    map[step]string
	reached map[step]bool
	rooms   map[string]bool
	returns int // to rooms that it was in before
}

func roomOfStep(s step) string { return roomOf(path.Dir(s.file)).name }

// enter notes that the call comes to the room of a step.
func (w *way) enter(s step) {
	if w.rooms[roomOfStep(s)] {
		w.returns++
	}
	w.rooms[roomOfStep(s)] = true
}

// follow follows the call from a step down. Several calls of a function to one room, one after the
// other, are one visit.
func (w *way) follow(s step) {
	w.reached[s] = true
	last := roomOfStep(s)
	for _, to := range called(w.steps, s, w.body[s]) {
		if w.reached[to] {
			continue
		}
		if in := roomOfStep(to); in != roomOfStep(s) && in != last {
			w.enter(to)
			last = in
		}
		w.follow(to)
	}
}

// The page names the functions from AllReduce down to the addition, and so all files to open.
// Another step calls each function, except the first one and the start of a goroutine. The page
// also names whatever a queue calls of a call.
func TestWay(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, page))
	testkit.Must(t, err)
	for title, most := range mostOpened {
		files, steps := wayOf(t, string(text), title)
		if len(files) > most {
			t.Errorf("%s: %d files to open, want at most %d: %q", title, len(files), most, files)
		}
		w := way{steps, map[step]string{}, map[step]bool{}, map[string]bool{}, 0}
		for _, s := range steps {
			if w.body[s] = bodies(t, s); w.body[s] == "" {
				t.Errorf("%s: %s has no function %s", title, s.file, s.name)
			}
		}
		for i, s := range steps {
			if i == 0 || s.name == "work" {
				w.enter(s)
				w.follow(s)
			}
		}
		if w.returns > mostReturns {
			t.Errorf("%s: the call comes %d times to a room that it was in before, want at most %d",
				title, w.returns, mostReturns)
		}
		for _, s := range steps {
			for _, m := range regexp.MustCompile(`\.Call\.(\w+)\(`).FindAllStringSubmatch(w.body[s], -1) {
				if roomOfStep(s) == "exec" && !slices.ContainsFunc(steps, func(o step) bool { return o.name == m[1] }) {
					t.Errorf("%s: %s of %s calls %s of a call, which the page does not name",
						title, s.name, s.file, m[1])
				}
			}
			if !w.reached[s] {
				t.Errorf("%s: no function before calls %s of %s: a file is missing in between", title, s.name, s.file)
			}
		}
	}
}
