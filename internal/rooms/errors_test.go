package main

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

var (
	verb = regexp.MustCompile(`%[-+# 0]*[0-9.*]*[a-zA-Z]`)
	dots = regexp.MustCompile(`\.{4,}`)
	word = regexp.MustCompile(`[A-Za-z]{2,}`)
	says = regexp.MustCompile(`\| (as|what) (it says|above|below)[^|]*\|$`) // is no answer
)

// shown returns a format as docs/errors.md shows it: "..." stands for what differs. It returns ""
// if the format has no words of its own.
func shown(format string) string {
	text := dots.ReplaceAllStringFunc(verb.ReplaceAllString(format, "..."), func(run string) string {
		if len(run)%3 == 1 { // a full stop of the message, as in "....After"
			return "...."
		}
		return "..."
	})
	if len(word.FindAllString(text, -1)) < 2 {
		return ""
	}
	return text
}

// messages returns the errors that the files of a package make, as shown.
func messages(t *testing.T, p pkg) []string {
	t.Helper()
	var all []string
	for _, file := range p.parsed(t, token.NewFileSet()) {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			format := ""
			if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Refusef" && len(call.Args) > 1 {
				format = "%s: %s: " + constant(call.Args[1])
			} else if makesError(call.Fun) {
				format = constant(call.Args[0])
			}
			if format != "" {
				if text := shown(format); text != "" && !slices.Contains(all, text) {
					all = append(all, text)
				}
			}
			return true
		})
	}
	return all
}

// constant returns what a string literal says, or several with plus between them, or "".
func constant(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.BasicLit:
		return texts(x)
	case *ast.BinaryExpr:
		if a, b := constant(x.X), constant(x.Y); a != "" && b != "" {
			return a + b
		}
	}
	return ""
}

// makesError says whether a function is fmt.Errorf, errors.New, or launch's usage.
func makesError(f ast.Expr) bool {
	switch f := f.(type) {
	case *ast.Ident:
		return f.Name == "usage"
	case *ast.SelectorExpr:
		x, ok := f.X.(*ast.Ident)
		return ok && (x.Name == "fmt" && f.Sel.Name == "Errorf" || x.Name == "errors" && f.Sel.Name == "New")
	}
	return false
}

// Every message in docs/errors.md is in the code. A section that claims to be complete has
// all messages of its packages.
func TestErrors(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "errors.md"))
	testkit.Must(t, err)
	made := map[string][]string{}
	var everywhere []string
	for _, p := range packages(t) {
		made[p.path] = messages(t, p)
		everywhere = append(everywhere, made[p.path]...)
	}
	complete := regexp.MustCompile(`<!-- complete: (.*) -->`)
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| [^|]+ \\| [^|]+ \\|$")
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		title, _, _ := strings.Cut(section, "\n")
		var listed []string
		for _, m := range row.FindAllStringSubmatch(section, -1) {
			if slices.Contains(listed, m[1]) {
				t.Errorf("%s: %q is there twice", title, m[1])
			}
			listed = append(listed, m[1])
		}
		if rows := strings.Count(section, "\n| `"); len(listed) == 0 || len(listed) != rows {
			t.Errorf("%s: %d rows of a message, why, and what to do, of %d", title, len(listed), rows)
		}
		for _, line := range strings.Split(section, "\n") {
			if says.MatchString(line) {
				t.Errorf("%s: what to do is not said: %s", title, line)
			}
		}
		there := everywhere
		if m := complete.FindStringSubmatch(section); m != nil {
			there = nil
			for _, path := range strings.Fields(m[1]) {
				if len(made[path]) == 0 {
					t.Errorf("%s: package %s makes no errors", title, path)
				}
				there = append(there, made[path]...)
			}
			for _, text := range there {
				if !slices.Contains(listed, text) {
					t.Errorf("%s: docs/errors.md lacks %q", title, text)
				}
			}
		}
		for _, text := range listed {
			if !slices.Contains(there, text) {
				t.Errorf("%s: no error reads %q any more", title, text)
			}
		}
	}
}

func TestShown(t *testing.T) {
	for format, want := range map[string]string{
		"%s: %w": "", "%d ranks, but %d cores": "... ranks, but ... cores",
		"end with %s.After(%s)": "end with ....After(...)", "type: %s %s%s %s": "",
		"type this: %s%s": "type this: ...", "no checkpoint": "no checkpoint",
		"%-8s is %+.3g of it": "... is ... of it",
	} {
		if got := shown(format); got != want {
			t.Errorf("%q: %q, want %q", format, got, want)
		}
	}
}
