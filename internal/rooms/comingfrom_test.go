package main

import (
	"fmt"
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

// names are the exported names of packages, as a program writes them, and those of
// fields and methods behind the name of their type: "spmd.Alloc", "spmd.Comm.On". A
// function has its parameters.
type names map[string]*ast.FuncType

// sources are the parsed files of a package, without its tests.
func sources(t *testing.T, dir string) (all []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	testkit.Must(t, err)
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		testkit.Must(t, err)
		all = append(all, file)
	}
	return all
}

func (n names) declare(pkg string, d ast.Decl) {
	if f, is := d.(*ast.FuncDecl); is {
		if f.Recv != nil {
			pkg += "." + typeName(f.Recv.List[0].Type)
		}
		n[pkg+"."+f.Name.Name] = f.Type
		return
	}
	for _, spec := range d.(*ast.GenDecl).Specs {
		switch spec := spec.(type) {
		case *ast.ValueSpec:
			for _, name := range spec.Names {
				n[pkg+"."+name.Name] = nil
			}
		case *ast.TypeSpec:
			n[pkg+"."+spec.Name.Name] = nil
			if s, is := spec.Type.(*ast.StructType); is {
				for _, field := range s.Fields.List {
					for _, name := range field.Names {
						n[pkg+"."+spec.Name.Name+"."+name.Name] = nil
					}
				}
			}
		}
	}
}

// typeName is the name of T in *T and T[V].
func typeName(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.StarExpr:
		return typeName(x.X)
	case *ast.IndexExpr:
		return typeName(x.X)
	case *ast.Ident:
		return x.Name
	}
	return ""
}

// letters are the variables of the page. A Mesh is a Layout with communicators.
var letters = map[string][]string{
	"w": {"spmd.World"}, "c": {"spmd.Comm"}, "s": {"spmd.Stream"}, "b": {"spmd.Buffer"}, "e": {"spmd.Event"},
	"g": {"spmd.Graph"}, "k": {"spmd.Kernel"},
	"m": {"parallel.Mesh", "parallel.Layout"}, "r": {"parallel.Reducer"}, "p": {"checkpoint.Manager"},
}

// find returns what x.name is, where x is a package or a letter.
func (n names) find(x, name string) (*ast.FuncType, bool) {
	places := letters[x]
	if places == nil {
		places = []string{x}
	}
	for _, p := range places {
		if f, ok := n[p+"."+name]; ok {
			return f, true
		}
	}
	return nil, false
}

var (
	span      = regexp.MustCompile("`([^`]+)`")
	qualified = regexp.MustCompile(`\b(\w+)\.([A-Z]\w*)`)
	flagged   = regexp.MustCompile(`--([a-z][a-z-]+)`)
)

// wrong says what is wrong with a piece of code.
func (n names) wrong(code string) (all []string) {
	for _, m := range qualified.FindAllStringSubmatch(code, -1) {
		if _, ok := n.find(m[1], m[2]); !ok {
			all = append(all, fmt.Sprintf("there is no %s", m[0]))
		}
	}
	x, err := parser.ParseExpr(code)
	if err != nil {
		return all // several pieces, or a line of a shell: the names were looked up
	}
	ast.Inspect(x, func(node ast.Node) bool {
		call, is := node.(*ast.CallExpr)
		if !is {
			return true
		}
		fun := call.Fun
		if index, is := fun.(*ast.IndexExpr); is {
			fun = index.X
		}
		sel, is := fun.(*ast.SelectorExpr)
		if !is {
			return true
		}
		at, is := sel.X.(*ast.Ident)
		if !is {
			return true
		}
		f, ok := n.find(at.Name, sel.Sel.Name)
		if ok && f == nil {
			all = append(all, fmt.Sprintf("%s.%s is no function", at.Name, sel.Sel.Name))
		} else if ok && !takes(f, len(call.Args)) {
			all = append(all, fmt.Sprintf("%s.%s does not take %d arguments", at.Name, sel.Sel.Name, len(call.Args)))
		}
		return true
	})
	return all
}

// takes says whether a function may be called with so many arguments.
func takes(f *ast.FuncType, args int) bool {
	params, more := 0, false
	for _, p := range f.Params.List {
		params += max(1, len(p.Names))
		_, more = p.Type.(*ast.Ellipsis)
	}
	return args == params || more && args >= params-1
}

// literals are the strings in the sources of a folder, in which flags have their names.
func literals(t *testing.T, dir string) (all []string) {
	t.Helper()
	for _, file := range sources(t, dir) {
		ast.Inspect(file, func(node ast.Node) bool {
			if lit, is := node.(*ast.BasicLit); is && lit.Kind == token.STRING {
				if s, err := strconv.Unquote(lit.Value); err == nil {
					all = append(all, s)
				}
			}
			return true
		})
	}
	return all
}

// calledIn returns the names of those that the page calls.
func calledIn(t *testing.T) names {
	t.Helper()
	n := names{}
	for _, dir := range []string{
		"spmd", "spmd/hostdata", "spmd/managed", "spmd/parallel", "spmd/checkpoint", "spmd/telemetry",
		"spmd/blas", "spmd/vector", "spmd/random", "spmd/fft", "spmd/arrayfile",
	} {
		for _, file := range sources(t, filepath.Join(root, dir)) {
			for _, d := range file.Decls {
				n.declare(file.Name.Name, d)
			}
		}
	}
	return n
}

// Everything that coming-from.md calls is there, and takes as many arguments. In the first
// column stands what others have.
func TestComingFrom(t *testing.T) {
	n := calledIn(t)
	flags := slices.Concat(literals(t, filepath.Join(root, "spmd/internal/job")),
		literals(t, filepath.Join(root, "launch/plan")))
	text, err := os.ReadFile(filepath.Join(root, "docs", "coming-from.md"))
	testkit.Must(t, err)
	calls, line := 0, 0
	for row := range strings.Lines(string(text)) {
		line++
		if strings.HasPrefix(row, "| ") {
			cells := strings.Split(row, "|")
			if len(cells) != 5 {
				t.Fatalf("coming-from.md:%d: %d columns, want 3", line, len(cells)-2)
			}
			row = cells[2] + "|" + cells[3]
		}
		for _, m := range span.FindAllStringSubmatch(row, -1) {
			if strings.HasPrefix(m[1], "MPI_") {
				continue
			}
			calls++
			for _, what := range n.wrong(m[1]) {
				t.Errorf("coming-from.md:%d: `%s`: %s", line, m[1], what)
			}
			for _, f := range flagged.FindAllStringSubmatch(m[1], -1) {
				if !slices.Contains(flags, f[1]) {
					t.Errorf("coming-from.md:%d: `%s`: there is no flag --%s", line, m[1], f[1])
				}
			}
		}
	}
	if calls < 150 {
		t.Errorf("only %d pieces of code", calls)
	}
}

// What is not there is seen.
func TestWrong(t *testing.T) {
	n := calledIn(t)
	for code, want := range map[string]int{
		"spmd.AllReduce(c.On(s), b, b, spmd.Sum)":       0,
		"spmd.AllReduce(c, b, spmd.Sum)":                1,
		"spmd.Alloc[float32](w)":                        1,
		"spmd.Alloc[float32](w, n)":                     0,
		"spmd.Alloced[float32](w, n)":                   1,
		"k.Launch(s)":                                   1,
		"k.Launch(s, grid, b.Arg(), b.Args())":          1,
		"parallel.NewLayout(w, parallel.Axis{Name: x})": 0,
		"m.Shift(x, 1)":                                 0,
		"m.Group(f)":                                    1,
		"spmd.Sum(x)":                                   1,
		"v.Free()":                                      1,
		"... b.Nothing":                                 1,
	} {
		if got := n.wrong(code); len(got) != want {
			t.Errorf("%s: %q, want %d", code, got, want)
		}
	}
}
