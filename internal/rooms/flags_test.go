package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// defines matches pflag's methods that define a flag.
var defines = regexp.MustCompile(
	`^(Bool|Int|Uint|Uint64|Float64|String|StringArray|StringSlice|IntSlice|Duration)?(VarP|Var|P)?$`)

// flagsIn returns the flags that a file of Go defines.
func flagsIn(file *ast.File) (flags []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !defines.MatchString(method.Sel.Name) || !isFlagSet(method.X) {
			return true
		}
		at := 0
		if strings.Contains(method.Sel.Name, "Var") { // behind the address
			at = 1
		}
		if len(call.Args) < 3 {
			return true
		}
		if name, ok := call.Args[at].(*ast.BasicLit); ok {
			flags = append(flags, texts(name))
		}
		return true
	})
	return flags
}

// texts are the strings of an expression, one after the other.
func texts(x ast.Expr) (all string) {
	ast.Inspect(x, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				all += text
			}
		}
		return true
	})
	return all
}

// isFlagSet says whether an expression is fs, or the Flags() of a command.
func isFlagSet(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "fs"
	case *ast.CallExpr:
		f, ok := x.Fun.(*ast.SelectorExpr)
		return ok && f.Sel.Name == "Flags"
	}
	return false
}

// A page names every flag of a program: one in the program's folder or above it, or one of docs.
func TestFlagsInPages(t *testing.T) {
	pages := map[string]string{} // by folder
	for _, pattern := range []string{"*.md", "*/*.md", "*/*/*.md", "launch/scaffold/kinds/*/*.md"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		testkit.Must(t, err)
		for _, name := range names {
			text, err := os.ReadFile(name)
			testkit.Must(t, err)
			dir, err := filepath.Rel(root, filepath.Dir(name))
			testkit.Must(t, err)
			pages[dir] += string(text)
		}
	}
	found := 0
	for _, p := range packages(t) {
		if strings.HasPrefix(p.path, "docs/") {
			continue
		}
		text := pages["docs"]
		for dir := p.path; dir != "."; dir = filepath.Dir(dir) {
			text += pages[dir]
		}
		text += pages["."]
		if strings.HasPrefix(p.path, "launch/") {
			text += pages["launch/slurm"]
		}
		for _, file := range p.parsed(t, token.NewFileSet()) {
			for _, flag := range flagsIn(file) {
				found++
				if !regexp.MustCompile(`--` + regexp.QuoteMeta(flag) + `([^a-z0-9-]|$)`).MatchString(text) {
					t.Errorf("%s: no page for it tells of --%s", p.path, flag)
				}
			}
		}
	}
	if found < 100 { // there are more
		t.Errorf("only %d flags were found in the sources", found)
	}
}

// public are the packages that other modules import.
func public(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return slices.Contains([]string{"spmd", "cudampi", "nccl", "cuda", "host"}, first) &&
		!strings.Contains(path, "internal")
}

// Every exported name that other modules may use has a comment for go doc:
// its own, or that of its group.
func TestExportedNamesHaveComments(t *testing.T) {
	for _, p := range packages(t) {
		if !public(p.path) {
			continue
		}
		for _, file := range p.parsed(t, token.NewFileSet()) {
			for _, bare := range uncommented(file) {
				t.Errorf("%s: %s has no comment", p.path, bare)
			}
		}
	}
}

// wellKnown are methods that packages fmt and errors document.
var wellKnown = []string{"String", "Error", "Unwrap", "Is"}

// uncommented returns the exported names of a file that have no comment.
func uncommented(file *ast.File) (names []string) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			known := d.Recv != nil && slices.Contains(wellKnown, d.Name.Name)
			if d.Name.IsExported() && exportedReceiver(d) && d.Doc == nil && !known {
				names = append(names, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() && s.Doc == nil && d.Doc == nil {
						names = append(names, s.Name.Name)
					}
				case *ast.ValueSpec:
					for _, n := range s.Names {
						if n.IsExported() && s.Doc == nil && s.Comment == nil && d.Doc == nil {
							names = append(names, n.Name)
						}
					}
				}
			}
		}
	}
	return names
}

// exportedReceiver says whether a function has no receiver, or one of an exported type.
func exportedReceiver(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return true
	}
	x := f.Recv.List[0].Type
	for {
		switch y := x.(type) {
		case *ast.StarExpr:
			x = y.X
		case *ast.IndexExpr:
			x = y.X
		case *ast.IndexListExpr:
			x = y.X
		case *ast.Ident:
			return y.IsExported()
		default:
			return true
		}
	}
}

func TestUncommented(t *testing.T) {
	const source = `package p
// A is.
func A() {}
func B() {}
func c() {}
type T struct{}
type u struct{}
func (T) M() {}
func (*u) N() {}
// Some are.
const ( C = 1; D = 2 )
const E = 3 // is
var F, g = 1, 2
`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, parser.ParseComments)
	testkit.Must(t, err)
	if got := strings.Join(uncommented(file), " "); got != "B T M F" {
		t.Errorf("without a comment: %s, want B T M F", got)
	}
}
