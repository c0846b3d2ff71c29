package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// TestAPI: nothing that api/1.0.txt promises changes or goes, and what has come stands there.
// Programs import few names, for their authors have to know them.
func TestAPI(t *testing.T) {
	const most = 440
	packages, err := api(root)
	testkit.Must(t, err)
	text, err := os.ReadFile(filepath.Join(root, promised))
	testkit.Must(t, err)
	old := strings.Split(strings.TrimSpace(string(text)), "\n")
	lines, names := exported(packages)
	for _, line := range without(old, lines) {
		t.Errorf("%s promises: %s", promised, line)
	}
	for _, line := range without(lines, old) {
		t.Errorf("%s lacks, go run ./internal/rooms: %s", promised, line)
	}
	if t.Logf("%d names", names); names < most/2 || names > most {
		t.Errorf("programs import %d names, at most %d are wanted", names, most)
	}
}

// Each change of a package that may break a program takes a line away. What comes alone takes none.
func TestAPIChanges(t *testing.T) {
	const before = `package p
		const C, v = 1, 2
		var V int
		type T[E any] struct { F, G int; h int }
		func (T[E]) M() {}
		func (*T[E]) N(a int) error { return nil }
		func (T[E]) m() {}
		type I interface { M() }
		type A = []int
		func F[E int | uint](x E, y ...func(a int) int) (int, error) { return 0, nil }`
	lines := func(text string) []string {
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, "p.go", text, 0)
		testkit.Must(t, err)
		p, err := (&types.Config{}).Check(module+"/spmd/p", set, []*ast.File{f}, nil)
		testkit.Must(t, err)
		all, _ := exported([]*types.Package{p})
		return all
	}
	old := lines(before)
	if want := "pkg spmd/p, func F[E int | uint](E, ...func(int) int) (int, error)"; len(old) != 10 || old[1] != want {
		t.Fatalf("%q", old)
	}
	for _, tc := range []struct {
		from, to string
		breaks   bool
	}{
		{"C, v = 1, 2", "D, v = 1, 2", true}, {"C, v = 1, 2", "C, v = 3, 2", true},
		{"V int", "V uint", true}, {"V int", "V, W int", false},
		{"F, G int", "F int", true}, {"F, G int", "F, G, H int", false}, {"; h int", "", false},
		{"(T[E]) M()", "(T[E]) O()", true}, {"(T[E]) M()", "(*T[E]) M()", true}, {"(T[E]) m()", "(T[E]) O()", false},
		{"N(a int)", "N(b int)", false}, {"N(a int)", "N(a int64)", true},
		{"{ M() }", "{ M(); N() }", true}, {"{ M() }", "{ m(); M() }", true},
		{"A = []int", "A []int", true}, {"y ...func", "y []func", true}, {"E int |", "E int8 | int |", true},
		{"(int, error)", "int", true}, {"func F", "func G() {}; func F", false},
	} {
		text := strings.Replace(before, tc.from, tc.to, 1)
		if tc.to == "int" || tc.to == "(int, error)" {
			text = strings.Replace(text, "return 0, nil", "return 0", 1)
		}
		if gone := without(old, lines(text)); (len(gone) > 0) != tc.breaks {
			t.Errorf("%s becomes %s: %q gone", tc.from, tc.to, gone)
		}
	}
}
