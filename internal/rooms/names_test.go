package main

import (
	"go/ast"
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

// typed are the names that a user of a package types: of functions, and of methods.
type typed struct {
	name               string // the package's
	functions, methods []string
}

// caller is how the text of an error begins behind the place of the call.
var caller = regexp.MustCompile(`^(?:(\w+)\.)?([A-Z]\w*)`)

// says reports whether a text begins with a name that a user has typed: package.Function, or
// Method. Package spmd's functions have no package before them, as in what its inside says.
func (p *typed) says(text string) bool {
	m := caller.FindStringSubmatch(text)
	switch {
	case m == nil:
		return false
	case m[1] != "":
		return m[1] == p.name && slices.Contains(p.functions, m[2])
	}
	return slices.Contains(p.methods, m[2]) || p.name == "spmd" && slices.Contains(p.functions, m[2])
}

// errorsOf returns what errors with the place of a call say first, and the names that functions of
// a package hand on for that: literal arguments of parameters called op.
func errorsOf(files []*ast.File, c *calls, path string) (texts map[token.Pos]string) {
	texts = map[token.Pos]string{}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if makesError(call.Fun) && len(call.Args) > 1 && isAt(call.Args[1]) {
				text, ok := strings.CutPrefix(constant(call.Args[0]), "%s: ")
				if ok && !strings.HasPrefix(text, "%s") && !strings.HasPrefix(text, "%w") {
					texts[call.Pos()] = text
				}
				return true
			}
			_, may := c.called(path, map[string]string{"library": "lockstep/spmd/library"}, call.Fun)
			for i, arg := range call.Args {
				lit, ok := arg.(*ast.BasicLit)
				if ok && lit.Kind == token.STRING && slices.ContainsFunc(may, func(t *ast.FuncType) bool {
					return t.Params.NumFields() == len(call.Args) && parameter(t, i) == "op"
				}) {
					texts[arg.Pos()] = constant(arg)
				}
			}
			return true
		})
	}
	return texts
}

// isAt reports whether an expression is ccall.At().
func isAt(x ast.Expr) bool {
	call, ok := x.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && f.Sel.Name == "At" && len(call.Args) == 0
}

// parameter returns the name of parameter i of a function.
func parameter(t *ast.FuncType, i int) string {
	for _, p := range t.Params.List {
		if i < len(p.Names) {
			return p.Names[i].Name
		}
		i -= max(1, len(p.Names))
	}
	return ""
}

// The errors of a library say first where it was called, and then the name that stands there.
func TestErrorsSayTheirCaller(t *testing.T) {
	found := 0
	c := calls{set: token.NewFileSet(), functions: map[string]*ast.FuncType{}, methods: map[string][]*ast.FuncType{}}
	files, names := map[string][]*ast.File{}, map[string]*typed{}
	for _, p := range packages(t) {
		if p.path != "spmd" && !strings.HasPrefix(p.path, "spmd/") || strings.HasPrefix(p.path, "spmd/internal") {
			continue
		}
		at := &typed{name: path.Base(p.path)}
		names[p.path] = at
		files[p.path] = p.parsed(t, c.set)
		for _, f := range files[p.path] {
			c.declare("lockstep/"+p.path, f)
			for _, d := range f.Decls {
				if d, ok := d.(*ast.FuncDecl); ok && d.Recv == nil {
					at.functions = append(at.functions, d.Name.Name)
				} else if ok {
					at.methods = append(at.methods, d.Name.Name)
				}
			}
		}
	}
	for p, of := range files {
		for pos, text := range errorsOf(of, &c, "lockstep/"+p) {
			if found++; !names[p].says(text) {
				t.Errorf("%v: %q begins with no function or method that a user of %s types",
					c.set.Position(pos), text, p)
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d errors say where they come from", found)
	}
}

// What cannot be written to standard output is noticed at one place, cli.Stdout. A file of a user's
// own may be the stream, and what a command starts writes for itself.
func TestStandardOutput(t *testing.T) {
	around := regexp.MustCompile(`\bfmt\.Print|\bos\.Stdout\b[^.]`)
	for _, p := range packages(t) {
		if !regexp.MustCompile(`^(apps|internal/(launcher|safetensors)|launch|spmd)\b`).MatchString(p.path) ||
			strings.HasPrefix(p.path, "launch/scaffold/kinds") {
			continue
		}
		for _, name := range p.sources {
			text, err := os.ReadFile(filepath.Join(p.dir, name))
			testkit.Must(t, err)
			for line := range strings.Lines(string(text)) {
				if around.MatchString(line) && !strings.Contains(line, "cmd.Stdout") {
					t.Errorf("%s/%s: %s: write to cli.Stdout", p.path, name, strings.TrimSpace(line))
				}
			}
		}
	}
}

func TestSaysCaller(t *testing.T) {
	p := typed{"blas", []string{"Gemm", "move"}, []string{"Free"}}
	for text, want := range map[string]bool{"blas.Gemm: A": true, "Free: it": true, "Gemm: A": false,
		"blas: Gemm: A": false, "fft.Gemm: A": false, "blas.Free: it": false, "blas.move: A": false} {
		if got := p.says(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
