package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/testkit"
)

// mostParameters is how many parameters a function has at most.
const mostParameters = 8

// manyParameters are functions that may have more, since their form is another's: BLAS's products,
// a loop in C, or a kernel that they stand for on the host.
var manyParameters = regexp.MustCompile(`(?i)gem[mv]|(?-i)^c[A-Z]|OnHost$`)

// plainBool are functions whose names say what their true or false is.
var plainBool = regexp.MustCompile(`^(Bool|Set[A-Z]\w*)$`)

// calls are the functions of some packages, and what was found in them.
type calls struct {
	set       *token.FileSet
	functions map[string]*ast.FuncType   // by import path and name
	methods   map[string][]*ast.FuncType // by name; of interfaces, too
	found     []string
}

// declare notes the functions of a file, and those of too many parameters.
func (c *calls) declare(path string, f *ast.File) {
	for _, d := range f.Decls {
		d, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if d.Recv == nil {
			c.functions[path+"."+d.Name.Name] = d.Type
		} else {
			c.methods[d.Name.Name] = append(c.methods[d.Name.Name], d.Type)
		}
		isKernel := d.Doc != nil && slices.ContainsFunc(d.Doc.List, func(l *ast.Comment) bool {
			return strings.HasPrefix(l.Text, "//spmd:kernel")
		})
		if n := d.Type.Params.NumFields(); n > mostParameters && !isKernel && !manyParameters.MatchString(d.Name.Name) {
			c.report(d, "%s has %d parameters, a function has at most %d: use a struct", d.Name.Name, n, mostParameters)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if i, ok := n.(*ast.InterfaceType); ok {
			for _, m := range i.Methods.List {
				if t, ok := m.Type.(*ast.FuncType); ok {
					c.methods[m.Names[0].Name] = append(c.methods[m.Names[0].Name], t)
				}
			}
		}
		return true
	})
}

func (c *calls) report(at ast.Node, format string, args ...any) {
	p := c.set.Position(at.Pos())
	c.found = append(c.found, fmt.Sprintf("%s:%d: ", p.Filename, p.Line)+fmt.Sprintf(format, args...))
}

// read looks for calls with true or false in a file. The rule is for functions that were declared,
// not for those inside of functions.
func (c *calls) read(path string, f *ast.File) {
	imports := map[string]string{}
	for _, i := range f.Imports {
		to := strings.Trim(i.Path.Value, `"`)
		name := to[strings.LastIndex(to, "/")+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		imports[name] = to
	}
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		name, may := c.called(path, imports, call.Fun)
		for i, arg := range call.Args {
			id, ok := arg.(*ast.Ident)
			if !ok || id.Name != "true" && id.Name != "false" || plainBool.MatchString(name) {
				continue
			}
			if slices.ContainsFunc(may, func(t *ast.FuncType) bool {
				return t.Params.NumFields() == len(call.Args) && isBool(t, i)
			}) {
				c.report(call, "%s is called with %s as argument %d: give it a name", name, id.Name, i)
			}
		}
		return true
	})
}

// called returns the name of what an expression calls, and the functions that it may be.
func (c *calls) called(path string, imports map[string]string, f ast.Expr) (string, []*ast.FuncType) {
	switch f := f.(type) {
	case *ast.IndexExpr:
		return c.called(path, imports, f.X)
	case *ast.IndexListExpr:
		return c.called(path, imports, f.X)
	case *ast.Ident:
		if t := c.functions[path+"."+f.Name]; t != nil {
			return f.Name, []*ast.FuncType{t}
		}
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok && imports[x.Name] != "" {
			if t := c.functions[imports[x.Name]+"."+f.Sel.Name]; t != nil {
				return f.Sel.Name, []*ast.FuncType{t}
			}
			return f.Sel.Name, nil
		}
		return f.Sel.Name, c.methods[f.Sel.Name]
	}
	return "", nil
}

// isBool reports whether parameter i of a function is a bool.
func isBool(t *ast.FuncType, i int) bool {
	for _, p := range t.Params.List {
		if i -= max(1, len(p.Names)); i < 0 {
			id, ok := p.Type.(*ast.Ident)
			return ok && id.Name == "bool"
		}
	}
	return false
}

// A reader of a call sees what its true or false means: it has a name. No function has more
// parameters than a reader can count. Tests may do as they like.
func TestCalls(t *testing.T) {
	c := calls{set: token.NewFileSet(), functions: map[string]*ast.FuncType{}, methods: map[string][]*ast.FuncType{}}
	files := map[string][]*ast.File{}
	for _, p := range packages(t) {
		path := "lockstep/" + p.path
		files[path] = slices.DeleteFunc(p.parsed(t, c.set), ast.IsGenerated)
		for _, f := range files[path] {
			c.declare(path, f)
		}
	}
	for path, of := range files {
		for _, f := range of {
			c.read(path, f)
		}
	}
	slices.Sort(c.found)
	for _, text := range c.found {
		t.Error(text)
	}
}

func TestReadCalls(t *testing.T) {
	const text = `package x

import "lockstep/y"

type i interface{ Do(n int, fast bool) }

func plain(fast bool)  {}
func of[T any](b bool) {}
func SetFast(b bool)   {}

func many(a, b, c, d, e, f, g, h, i int) {}
func Gemm(a, b, c, d, e, f, g, h, i int) {}

func use(v i, w interface{ Store(bool) int }) {
	plain(true)
	plain(fast)
	of[int](false)
	SetFast(true)
	v.Do(1, true)
	v.Do(2, 1 < 2)
	y.Do(true)
	func(b bool) {}(true)
}
`
	c := calls{set: token.NewFileSet(), functions: map[string]*ast.FuncType{}, methods: map[string][]*ast.FuncType{}}
	f, err := parser.ParseFile(c.set, "x.go", text, parser.ParseComments)
	testkit.Must(t, err)
	c.declare("lockstep/x", f)
	c.read("lockstep/x", f)
	want := []string{
		"x.go:11: many has 9 parameters, a function has at most 8: use a struct",
		"x.go:15: plain is called with true as argument 0: give it a name",
		"x.go:17: of is called with false as argument 0: give it a name",
		"x.go:19: Do is called with true as argument 1: give it a name",
	}
	if !slices.Equal(c.found, want) {
		t.Errorf("found %q, want %q", c.found, want)
	}
}
